# SPDX-License-Identifier: Apache-2.0
"""Scaled dot-product attention: full, local, and rotary positions.

Shapes: B batch, L length.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from electra_tf.model.dropout import dropout
from electra_tf.model.layers import softmax

# Added to the attention scores of hidden positions. Finite, as in the original: a query
# without visible keys attends to all of them.
MASKED_SCORE = -10000.0

DIRECTIONS = ("bidirectional", "ltr", "rtl")


def attention_bias(input_mask: tf.Tensor, direction: str) -> tf.Tensor:
    """The bias of attention scores: [B, 1, 1, L], or [B, 1, L, L] for one direction.

    With "ltr" a position attends to itself and earlier ones, with "rtl" to later ones.
    """
    visible = tf.cast(input_mask, tf.float32)[:, None, None, :]
    if direction != "bidirectional":
        length = input_mask.shape[1] or tf.shape(input_mask)[1]
        keep = (-1, 0) if direction == "ltr" else (0, -1)
        visible *= tf.linalg.band_part(tf.ones([length, length]), *keep)
    return (1.0 - visible) * MASKED_SCORE


@tf.custom_gradient
def swap_heads(x: tf.Tensor):
    """[B, L, heads, head] -> [B, heads, L, head] and back.

    Has its own gradient because that of tf.transpose reads the order of the axes from
    the forward pass. XLA would evaluate the whole forward function at compile time for
    these four numbers.
    """
    return tf.transpose(x, [0, 2, 1, 3]), lambda dy: tf.transpose(dy, [0, 2, 1, 3])


def probabilities(query: tf.Tensor, key: tf.Tensor, score_bias: tf.Tensor) -> tf.Tensor:
    """Attention of each query to each key, [..., queries, keys] of the query's type."""
    scores = tf.matmul(query, key, transpose_b=True)
    return softmax(tf.cast(scores, tf.float32) + score_bias, query.dtype)


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    score_bias: tf.Tensor,
    rate: float,
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """The values, weighted by the softmax of the scores: [B, heads, L, head].

    Args:
      query, key, value: float [B, heads, L, head]; the query is scaled.
      score_bias: float32 [B, 1, 1, L] or [B, 1, L, L], without a gradient.
      rate, seed: of the dropout of the probabilities, see `dropout`.
    """
    probs = dropout(probabilities(query, key, score_bias), rate, seed)
    return tf.matmul(probs, value)


def attend_locally(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    score_bias: tf.Tensor,
    reach: int,
    direction: str,
    rate: float,
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """`attend` to the positions at most `reach` away; its cost is linear in the length.

    Queries are in groups of `reach`, which attend to the keys of their own group and of
    its neighbours. Sequences of at most three groups attend with a mask. Where the
    length is open, a sequence shorter than `reach` is a group.
    """
    # One row has the padding alone.
    padding = score_bias[:, :, -1:] if direction == "ltr" else score_bias[:, :, :1]
    heads, length = query.shape[1], _length(query)
    if isinstance(length, int) and length <= 3 * reach:
        apart = tf.range(length) - tf.range(length)[:, None]
        bias = padding + _local_bias(apart, reach, direction)
        return attend(query, key, value, bias, rate, seed)
    size = reach if isinstance(length, int) else tf.minimum(reach, length)
    count = (length + size - 1) // size  # ONNX rounds negative quotients up.

    def groups(x):  # [B, heads, groups, size, head]
        x = _with_rows(x, count * size)
        return tf.reshape(x, [-1, x.shape[1], count, size, x.shape[3]])

    def near(x):  # [B, heads, groups, 3 size, head]
        x = groups(x)
        found = tf.stack([roll(x, 1, 2), x, roll(x, -1, 2)], axis=3)
        return tf.reshape(found, [-1, x.shape[1], count, 3 * size, x.shape[4]])

    apart = tf.range(3 * size) - tf.range(size, 2 * size)[:, None]
    place = tf.range(-1, count - 1)[:, None] * size + tf.range(3 * size)
    outside = tf.cast((place < 0) | (place >= length), tf.float32) * MASKED_SCORE
    bias = tf.squeeze(near(padding[:, :, 0, :, None]), -1) + outside
    bias = bias[:, :, :, None] + _local_bias(apart, reach, direction)
    context = attend(groups(query), near(key), near(value), bias, rate, seed)
    context = tf.reshape(context, [-1, heads, count * size, query.shape[3]])
    return _with_rows(context, length)


def _local_bias(apart: tf.Tensor, reach: int, direction: str) -> tf.Tensor:
    """The bias by the distance from query to key, float32."""
    visible = tf.abs(apart) <= reach
    if direction != "bidirectional":
        visible &= apart <= 0 if direction == "ltr" else apart >= 0
    return tf.where(visible, 0.0, MASKED_SCORE)


def roll(x: tf.Tensor, shift: int, axis: int) -> tf.Tensor:
    """tf.roll, with a gradient of its own for the reason of `swap_heads`."""

    @tf.custom_gradient
    def run(x):
        return tf.roll(x, shift, axis), lambda dy: tf.roll(dy, -shift, axis)

    return run(x)


def _with_rows(x: tf.Tensor, rows: int | tf.Tensor) -> tf.Tensor:
    """The first `rows` of [B, heads, L, n], zeros behind the last; see `swap_heads`."""

    def resized(x, rows):
        missing = tf.maximum(rows - _length(x), 0)
        return tf.pad(x, [[0, 0], [0, 0], [0, missing], [0, 0]])[:, :, :rows]

    @tf.custom_gradient
    def run(x):
        return resized(x, rows), lambda dy: resized(dy, _length(x))

    return run(x)


def _length(x: tf.Tensor) -> int | tf.Tensor:
    return x.shape[2] or tf.shape(x)[2]


def rotated(x: tf.Tensor, theta: float) -> tf.Tensor:
    """Rotary positions over whole heads: [B, heads, L, head] of the same type.

    Of each pair, one number is in the first half of a head, one in the second.
    """
    half = x.shape[3] // 2
    frequency = theta ** (-np.arange(half, dtype=np.float32) / half)
    place = tf.cast(tf.range(_length(x)), tf.float32)
    angle = place[:, None] * frequency  # [L, head / 2]
    cos, sin = tf.cos(angle), tf.sin(angle)
    y = tf.cast(x, tf.float32)
    turned = roll(y, half, 3) * tf.concat([-sin, sin], axis=1)
    return tf.cast(y * tf.concat([cos, cos], axis=1) + turned, x.dtype)
