# SPDX-License-Identifier: Apache-2.0
"""Generators that are masked language models.

Shapes: B batch, L length, N masked positions, V vocabulary.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.config.generators import MASKED_LM_HEAD
from electra_tf.model.encoder import TextEncoder
from electra_tf.model.serialization import serializable
from electra_tf.pretrain import masking
from electra_tf.pretrain.generator import (
    Generator,
    GeneratorOutput,
    MaskedInputs,
    weighted_mean,
)
from electra_tf.pretrain.masked_lm_head import masked_lm_head


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
class MaskedLMGenerator(Generator):
    """A small masked language model (section 2 of the ELECTRA paper).

    Args:
      encoder: a built TextEncoder.
    """

    scoring = "mask_each"

    def __init__(self, encoder: TextEncoder, vocab_size: int, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.head = masked_lm_head(
            encoder,
            encoder.embedding_size,
            vocab_size,
            MASKED_LM_HEAD,
            self.dtype_policy,
        )
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
            config, width, embeddings=embeddings, name="generator", dtype=dtype
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
