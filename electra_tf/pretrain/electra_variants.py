# SPDX-License-Identifier: Apache-2.0
"""Variants of ELECTRA: fewer tokens, stages, an adversarial or frozen generator.

Shapes: B batch, L length, N masked positions, V vocabulary, H width.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.objectives import BASELINE
from electra_tf.model.layers import gather_positions, initializer
from electra_tf.pretrain import masking, metrics
from electra_tf.pretrain.generators import weighted_mean
from electra_tf.pretrain.objectives import Electra, Losses


class Electra15(Electra):
    """ELECTRA whose loss counts the masked positions only (section 3.5)."""

    model = "an ELECTRA 15 %"
    description = "ELECTRA 15 %: as ELECTRA, but it learned from the masked tokens only"
    # Its odds are those of the positions that it learned from: no log-probability.
    scoring = None

    def positions(self, inputs):
        length = tf.shape(inputs.input_ids)[1]
        masked = masking.positions_mask(inputs.masked_lm_positions, length)
        return tf.cast(masked, tf.float32)


class FrozenGenerator(Electra):
    """Replaced token detection alone; `init_generator` gives the generator.

    Fast-ELECTRA (Dong et al., ICLR 2024): no backward pass, gradients or optimizer
    slots of the generator; its temperature may fall in the training.
    """

    model = "an ELECTRA with a frozen generator"
    description = (
        "ELECTRA with a frozen generator (Fast-ELECTRA): a masked language model that "
        "was trained before replaced tokens, the model learned which"
    )

    def loss(self, model, text, seed, weights):
        losses = super().loss(model, text, seed, weights)
        loss = self.config.disc_weight * losses.discriminated.loss
        return losses._replace(loss=loss)


class TwoStage(FrozenGenerator):
    """The second stage: the discriminator learns, the generator is frozen.

    "Training algorithms" in section 3.2 of the ELECTRA paper: in the first stage, a
    phase of the objective mlm, the generator is trained as a masked language model; its
    weights initialise the discriminator. A finished model is in the second stage.
    """

    model = "a two-stage ELECTRA"
    description = (
        "two-stage ELECTRA: a masked language model was trained, its weights began the "
        "discriminator, which then learned while the generator stayed as it was"
    )


class Policy(NamedTuple):
    """The losses and rewards of an adversarial generator."""

    loss: tf.Tensor  # scalar: policy loss and the baseline's, means over the masked
    baseline_loss: tf.Tensor  # scalar
    reward: tf.Tensor  # float32 [B, N]
    baseline: tf.Tensor  # float32 [B, N]
    entropy: tf.Tensor  # float32 [B, N], of the generator's distribution, nats


class Adversarial(Electra):
    """The generator learns to mislead the discriminator: rewarded where that errs.

    Appendix F of the ELECTRA paper. Sampling lets no gradient through, so the generator
    learns by policy gradient instead of maximum likelihood: the reward of a sample is
    the discriminator's loss there, R = -log D if it is the original token, else
    -log(1 - D). As in the paper, a sample answers for the reward at its own position
    only.
    """

    model = "an adversarial ELECTRA"
    description = (
        "adversarial ELECTRA: a generator learned to mislead the model by the tokens "
        "that it replaced, the model learned which they are"
    )
    metrics = (*Electra.metrics, *metrics.POLICY_METRICS)

    def head(self, name, shape, dtype):
        if name != BASELINE:
            return super().head(name, shape, dtype)
        # The baseline -log sigmoid(w . h_G) has a weight for each of h_G, no bias.
        baseline = keras.layers.Dense(
            1,
            use_bias=False,
            name=BASELINE,
            dtype="float32",
            kernel_initializer=initializer(shape.initializer_range),
        )
        baseline.build((None, self.config.generator_config().hidden_size))
        return baseline

    def loss(self, model, text, seed, weights):
        _, sums, found = super().loss(model, text, seed, weights)
        inputs, generated = text.inputs, text.generated
        at = inputs.masked_lm_positions
        losses = tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(text.is_replaced, tf.float32), logits=found.logits
        )
        # Only the baseline's own weights learn from its loss.
        hidden = tf.stop_gradient(tf.cast(generated.hidden, tf.float32))
        policy = policy_of(
            generated.logits / text.temperature,
            gather_positions(text.ids, at),
            gather_positions(losses, at),
            tf.squeeze(model.generator_baseline(hidden), -1),
            inputs.masked_lm_weights,
            weights.generator,
        )
        # The policy's loss in place of the generator's likelihood.
        loss = self.config.gen_weight * policy.loss
        loss += self.config.disc_weight * found.loss
        counted = inputs.masked_lm_weights
        sums |= {
            "policy_loss": policy.loss,
            "baseline_loss": policy.baseline_loss,
            "entropy": tf.reduce_sum(policy.entropy * counted),
            "reward": tf.reduce_sum(policy.reward * counted),
            "baseline": tf.reduce_sum(policy.baseline * counted),
        }
        return Losses(loss, sums, found)


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
    # sigmoid learns its average.
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
