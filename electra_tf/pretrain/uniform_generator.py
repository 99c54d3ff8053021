# SPDX-License-Identifier: Apache-2.0
"""A generator that draws every token with the same probability."""

from __future__ import annotations

import math

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
