# SPDX-License-Identifier: Apache-2.0
"""The random numbers of the masking, without TensorFlow.

Bit for bit those of `tf.random.stateless_uniform` on CPUs: Philox 4x32-10 (Salmon et
al., 2011), whose key and counter are drawn from the seed by Philox itself. XLA draws
others from the same seed, so a compiled step is told its numbers.
"""

import math

import numpy as np

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_INCREMENTS = np.array([[0x9E3779B9], [0xBB67AE85]], np.uint32)
_ROUNDS = 10
# TensorFlow's key for what it makes of a seed.
_SEED_KEY = np.array([[0x3EC8F720], [0x02461E29]], np.uint32)


def uniforms(seed: int, step: int, shape: tuple[int, ...]) -> np.ndarray:
    """float32 uniforms in [0, 1) that are a function of (seed, step, shape)."""
    words = np.array([seed, step], "<i8").view("<u4")[:, None]
    mixed = _philox(words, _SEED_KEY)
    blocks = np.arange(-(-math.prod(shape) // 4), dtype=np.uint32)
    counters = np.zeros((4, len(blocks)), np.uint32)
    counters[0], counters[2:] = blocks, mixed[2:]
    bits = _philox(counters, mixed[:2]).T.reshape(-1)[: math.prod(shape)]
    # The lower 23 bits after a point: a float between 1 and 2, less 1.
    one = np.uint32(0x3F800000)
    return ((bits & np.uint32(0x7FFFFF)) | one).view(np.float32).reshape(shape) - 1


def _philox(counters: np.ndarray, key: np.ndarray) -> np.ndarray:
    """uint32 [4, n] of uint32 counters [4, n], with a key [2, 1]."""
    for number in range(_ROUNDS):
        products = counters[::2] * _MULTIPLIERS  # [2, n]: of words 0 and 2
        low, high = products.astype(np.uint32), (products >> 32).astype(np.uint32)
        keyed = key + _INCREMENTS * np.uint32(number)
        mixed = high[::-1] ^ counters[1::2] ^ keyed
        counters = np.stack([mixed[0], low[1], mixed[1], low[0]])
    return counters
