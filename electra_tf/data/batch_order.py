# SPDX-License-Identifier: Apache-2.0
"""The examples of batch k, in a random order with random access.

The numbers 0..size - 1 are written with two digits, left < a and right < b, where
a * b is hardly more than `size`. Each round adds a keyed hash of one digit to the
other; this is invertible, so it permutes the a * b numbers (a Feistel network). It is
repeated while the result is not below `size`.

Several data sets form one stream of blocks. Each data set has the same number of places
in every block, and a permutation selects them. A place therefore determines the data
set, the number of its earlier examples, and so the epoch and the example. Each data set
has its own order, and each epoch contains all of it.

TensorFlow's op RandomIndexShuffle uses only the lowest byte of each word of its seed:
seeds 42 and 298 would give the same order.
"""

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_ROUNDS = 8
# Shift and factor of each step of the hash.
_MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
# Places per block; shares are multiples of 1 / BLOCK.
BLOCK = 1 << 16


class Rows(NamedTuple):
    """A worker's part of a global batch; `first` counts from step * batch_size."""

    first: int
    count: int


def batch_indices(
    step: int,
    batch_size: int,
    num_examples: int,
    seed: int,
    shuffle: bool = True,
    rows: Rows | None = None,
) -> np.ndarray:
    """The examples of batch `step`, or of those `rows` of it: int64 [batch_size].

    A batch that spans two epochs has parts of two orders.
    """
    places = _places_of(step, batch_size, rows)
    return _examples_at(places, num_examples, seed, shuffle)


def _places_of(step: int, batch_size: int, rows: Rows | None) -> np.ndarray:
    first, count = rows or Rows(0, batch_size)
    return int(step) * batch_size + np.arange(first, first + count, dtype=np.int64)


def _examples_at(
    place: np.ndarray, num_examples: int, seed: int | str, shuffle: bool = True
) -> np.ndarray:
    """The examples at increasing places of an endless stream: int64 [n]."""
    epochs, indices = place // num_examples, place % num_examples
    if shuffle:
        for epoch in range(epochs[0], epochs[-1] + 1):
            part = epochs == epoch
            indices[part] = permute(indices[part], num_examples, seed, epoch)
    return indices


def permute(index: np.ndarray, size: int, seed: int | str, epoch: int) -> np.ndarray:
    """The numbers at places of the order of (seed, epoch): int64 [n].

    Args:
      index: the places, int64 [n], each 0..size - 1.
    """
    a = math.isqrt(size - 1) + 1
    a, b = np.uint64(a), np.uint64(-(-size // a))
    keys = _round_keys(seed, epoch)
    result = index.astype(np.uint64)
    open_places = np.arange(len(result))
    while len(open_places):
        values = result[open_places]
        left, right = values // b, values % b
        for first, second in keys:
            left = (left + _hash(right + first)) % a
            right = (right + _hash(left + second)) % b
        values = left * b + right
        result[open_places] = values
        open_places = open_places[values >= size]
    return result.astype(np.int64)


def _hash(x: np.ndarray) -> np.ndarray:
    """Mixes 64-bit numbers (the finalizer of SplitMix64), to 32 bits."""
    for shift, factor in _MIXING:
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x >> np.uint64(32)


@functools.lru_cache(maxsize=64)
def _round_keys(seed: int | str, epoch: int) -> np.ndarray:
    """The keys of all rounds: uint64 [_ROUNDS / 2, 2]."""
    digest = hashlib.sha512(f"{seed}/{epoch}".encode()).digest()
    return np.frombuffer(digest, "<u8", _ROUNDS).reshape(-1, 2)


# Several data sets.


def shares_of(weights: Sequence[float]) -> np.ndarray:
    """Places in a block in proportion to weights > 0, at least one each: int64 [n]."""
    wanted = np.asarray(weights, np.float64)
    wanted = wanted / wanted.sum() * BLOCK
    places = np.maximum(1, np.floor(wanted)).astype(np.int64)
    # Largest remainders are rounded up; the largest share makes up for an excess.
    left = BLOCK - int(places.sum())
    places[np.argsort(places - wanted, kind="stable")[: max(0, left)]] += 1
    places[np.argmax(places)] += min(0, left)
    return places


def batch_examples(
    step: int,
    batch_size: int,
    places: Sequence[int],
    sizes: Sequence[int],
    seed: int,
    shuffle: bool = True,
    rows: Rows | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The examples of batch `step` (or of `rows` of it) from several data sets.

    Args:
      places: of each data set in a block, from `shares_of`.
      sizes: examples of each data set.
      shuffle: read each data set in random order, or else in its own.

    Returns: data sets and numbers of examples, int64 [batch_size].
    """
    place = _places_of(step, batch_size, rows)
    blocks, offsets = place // BLOCK, place % BLOCK
    which, number = np.empty_like(place), np.empty_like(place)
    for block in range(blocks[0], blocks[-1] + 1):
        part = blocks == block
        data_sets, before = _block(tuple(map(int, places)), seed, block)
        which[part] = data_sets[offsets[part]]
        number[part] = before[offsets[part]] + block * np.asarray(places)[which[part]]
    for i, size in enumerate(sizes):
        part = which == i
        if part.any():
            number[part] = _examples_at(number[part], size, f"{seed}/{i}", shuffle)
    return which, number


@functools.lru_cache(maxsize=4)
def _block(
    places: tuple[int, ...], seed: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """The data set of each place of a block, and the number of its earlier places."""
    order = permute(np.arange(BLOCK), BLOCK, f"{seed}/mixture", block)
    which = np.repeat(np.arange(len(places)), places)[order]
    before = np.empty(BLOCK, np.int64)
    for i, count in enumerate(places):
        before[which == i] = np.arange(count)
    return which, before
