# SPDX-License-Identifier: Apache-2.0
"""Dropout as a function of a seed, and the seeds of a model's parts.

Keras's dropout layer stores its random state in a variable. Here it is an argument,
derived from (seed, step, replica, layer), so that steps are reproducible.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def mix(x: tf.Tensor, key) -> tf.Tensor:
    """Hashes uint32 `x` with a key.

    Multiply-xorshift rounds with the constants of Chris Wellons' search for low-bias
    hashes. The key is added between the rounds, so that the values of two keys are not
    just permutations of each other.
    """
    x = x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))
    x = x * tf.constant(0x7FEB352D, tf.uint32) + key
    x = x ^ tf.bitwise.right_shift(x, tf.constant(15, tf.uint32))
    x *= tf.constant(0x846CA68B, tf.uint32)
    return x ^ tf.bitwise.right_shift(x, tf.constant(16, tf.uint32))


def tag_words(tag: int) -> np.ndarray:
    """A tag of `fold_in` as an array, uint32 [2].

    As a tensor it is not part of compiled kernels, so that parts of a model which
    differ only in their tag are compiled once.
    """
    return np.array([2 * tag + 1, 2 * tag + 2], np.uint32)


def fold_in(
    seed: tf.Tensor | None, tag: int | tf.Tensor | np.ndarray
) -> tf.Tensor | None:
    """Derives the seed of a part of the model; None (no dropout) stays None.

    Unlike `tf.random.fold_in`, the same on every kind of device. `seed`: int32 or
    uint32 [2]; `tag`: a number or its `tag_words`; returns uint32 [2].
    """
    if seed is None:
        return None
    words = tf.bitcast(seed, tf.uint32)
    tags = tag if np.ndim(tag) else [2 * tag + 1, 2 * tag + 2]
    return mix(words + tf.cast(tags, tf.uint32), words[::-1])


def _spread_positions(shape: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
    """uint32 of `shape`: `start` plus multiples of an odd constant, one per entry.

    The constant (2**32 / golden ratio) keeps neighbours far apart. The positions are a
    sum over the axes because the compiler would store one range over all entries as a
    literal, for every layer.
    """
    positions, stride = start, tf.constant(0x9E3779B9, tf.uint32)
    for inner, size in enumerate(reversed(tf.unstack(shape))):
        along = tf.cast(tf.range(size), tf.uint32) * stride
        positions += tf.reshape(along, [-1] + [1] * inner)
        stride *= tf.cast(size, tf.uint32)
    return positions


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Zeroes entries of `x` with probability `rate`; scales the rest to keep the mean.

    The choice is a function of `seed` (int32 or uint32 [2]) and position; None disables
    dropout. It uses a hash of the position instead of a random number generator: the
    compiler fuses it with its neighbours and computes it again in the backward pass, so
    no mask is stored.
    """
    if seed is None or not rate:
        return x
    # Callers may count in the second word, which `mix` would only use late.
    key = fold_in(seed, 0)
    bits = mix(_spread_positions(tf.shape(x), key[0]), key[1])
    keep = bits >= tf.constant(round(rate * 2**32), tf.uint32)
    return tf.where(keep, x * tf.cast(1 / (1 - rate), x.dtype), tf.zeros([], x.dtype))
