# SPDX-License-Identifier: Apache-2.0
"""The log-normaliser of a softmax over the vocabulary, in bounded memory.

Electric needs log q at every position.  The scores of all positions at once would take
[B, L, V] floats (2 GB at 128 x 128 x 30,522), three times over with the backward pass;
here they exist for one chunk of positions at a time and are computed again when
the gradient is.

Shapes: M rows (positions), E embedding width, V vocabulary, C rows in a chunk.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.model import target

# Scores of more rows leave a CPU's caches between the passes over them; other devices
# need larger products.
_CPU_ROWS = 128
_ROWS = 1024


def log_normalizer(
    hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor, chunk_size: int | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """log sum_v exp(hidden . table_v + bias_v) for each row, and the best v.

    Args:
      hidden: float [M, E].
      table: float32 [V, E], the word embeddings.
      bias: float32 [V].
      chunk_size: rows whose scores exist at one time; the result does not depend on it.
        None: what suits the device.

    Returns: float32 [M], differentiable in all three, and int32 [M].
    """
    static_rows, width = hidden.shape
    chunk_size = chunk_size or (_CPU_ROWS if target.is_for_cpu() else _ROWS)
    if static_rows is not None:
        chunk_size = max(1, min(chunk_size, static_rows))
    rows = static_rows or tf.shape(hidden)[0]
    num_chunks = -(-rows // chunk_size)
    padded = tf.pad(hidden, [[0, num_chunks * chunk_size - rows], [0, 0]])
    chunks = tf.reshape(padded, [num_chunks, chunk_size, width])
    normalizer, best = _of_chunks(chunks, table, bias)
    return tf.reshape(normalizer, [-1])[:rows], tf.reshape(best, [-1])[:rows]


@tf.custom_gradient
def _of_chunks(chunks, table, bias):
    """`log_normalizer` of [chunks, C, E]: float32 and int32 [chunks, C]."""
    weights = tf.cast(table, chunks.dtype)

    def scores(chunk):
        products = tf.matmul(chunk, weights, transpose_b=True)
        return tf.cast(products, tf.float32) + bias  # [C, V]

    def one_chunk(chunk):
        logits = scores(chunk)
        best = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return tf.reduce_logsumexp(logits, axis=-1), best

    normalizer, best = tf.map_fn(
        one_chunk,
        chunks,
        parallel_iterations=1,
        fn_output_signature=(tf.float32, tf.int32),
    )

    def gradient(d_normalizer, _):
        num_chunks = tf.shape(chunks)[0]

        def one_chunk_backward(i, d_chunks, d_table, d_bias):
            chunk = chunks[i]
            probabilities = tf.exp(scores(chunk) - normalizer[i][:, None])
            d_scores = probabilities * d_normalizer[i][:, None]  # [C, V]
            d_bias += tf.reduce_sum(d_scores, axis=0)
            d_scores = tf.cast(d_scores, chunk.dtype)
            d_chunks = d_chunks.write(i, tf.matmul(d_scores, weights))
            d_rows = tf.matmul(d_scores, chunk, transpose_a=True)
            return i + 1, d_chunks, d_table + tf.cast(d_rows, tf.float32), d_bias

        _, d_chunks, d_table, d_bias = tf.while_loop(
            lambda i, *_: i < num_chunks,
            one_chunk_backward,
            (
                0,
                tf.TensorArray(chunks.dtype, num_chunks),
                tf.zeros_like(table),
                tf.zeros_like(bias),
            ),
            parallel_iterations=1,
        )
        return tf.reshape(d_chunks.stack(), tf.shape(chunks)), d_table, d_bias

    return (normalizer, best), gradient
