# SPDX-License-Identifier: Apache-2.0
"""Several data sets as one stream, each with its share; any place can be asked for.

The stream consists of blocks. Each data set has as many places in one block as in
another; which these are, a keyed permutation says. So a place tells the data set, how
many of its examples came before, and thereby which example of which epoch it is: each
data set is gone through in an order of its own, all of it once an epoch.
"""

import functools
from collections.abc import Sequence

import numpy as np

from electra_tf.data.permutation import Rows, examples_at, permute

# Places of a block: shares are multiples of 1 / BLOCK.
BLOCK = 1 << 16


def shares_of(weights: Sequence[float]) -> np.ndarray:
    """Places in a block in proportion to weights > 0, at least one each: int64 [n]."""
    wanted = np.asarray(weights, np.float64)
    wanted = wanted / wanted.sum() * BLOCK
    places = np.maximum(1, np.floor(wanted)).astype(np.int64)
    # The largest remainders get what is left; the largest share gives what is missing.
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
    """Which examples of which data sets form batch `step`, or those `rows` of it.

    Args:
      places: of each data set in a block, from `shares_of`.
      sizes: examples of each data set.
      shuffle: go through each data set in a random order; else in its own.

    Returns: data sets and numbers of examples, int64 [batch_size].
    """
    first, count = rows or Rows(0, batch_size)
    place = int(step) * batch_size + np.arange(first, first + count, dtype=np.int64)
    blocks, offsets = place // BLOCK, place % BLOCK
    which, number = np.empty_like(place), np.empty_like(place)
    for block in range(blocks[0], blocks[-1] + 1):
        own = blocks == block
        of_place, before = _block(tuple(map(int, places)), seed, block)
        which[own] = of_place[offsets[own]]
        number[own] = before[offsets[own]] + block * np.asarray(places)[which[own]]
    for i, size in enumerate(sizes):
        own = which == i
        if own.any():
            number[own] = examples_at(number[own], size, f"{seed}/{i}", shuffle)
    return which, number


@functools.lru_cache(maxsize=4)
def _block(
    places: tuple[int, ...], seed: int, block: int
) -> tuple[np.ndarray, np.ndarray]:
    """The data set of each place of a block, and how often it was there before."""
    order = permute(np.arange(BLOCK), BLOCK, f"{seed}/mixture", block)
    which = np.repeat(np.arange(len(places)), places)[order]
    before = np.empty(BLOCK, np.int64)
    for i, count in enumerate(places):
        before[which == i] = np.arange(count)
    return which, before
