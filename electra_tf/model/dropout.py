# SPDX-License-Identifier: Apache-2.0
"""Dropout as a function of a seed, and the seeds of a model's parts.

Keras's dropout layer keeps its random state in a variable; here it is an argument
derived from (seed, step, replica, layer), so that a step can be repeated exactly.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def mix(x: tf.Tensor, key) -> tf.Tensor:
    """Spreads the bits of uint32 `x` over the word, differently for each `key`.

    Multiply-xorshift rounds with the constants of Chris Wellons' search for low-bias
    hashes; the key enters between the rounds, so that two keys do not merely permute
    each other's values.
    """
    x = x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))
    x = x * tf.constant(0x7FEB352D, tf.uint32) + key
    x = x ^ tf.bitwise.right_shift(x, tf.constant(15, tf.uint32))
    x *= tf.constant(0x846CA68B, tf.uint32)
    return x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))


def tag_words(tag: int) -> np.ndarray:
    """A tag of `fold_in` as a constant that the compiler does not build into kernels.

    Parts that differ in such a tag alone are compiled once. uint32 [2].
    """
    return np.array([2 * tag + 1, 2 * tag + 2], np.uint32)


def fold_in(
    seed: tf.Tensor | None, tag: int | tf.Tensor | np.ndarray
) -> tf.Tensor | None:
    """Derives the seed of a part of the model; None (no dropout) stays None.

    The same on every kind of device, as `tf.random.fold_in` is not. `seed`: int32 or
    uint32 [2]; `tag`: a number or its `tag_words`; returns uint32 [2].
    """
    if seed is None:
        return None
    words = tf.bitcast(seed, tf.uint32)
    tags = tag if np.ndim(tag) else [2 * tag + 1, 2 * tag + 2]
    return mix(words + tf.cast(tags, tf.uint32), words[::-1])


def _spread_positions(shape: tf.Tensor, start: tf.Tensor, rows=None) -> tf.Tensor:
    """uint32 of `shape`: `start`, and an odd constant more from each entry to the next.

    `rows`, see `dropout`.

    The constant (2**32 / golden ratio) keeps neighbours far apart. A sum over the axes:
    the compiler would keep one range over all entries as a literal, for every layer.
    """
    positions, stride = start, tf.constant(0x9E3779B9, tf.uint32)
    for inner, size in enumerate(reversed(tf.unstack(shape))):
        along = tf.range(size)
        if rows and inner == 1:
            along, size = along + rows[0], rows[1]
        along = tf.cast(along, tf.uint32) * stride
        positions += tf.reshape(along, [-1] + [1] * inner)
        stride *= tf.cast(size, tf.uint32)
    return positions


def dropout(
    x: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
    rows: tuple[int | tf.Tensor, int] | None = None,
) -> tf.Tensor:
    """Zeroes entries of `x` with probability `rate`; scales the rest to keep the mean.

    Which ones is a function of `seed` (int32 or uint32 [2]) and the position; a seed of
    None switches dropout off.  A hash of the position takes the place of a random
    number generator: the compiler fuses it into its neighbours and computes it again
    in the backward pass, so no mask is ever stored.

    `rows` (first, all): `x` [..., n, m] is that part of a [..., all, m], and has its
    zeros.
    """
    if seed is None or not rate:
        return x
    # Callers may count in the second word, which alone is mixed in late.
    key = fold_in(seed, 0)
    bits = mix(_spread_positions(tf.shape(x), key[0], rows), key[1])
    keep = bits >= tf.constant(round(rate * 2**32), tf.uint32)
    return tf.where(keep, x * tf.cast(1 / (1 - rate), x.dtype), tf.zeros([], x.dtype))
