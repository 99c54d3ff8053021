# SPDX-License-Identifier: Apache-2.0
"""Operations in the form that suits TPUs: the same formulas with fewer copies.

Memory traffic limits the speed of a TPU, and copying a tensor to another layout is
memory traffic. What each form saves: docs/measurements/compiled_steps.md.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf.model.dropout import mix


def heads_of(
    dense: keras.layers.Dense, x: tf.Tensor, length: int | tf.Tensor, num_heads: int
) -> tf.Tensor:
    """The output of a dense layer for `x` [B * L, H], by heads: [B, heads, L, head].

    Heads are a dimension of the product instead of a transposition after it.
    """
    width = x.shape[-1]
    kernel, bias = (tf.cast(v.value, x.dtype) for v in dense.weights)
    kernel = tf.reshape(kernel, [width, num_heads, -1])
    x = tf.einsum("blw,whd->bhld", tf.reshape(x, [-1, length, width]), kernel)
    return x + tf.reshape(bias, [num_heads, 1, -1])


def from_heads(dense: keras.layers.Dense, x: tf.Tensor) -> tf.Tensor:
    """The output of a dense layer for `x` [B, heads, L, head]: [B, L, H].

    XLA fuses the following operations with the product if shapes stay [B, L, H].
    """
    kernel, bias = (tf.cast(v.value, x.dtype) for v in dense.weights)
    kernel = tf.reshape(kernel, [x.shape[1], x.shape[3], -1])
    return tf.einsum("bhld,hdw->blw", x, kernel) + bias


@tf.custom_gradient
def layer_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float):
    """Layer normalisation in one pass over `x`, and its gradient in two.

    Usually each sum waits for the previous one, which takes a pass for each.
    """
    y = tf.cast(x, tf.float32)
    mean = tf.reduce_mean(y, axis=-1, keepdims=True)
    square = tf.reduce_mean(tf.square(y), axis=-1, keepdims=True)
    variance = tf.maximum(square - tf.square(mean), 0.0)
    scale = tf.math.rsqrt(variance + epsilon)

    def gradient(dy):
        dy = tf.cast(dy, tf.float32)
        normal = (tf.cast(x, tf.float32) - mean) * scale
        rows = list(range(x.shape.rank - 1))
        scaled = dy * gamma
        along = tf.reduce_mean(scaled * normal, axis=-1, keepdims=True)
        level = tf.reduce_mean(scaled, axis=-1, keepdims=True)
        dx = (scaled - level - normal * along) * scale
        d_gamma = tf.reduce_sum(dy * normal, rows)
        return tf.cast(dx, x.dtype), d_gamma, tf.reduce_sum(dy, rows), None

    return tf.cast((y - mean) * scale * gamma + beta, x.dtype), gradient


def gumbel(uniform: tf.Tensor, vocab_size: int) -> tf.Tensor:
    """Gumbel noise for each token, by a uniform for all of them [M]: float32 [M, V].

    A hash of the uniform and the token, as dropout's. To draw by it is more arithmetic
    than to search a cumulative sum, but the scores are read once, as they lie: a TPU
    would copy them into another layout, blocks of the vocabulary beside each other.
    """
    seed = tf.bitcast(uniform, tf.uint32)[:, None]
    keys = [mix(seed, tf.constant(number, tf.uint32)) for number in (1, 2)]
    # An odd constant, 2**32 / golden ratio, keeps neighbours far apart.
    place = tf.range(vocab_size, dtype=tf.int32)
    place = tf.cast(place, tf.uint32) * tf.constant(0x9E3779B9, tf.uint32)
    bits = tf.cast(mix(place + keys[0], keys[1]), tf.float32)
    # Exponential, and exact where it is small: those are the ones that win.
    waiting = -tf.math.log1p((bits + 0.5) * -((1 - 2.0**-24) / 2**32))
    return -tf.math.log(waiting)
