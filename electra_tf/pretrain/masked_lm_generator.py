# SPDX-License-Identifier: Apache-2.0
"""Generators that are masked language models, and the head of all that predict tokens.

Shapes: B batch, L length, N masked positions, E embedding width, V vocabulary.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf.model.encoder import TextEncoder
from electra_tf.model.serialization import serializable
from electra_tf.model.transformer_layer import LayerNorm, activation, initializer
from electra_tf.pretrain import masking
from electra_tf.pretrain.generator import (
    FillsMasks,
    Generator,
    GeneratorOutput,
    MaskedInputs,
    weighted_mean,
)
from electra_tf.pretrain.vocabulary_softmax import log_normalizer


@serializable
class MaskedLMHead(keras.layers.Layer):
    """Hidden states to vocabulary scores through the transposed word embeddings.

    Named "generator_predictions" (masked positions) or "cloze_predictions" (all).
    """

    def __init__(
        self,
        embedding_size: int,
        vocab_size: int,
        name: str,
        hidden_act: str = "gelu",
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.activation = activation(hidden_act)
        self.embedding_size = embedding_size
        self.vocab_size = vocab_size
        self.dense = keras.layers.Dense(
            embedding_size,
            name="dense",
            dtype=self.dtype_policy,
            kernel_initializer=initializer(initializer_range),
        )
        self.layer_norm = LayerNorm(dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.layer_norm.build((None, self.embedding_size))
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.vocab_size,),
            initializer="zeros",
            autocast=False,
        )

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Transforms [..., H] to [..., E], where the word embeddings can score it."""
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        flat = self.layer_norm(self.activation(self.dense(flat)))
        return tf.reshape(
            flat, tf.concat([tf.shape(hidden)[:-1], [self.embedding_size]], 0)
        )

    def logits(self, transformed: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
        """Scores of all tokens, float32 [..., V], from `call`'s output [..., E]."""
        flat = tf.reshape(transformed, [-1, self.embedding_size])
        scores = tf.matmul(flat, tf.cast(table, flat.dtype), transpose_b=True)
        scores = tf.cast(scores, tf.float32) + self.output_bias.value
        shape = tf.concat([tf.shape(transformed)[:-1], [self.vocab_size]], 0)
        return tf.ensure_shape(
            tf.reshape(scores, shape), transformed.shape[:-1] + [self.vocab_size]
        )

    def log_normalizer(
        self, transformed: tf.Tensor, table: tf.Tensor, chunk_size: int | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Of the softmax at each position of `call`'s output [B, L, E], in chunks.

        Returns: float32 [B, L] and the most likely token int32 [B, L].
        """
        flat = tf.reshape(transformed, [-1, self.embedding_size])
        found = log_normalizer(flat, table, self.output_bias.value, chunk_size)
        return tuple(tf.reshape(x, tf.shape(transformed)[:-1]) for x in found)

    def scores(
        self, transformed: tf.Tensor, token_ids: tf.Tensor, table: tf.Tensor
    ) -> tf.Tensor:
        """The score of one token per position, by a dot product: float32 [B, L]."""
        vectors = tf.cast(tf.gather(table, token_ids), tf.float32)
        bias = tf.gather(self.output_bias.value, token_ids)
        return tf.reduce_sum(tf.cast(transformed, tf.float32) * vectors, -1) + bias


def masked_lm_head(config, embedding_size: int, name: str, dtype) -> MaskedLMHead:
    """The built head on an encoder of the shape `config`."""
    head = MaskedLMHead(
        embedding_size,
        config.vocab_size,
        name=name,
        hidden_act=config.hidden_act,
        initializer_range=config.initializer_range,
        dtype=dtype,
    )
    head.build((None, config.hidden_size))
    return head


def masked_lm_output(
    logits: tf.Tensor, inputs: MaskedInputs, weight
) -> GeneratorOutput:
    """Cross-entropy of `logits` [B, N, V] at the masked positions."""
    per_token = tf.nn.sparse_softmax_cross_entropy_with_logits(
        inputs.masked_lm_ids, logits
    )
    loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
    # As a matrix: a TPU would copy the scores to have them in three dimensions.
    rows = tf.reshape(logits, [-1, logits.shape[-1]])
    best = tf.argmax(rows, axis=-1, output_type=tf.int32)
    predictions = tf.reshape(best, tf.shape(per_token))
    return GeneratorOutput(logits, per_token, loss, predictions, loss)


@serializable
class MaskedLMGenerator(Generator, FillsMasks):
    """A small masked language model (section 2 of the ELECTRA paper).

    Args:
      encoder: a built TextEncoder.
    """

    scoring = "mask_each"

    def __init__(self, encoder: TextEncoder, vocab_size: int, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.head = MaskedLMHead(
            encoder.embedding_size,
            vocab_size,
            name="generator_predictions",
            hidden_act=encoder.hidden_act,
            initializer_range=encoder.initializer_range,
            dtype=self.dtype_policy,
        )
        self.head.build((None, encoder.hidden_size))
        self.built = True

    @classmethod
    def create(cls, encoder, config, settings, dtype):
        sharing, embeddings = settings.embedding_sharing, None
        width = encoder.embedding_size
        # A frozen one was trained as a model by itself, or with shared embeddings.
        if sharing == "untied" and settings.objective != "frozen_generator":
            width = config.hidden_size
        if sharing == "shared":
            embeddings = encoder.embeddings
        elif sharing == "disentangled":
            embeddings = encoder.embeddings.base
        generator = TextEncoder(
            config,
            width,
            embeddings=embeddings,
            name="generator",
            dtype=dtype,
        )
        generator.build(None)
        return cls(generator, config.vocab_size, name="masked_lm", dtype=dtype)

    def call(
        self, inputs: MaskedInputs, seed: tf.Tensor | None = None, weight=None
    ) -> GeneratorOutput:
        text = inputs.masked_input_ids, inputs.input_mask, inputs.segment_ids
        hidden = self._hidden_at(*text, inputs.masked_lm_positions, seed)
        found = masked_lm_output(self._logits(hidden), inputs, weight)
        return found._replace(hidden=hidden)

    def logits_at(self, input_ids, input_mask, segment_ids, positions):
        return self._logits(
            self._hidden_at(input_ids, input_mask, segment_ids, positions)
        )

    def _hidden_at(self, input_ids, input_mask, segment_ids, positions, seed=None):
        encoded = self.encoder(input_ids, input_mask, segment_ids, seed)
        return masking.gather_positions(encoded.sequence_output, positions)

    def _logits(self, hidden: tf.Tensor) -> tf.Tensor:
        table = self.encoder.embeddings.word_embeddings.value
        return self.head.logits(self.head(hidden), table)


@serializable
class TiedGenerator(MaskedLMGenerator):
    """Shares every weight but its head with the main network."""

    @classmethod
    def create(cls, encoder, config, settings, dtype):
        del settings
        return cls(encoder, config.vocab_size, name="tied", dtype=dtype)
