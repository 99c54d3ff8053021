# SPDX-License-Identifier: Apache-2.0
"""Attention in bounded memory: for some of the queries at a time, and again backward.

Of long sequences the probabilities of all queries, float32 [B, heads, L, L] and kept
for the backward pass, are most of what a step needs memory for.

Shapes: B batch, L length, C queries at a time.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf.model.dropout import dropout


class _Chunks(NamedTuple):
    """Rows of [B, heads, L, n], `size` at a time."""

    length: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.length // self.size)

    def padded(self, x: tf.Tensor) -> tf.Tensor:
        """With zeros behind the last row, so that all chunks are of one size."""
        missing = self.count * self.size - self.length
        return tf.pad(x, [[0, 0], [0, 0], [0, missing], [0, 0]])

    def at(self, x: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        """Chunk `i` of what is padded."""
        sizes = tf.concat([tf.shape(x)[:2], [self.size], tf.shape(x)[3:]], 0)
        return tf.slice(x, [0, 0, i * self.size, 0], sizes)

    def loop(self, body, dtype: tf.DType, *start: tf.Tensor) -> list[tf.Tensor]:
        """What `body` makes of (i, chunks, *start), the chunks joined."""
        chunks = tf.TensorArray(dtype, self.count)
        _, chunks, *others = tf.while_loop(
            lambda i, *_: i < self.count,
            body,
            (0, chunks, *start),
            parallel_iterations=1,
        )
        x = tf.transpose(chunks.stack(), [1, 2, 0, 3, 4])
        shape = tf.concat([tf.shape(x)[:2], [-1], tf.shape(x)[4:]], 0)
        return [tf.reshape(x, shape)[:, :, : self.length], *others]


def attend(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    score_bias: tf.Tensor,
    *,
    chunk_size: int,
    rate: float = 0.0,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """The values, weighted by the softmax of the scores: [B, heads, L, head].

    Args:
      query, key, value: float [B, heads, L, head]; the query is scaled.
      score_bias: float32 [B, 1, 1, L] or [B, 1, L, L], without a gradient.
      chunk_size: queries whose probabilities exist at one time.
      rate, seed: of the dropout of the probabilities, as `dropout` has them.
    """
    dtype = query.dtype
    chunks = _Chunks(query.shape[2], chunk_size)
    of_queries = score_bias.shape[2] != 1
    bias = chunks.padded(score_bias) if of_queries else score_bias

    def dropped(x: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        return dropout(x, rate, seed, rows=(i * chunk_size, chunks.length))

    @tf.custom_gradient
    def run(query, key, value):
        queries = chunks.padded(query)

        def probabilities(i):  # float32 [B, heads, C, L]
            scores = tf.matmul(chunks.at(queries, i), key, transpose_b=True)
            own = chunks.at(bias, i) if of_queries else bias
            return tf.nn.softmax(tf.cast(scores, tf.float32) + own)

        def forward(i, found):
            probs = dropped(tf.cast(probabilities(i), dtype), i)
            return i + 1, found.write(i, tf.matmul(probs, value))

        def gradient(d_context):
            d_rows = chunks.padded(d_context)

            def backward(i, d_queries, d_key, d_value):
                probs, own = probabilities(i), chunks.at(d_rows, i)
                d_probs = dropped(tf.matmul(own, value, transpose_b=True), i)
                d_probs = tf.cast(d_probs, tf.float32)
                level = tf.reduce_sum(d_probs * probs, axis=-1, keepdims=True)
                d_scores = tf.cast(probs * (d_probs - level), dtype)
                kept = dropped(tf.cast(probs, dtype), i)
                more_key = tf.matmul(d_scores, chunks.at(queries, i), transpose_a=True)
                more_value = tf.matmul(kept, own, transpose_a=True)
                d_key += tf.cast(more_key, tf.float32)
                d_value += tf.cast(more_value, tf.float32)
                d_queries = d_queries.write(i, tf.matmul(d_scores, key))
                return i + 1, d_queries, d_key, d_value

            nothing = tf.zeros_like(key, tf.float32)
            d_query, *others = chunks.loop(backward, dtype, nothing, nothing)
            return d_query, *(tf.cast(d, dtype) for d in others)

        return chunks.loop(forward, dtype)[0], gradient

    return run(query, key, value)
