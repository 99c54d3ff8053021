# SPDX-License-Identifier: Apache-2.0
"""The heads on tokens: was this one replaced, and which one is it?

Section 2 of the ELECTRA paper.

Electric needs log q at every position.  The scores of all positions at once would take
[B, L, V] floats (2 GB at 128 x 128 x 30,522), three times over with the backward pass;
`log_normalizer` has them for one chunk of positions at a time and computes them again
for the gradient.

Shapes: B batch, L length, M rows (positions), E embedding width, V vocabulary, C rows
in a chunk.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.config.objectives import DISCRIMINATOR_HEAD
from electra_tf.model import target
from electra_tf.model.layers import LayerNorm, activation, initializer

# Scores of more rows leave a CPU's caches between the passes over them; other devices
# need larger products.
_CPU_ROWS = 128
_ROWS = 1024


class PredictionHead(keras.layers.Layer):
    """Dense layer, activation, layer norm; alone, ModernBERT's below its classifier.

    Args:
      units: width of the output; None: that of the hidden states.
      has_norm: whether there is a layer norm.
    """

    def __init__(
        self,
        config: ModelConfig,
        name: str = "prediction_head",
        units: int | None = None,
        has_norm: bool = True,
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.units = units or config.hidden_size
        self.activation = activation(config.hidden_act)
        self.dense = keras.layers.Dense(
            self.units,
            name="dense",
            use_bias=config.kind.has_biases,
            dtype=self.dtype_policy,
            kernel_initializer=initializer(config.output_range),
        )
        self.layer_norm = None
        if has_norm:
            self.layer_norm = LayerNorm(config.kind, dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        if self.layer_norm is not None:
            self.layer_norm.build((None, self.units))

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Of hidden states [..., H]: [..., units]."""
        hidden = self.activation(self.dense(hidden))
        return hidden if self.layer_norm is None else self.layer_norm(hidden)


class DiscriminatorPredictions(PredictionHead):
    """Two dense layers that give each hidden state a score: [B, L, H] -> [B, L].

    On blocks that are pre-norm with a layer norm between them.
    """

    def __init__(self, config: ModelConfig, name: str = DISCRIMINATOR_HEAD, **kwargs):
        is_pre_norm = config.kind.is_pre_norm
        super().__init__(config, name, has_norm=is_pre_norm, **kwargs)
        # Glorot-uniform, as in the original, which names no initializer here.
        start: Any = "glorot_uniform"
        if is_pre_norm:
            start = initializer(config.hidden_size**-0.5)
        self.dense_1 = keras.layers.Dense(
            1, name="dense_1", dtype=self.dtype_policy, kernel_initializer=start
        )

    def build(self, input_shape=None):
        super().build((None, self.units))
        self.dense_1.build((None, self.units))

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Logits of "replaced", float32 [B, L]."""
        logits = self.dense_1(super().call(tf.reshape(hidden, [-1, self.units])))
        return tf.cast(tf.reshape(logits, tf.shape(hidden)[:-1]), tf.float32)


class MaskedLMHead(PredictionHead):
    """Hidden states to vocabulary scores through the transposed word embeddings.

    Named "generator_predictions" (masked positions) or "cloze_predictions" (all).
    A call transforms [..., H] to [..., E], where the word embeddings can score it.

    Args:
      hidden_size: of the states; None: as in the config.
    """

    def __init__(
        self,
        config: ModelConfig,
        embedding_size: int,
        name: str,
        hidden_size: int | None = None,
        **kwargs,
    ):
        super().__init__(config, name, embedding_size, **kwargs)
        self.vocab_size = config.vocab_size
        self.build((None, hidden_size or config.hidden_size))

    def build(self, input_shape):
        super().build(input_shape)
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.vocab_size,),
            initializer="zeros",
            autocast=False,
        )

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        flat = super().call(tf.reshape(hidden, [-1, hidden.shape[-1]]))
        return tf.reshape(flat, tf.concat([tf.shape(hidden)[:-1], [self.units]], 0))

    def logits(self, transformed: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
        """Scores of all tokens, float32 [..., V], from `call`'s output [..., E]."""
        flat = tf.reshape(transformed, [-1, self.units])
        scores = tf.matmul(flat, tf.cast(table, flat.dtype), transpose_b=True)
        scores = tf.cast(scores, tf.float32) + self.output_bias.value
        shape = tf.concat([tf.shape(transformed)[:-1], [self.vocab_size]], 0)
        scores = tf.reshape(scores, shape)
        return tf.ensure_shape(scores, transformed.shape[:-1] + [self.vocab_size])

    def log_normalizer(
        self, transformed: tf.Tensor, table: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Of the softmax at each position of `call`'s output [B, L, E], in chunks.

        Returns: float32 [B, L] and the most likely token int32 [B, L].
        """
        flat = tf.reshape(transformed, [-1, self.units])
        found = log_normalizer(flat, table, self.output_bias.value)
        return tuple(tf.reshape(x, tf.shape(transformed)[:-1]) for x in found)

    def scores(
        self, transformed: tf.Tensor, token_ids: tf.Tensor, table: tf.Tensor
    ) -> tf.Tensor:
        """The score of one token per position, by a dot product: float32 [B, L]."""
        vectors = tf.cast(tf.gather(table, token_ids), tf.float32)
        bias = tf.gather(self.output_bias.value, token_ids)
        return tf.reduce_sum(tf.cast(transformed, tf.float32) * vectors, -1) + bias


def log_normalizer(
    hidden: tf.Tensor, table: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """log sum_v exp(hidden . table_v + bias_v) for each row, and the best v.

    Args:
      hidden: float [M, E].
      table: float32 [V, E], the word embeddings.
      bias: float32 [V].

    Returns: float32 [M], differentiable in all three, and int32 [M].
    """
    static_rows, width = hidden.shape
    chunk_size = _CPU_ROWS if target.is_for_cpu() else _ROWS
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

        d_chunks = tf.TensorArray(chunks.dtype, num_chunks)
        _, d_chunks, d_table, d_bias = tf.while_loop(
            lambda i, *_: i < num_chunks,
            one_chunk_backward,
            (0, d_chunks, tf.zeros_like(table), tf.zeros_like(bias)),
            parallel_iterations=1,
        )
        return tf.reshape(d_chunks.stack(), tf.shape(chunks)), d_table, d_bias

    return (normalizer, best), gradient
