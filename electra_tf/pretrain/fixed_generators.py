# SPDX-License-Identifier: Apache-2.0
"""Generators that learn nothing and look at no context.

They draw every token with the same probability, or by its frequency in the data.
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from electra_tf.model.serialization import serializable
from electra_tf.pretrain import masking
from electra_tf.pretrain.generator import Generator, GeneratorOutput, weighted_mean


@serializable
class UniformGenerator(Generator):
    """Every token is equally likely; nothing is learned."""

    def __init__(self, vocab_size: int, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.built = True

    @classmethod
    def create(cls, encoder, config, settings, dtype):
        del encoder, settings
        return cls(config.vocab_size, name="uniform", dtype=dtype)

    def call(self, inputs, seed=None, weight=None) -> GeneratorOutput:
        per_token = tf.fill(
            tf.shape(inputs.masked_lm_ids), tf.constant(math.log(self.vocab_size))
        )
        # The constant loss is part of the original's total loss.
        loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
        predictions = tf.zeros_like(inputs.masked_lm_ids)
        return GeneratorOutput(None, per_token, loss, predictions, loss)

    def sample(self, generated, uniform, temperature=1.0, disallowed_ids=None):
        del generated, temperature
        return masking.sample_uniformly(
            uniform, self.vocab_size, disallowed_ids=disallowed_ids
        )


@serializable
class UnigramGenerator(Generator):
    """q(token) is proportional to its count, whatever is around it.

    `adapt` takes over the counts that the builders of data write, and they are kept
    with the weights.
    """

    def __init__(self, vocab_size: int, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size

    @classmethod
    def create(cls, encoder, config, settings, dtype):
        del encoder, settings
        generator = cls(config.vocab_size, name="unigram_generator", dtype=dtype)
        generator.build()
        return generator

    def build(self, input_shape=None):
        del input_shape
        # Counts rather than probabilities: whole numbers survive every conversion.
        self.token_counts = self.add_weight(
            name="token_counts",
            shape=(self.vocab_size,),
            initializer="ones",
            trainable=False,
            autocast=False,
        )

    def adapt(self, token_counts: np.ndarray) -> None:
        """Takes over how often each token is in the training data, [V]."""
        self.token_counts.assign(token_counts.astype(np.float32))

    def call(self, inputs, seed=None, weight=None) -> GeneratorOutput:
        del seed
        per_token = -tf.gather(self._log_probabilities(), inputs.masked_lm_ids)
        loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
        best = tf.argmax(self.token_counts.value, output_type=tf.int32)
        predictions = tf.fill(tf.shape(inputs.masked_lm_ids), best)
        return GeneratorOutput(None, per_token, loss, predictions, loss)

    def sample(self, generated, uniform, temperature=1.0, disallowed_ids=None):
        del generated
        weights = self.token_counts.value
        if temperature != 1.0:
            # Of at most 1: a low temperature makes powers that float32 does not hold.
            weights = (weights / tf.reduce_max(weights)) ** (1.0 / temperature)
        return masking.sample_by_weight(weights, uniform, disallowed_ids=disallowed_ids)

    def log_q(self, generated, token_ids):
        del generated
        return tf.gather(self._log_probabilities(), token_ids)

    def _log_probabilities(self) -> tf.Tensor:
        """log q of every token, float32 [V].

        A token that the data do not have is never drawn; it has the probability of one
        that is there once, so that no loss is infinite on other texts.
        """
        counts = self.token_counts.value
        total = tf.reduce_sum(counts)
        return tf.math.log(tf.maximum(counts, 1.0)) - tf.math.log(total)
