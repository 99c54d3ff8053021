# SPDX-License-Identifier: Apache-2.0
"""The discriminator's head: was this token replaced?

Section 2 of the ELECTRA paper; with log q, the noise-contrastive head of the Electric
paper (section 2.2).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.config.objectives import DISCRIMINATOR_HEAD
from electra_tf.model.serialization import serializable
from electra_tf.model.transformer_layer import activation, initializer


class DiscriminatorOutput(NamedTuple):
    """Predictions on each token of a batch."""

    net_logits: tf.Tensor  # float32 [B, L], the head's own output
    logits: tf.Tensor  # float32 [B, L]; for Electric net_logits + log q + log odds
    probs: tf.Tensor  # float32 [B, L], that the token was replaced
    predictions: tf.Tensor  # int32 [B, L]
    per_example_loss: tf.Tensor  # float32 [B], mean over the tokens of a sequence
    loss: tf.Tensor  # scalar: mean over the tokens of the batch
    policy: NamedTuple | None = None  # `adversarial.Policy`, of the generator
    sentences: NamedTuple | None = None  # `electra_variants.Sentences`
    tokens: NamedTuple | None = None  # `token_objectives.TokenPredictions`


@serializable
class DiscriminatorPredictions(keras.layers.Layer):
    """Two dense layers that give each hidden state a score: [B, L, H] -> [B, L]."""

    def __init__(
        self,
        hidden_size: int,
        initializer_range: float = 0.02,
        hidden_act: str = "gelu",
        name: str = DISCRIMINATOR_HEAD,
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.hidden_size = hidden_size
        self.initializer_range = initializer_range
        self.hidden_act = hidden_act
        self.activation = activation(hidden_act)
        self.dense = keras.layers.Dense(
            hidden_size,
            name="dense",
            dtype=self.dtype_policy,
            kernel_initializer=initializer(initializer_range),
        )
        # Glorot-uniform, as in the original, which names no initializer here.
        self.dense_1 = keras.layers.Dense(1, name="dense_1", dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.dense.build((None, self.hidden_size))
        self.dense_1.build((None, self.hidden_size))

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Logits of "replaced", float32 [B, L]."""
        flat = tf.reshape(hidden, [-1, self.hidden_size])
        logits = self.dense_1(self.activation(self.dense(flat)))
        return tf.cast(tf.reshape(logits, tf.shape(hidden)[:-1]), tf.float32)


def discriminator_head(
    config: ModelConfig, dtype, name: str = DISCRIMINATOR_HEAD
) -> DiscriminatorPredictions:
    """The built head on an encoder of the shape `config`."""
    shape = config.hidden_size, config.initializer_range, config.hidden_act
    layer = DiscriminatorPredictions(*shape, name=name, dtype=dtype)
    layer.build()
    return layer


def noise_contrastive_logits(
    net_logits: tf.Tensor, log_q: tf.Tensor, mask_prob: float
) -> tf.Tensor:
    """Electric's posterior log odds that a token is noise rather than data.

    Noise comes with density q and prior mask_prob; the head models the rest.  All
    float32 [B, L]; no gradient reaches q (Electric paper, equation 4).
    """
    return net_logits + tf.stop_gradient(log_q) + math.log(mask_prob / (1 - mask_prob))


def log_probability(logits: tf.Tensor, log_q: tf.Tensor, mask_prob: float) -> tf.Tensor:
    """log p of tokens by ELECTRA's discriminator and the generator it learned from.

    The best discriminator knows p and q: of a token x, D = p (a + q) / (a p + q), where
    a = (1 - mask_prob) / mask_prob, because a sample that is the original counts as
    original. So p = D q / (a (1 - D) + q) (appendix G of the ELECTRA paper). All
    float32 [B, L].
    """
    log_a = math.log((1 - mask_prob) / mask_prob)
    log_sum = tf.stack([log_a + tf.math.log_sigmoid(logits), log_q])
    return tf.math.log_sigmoid(-logits) + log_q - tf.reduce_logsumexp(log_sum, axis=0)


def discriminator_output(
    net_logits: tf.Tensor,
    logits: tf.Tensor,
    is_replaced: tf.Tensor,
    weights: tf.Tensor,
    total_weight: tf.Tensor | None,
    epsilon: float,
) -> DiscriminatorOutput:
    """Binary cross-entropy of `logits` [B, L] over the tokens that count.

    Args:
      is_replaced: bool [B, L], the labels.
      weights: float32 [B, L], 1 at the tokens that count.
      total_weight: sum of the weights of the global batch; None: of this one.
    """
    losses = weights * tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.cast(is_replaced, tf.float32), logits=logits
    )
    tokens = tf.reduce_sum(weights, axis=-1)
    if total_weight is None:
        total_weight = tf.reduce_sum(tokens)
    return DiscriminatorOutput(
        net_logits=net_logits,
        logits=logits,
        probs=tf.sigmoid(logits),
        # A logit of 0 counts as "original", as in the original program.
        predictions=tf.cast(logits > 0, tf.int32),
        per_example_loss=tf.reduce_sum(losses, axis=-1) / (tokens + epsilon),
        loss=tf.reduce_sum(losses) / (total_weight + epsilon),
    )
