# SPDX-License-Identifier: Apache-2.0
"""Adversarial ELECTRA: the generator learns to mislead the discriminator.

Appendix F of the ELECTRA paper. Sampling lets no gradient through, so the generator
learns by policy gradient instead of maximum likelihood: the reward of a sample is the
discriminator's loss there, R = -log D if it is the original token, else -log(1 - D).
As in the paper, a sample answers for the reward at its own position only.

Shapes: B batch, L length, N masked positions, V vocabulary, H width.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.objectives import BASELINE
from electra_tf.model.transformer_layer import initializer
from electra_tf.pretrain import masking, metrics
from electra_tf.pretrain.generator import weighted_mean
from electra_tf.pretrain.objectives import Electra


class Policy(NamedTuple):
    """What an adversarial generator learns from."""

    loss: tf.Tensor  # scalar: policy loss and the baseline's, means over the masked
    baseline_loss: tf.Tensor  # scalar
    reward: tf.Tensor  # float32 [B, N]
    baseline: tf.Tensor  # float32 [B, N]
    entropy: tf.Tensor  # float32 [B, N], of the generator's distribution, nats


class Adversarial(Electra):
    """The generator is rewarded where the discriminator errs."""

    name = "adversarial"
    model = "an adversarial ELECTRA"
    description = (
        "adversarial ELECTRA: a generator learned to mislead the model by the tokens "
        "that it replaced, the model learned which they are"
    )
    metrics = (*Electra.metrics, *metrics.POLICY_METRICS)

    def head(self, name, config, dtype):
        if name != BASELINE:
            return super().head(name, config, dtype)
        # The baseline -log sigmoid(w . h_G) has a weight for each of h_G, no bias.
        baseline = keras.layers.Dense(
            1,
            use_bias=False,
            name=BASELINE,
            dtype="float32",
            kernel_initializer=initializer(config.initializer_range),
        )
        baseline.build((None, self.settings.generator_width))
        return baseline

    def discriminate(self, model, text, seed, weights):
        found = super().discriminate(model, text, seed, weights)
        inputs, generated = text.inputs, text.generated
        at = inputs.masked_lm_positions
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(text.is_replaced, tf.float32), logits=found.logits
        )
        # Only the baseline's own weights learn from its loss.
        hidden = tf.stop_gradient(tf.cast(generated.hidden, tf.float32))
        policy = policy_of(
            generated.logits / self.settings.temperature,
            masking.gather_positions(text.ids, at),
            masking.gather_positions(losses, at),
            tf.squeeze(model.generator_baseline(hidden), -1),
            inputs.masked_lm_weights,
            weights.generator,
        )
        return found._replace(policy=policy)

    def total_loss(self, generated, discriminated):
        # In place of the generator's likelihood.
        taught = generated._replace(loss=discriminated.policy.loss)
        return super().total_loss(taught, discriminated)

    def sums(self, output, batch):
        policy, weights = output.discriminated.policy, batch["masked_lm_weights"]
        return super().sums(output, batch) | {
            "entropy": tf.reduce_sum(policy.entropy * weights),
            "reward": tf.reduce_sum(policy.reward * weights),
            "baseline": tf.reduce_sum(policy.baseline * weights),
        }


def policy_of(
    logits: tf.Tensor,
    samples: tf.Tensor,
    reward: tf.Tensor,
    baseline_logits: tf.Tensor,
    weights: tf.Tensor,
    total,
) -> Policy:
    """The losses whose gradients are those of the policy and of its baseline.

    Args:
      logits: float32 [B, N, V], whose softmax gave `samples` int32 [B, N].
      reward: float32 [B, N], the discriminator's loss; nothing learns through it.
      baseline_logits: float32 [B, N], w . h_G.
      weights: float32 [B, N], 1 at the samples that count; `total`: how many these are
        in the global batch; None: in this one.
    """
    reward = tf.stop_gradient(reward)
    baseline = -tf.math.log_sigmoid(baseline_logits)
    log_p = tf.nn.log_softmax(logits)
    log_p_sample = tf.gather(log_p, samples, batch_dims=2)
    advantage = tf.stop_gradient(reward - baseline)
    # exp(-reward) is the probability that the discriminator is right; the baseline's
    # sigmoid is to be what it is on average.
    baseline_losses = tf.nn.sigmoid_cross_entropy_with_logits(
        labels=tf.exp(-reward), logits=baseline_logits
    )
    baseline_loss = weighted_mean(baseline_losses, weights, total)
    return Policy(
        weighted_mean(-log_p_sample * advantage, weights, total) + baseline_loss,
        baseline_loss,
        reward,
        baseline,
        -tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1),
    )
