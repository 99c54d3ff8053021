# SPDX-License-Identifier: Apache-2.0
"""Objectives: what the main network reads and predicts, its loss and its metrics.

Here are the contract, the objectives of the original and ELECTRA's variants; those
that predict tokens are in `token_objectives`.
`pretraining.ElectraPretrainer.call` generates and corrupts; the objective is the
main network's part.

Shapes: B batch, L length, N masked positions, H width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.config.objectives import BASELINE, DISCRIMINATOR_HEAD, OBJECTIVES
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.model.heads import DiscriminatorPredictions, MaskedLMHead
from electra_tf.model.layers import gather_positions, initializer
from electra_tf.pretrain import masking, metrics
from electra_tf.pretrain.generators import (
    GeneratorOutput,
    MaskedInputs,
    class_of,
    weighted_mean,
)
from electra_tf.pretrain.metrics import EPSILON, NUM_THRESHOLDS, THRESHOLDS
from electra_tf.train.reporting import Metric


def count(flags: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The sum of the weights where the flags are set."""
    return tf.reduce_sum(tf.cast(flags, tf.float32) * weights)


def histogram(probs, labels, weights) -> tf.Tensor:
    """Weight of [negatives, positives] per number of thresholds below the score."""
    bucket = tf.searchsorted(THRESHOLDS, tf.reshape(probs, [-1]), side="left")
    cell = bucket + (NUM_THRESHOLDS + 1) * tf.cast(tf.reshape(labels, [-1]), tf.int32)
    size = 2 * (NUM_THRESHOLDS + 1)
    sums = tf.math.unsorted_segment_sum(tf.reshape(weights, [-1]), cell, size)
    return tf.reshape(sums, [2, NUM_THRESHOLDS + 1])


class LossWeights(NamedTuple):
    """Divisors of losses, of the global batch; None: of the batch at hand."""

    generator: tf.Tensor | None = None  # positions that the generator's loss counts
    tokens: tf.Tensor | None = None  # those that the main network's loss counts
    masked: tf.Tensor | None = None  # masked positions


class CorruptedText(NamedTuple):
    """A text with the generator's samples, and its sources."""

    ids: tf.Tensor  # int32 [B, L]
    is_replaced: tf.Tensor  # bool [B, L], the labels
    inputs: MaskedInputs
    generated: GeneratorOutput
    sampled_ids: tf.Tensor  # int32 [B, N]
    temperature: float | tf.Tensor = 1.0  # of the samples; a tensor is [B, 1]

    def states(self, encoder, seed: tf.Tensor | None) -> tf.Tensor:
        """The hidden states that an encoder gives it, [B, L, H]."""
        inputs = self.inputs
        encoded = encoder(self.ids, inputs.input_mask, inputs.segment_ids, seed)
        return encoded.sequence_output

    def sums(self) -> dict[str, tf.Tensor]:
        """The sums that GENERATOR_METRICS and SAMPLED_ACCURACY need."""
        weights, ids = self.inputs.masked_lm_weights, self.inputs.masked_lm_ids
        losses = self.generated.per_token_loss
        return {
            "masked": tf.reduce_sum(weights),
            "masked_correct": count(self.generated.predictions == ids, weights),
            "masked_loss": tf.reduce_sum(losses * weights),
            "sampled_correct": count(self.sampled_ids == ids, weights),
        }


class Losses(NamedTuple):
    """What an objective computes for a CorruptedText.

    Attributes:
      loss: the scalar that is minimised.
      sums: what `metrics` need, scalars and histograms, of a batch or of a part of it;
        they add up over batches and replicas. Those that nothing reads are pruned.
      discriminated: predictions on each token, with `probs` float32 [B, L], that it was
        replaced; None if there are none.
    """

    loss: tf.Tensor
    sums: dict[str, tf.Tensor]
    discriminated: Any = None


class DiscriminatorOutput(NamedTuple):
    """Predictions on each token of a batch."""

    net_logits: tf.Tensor  # float32 [B, L], the head's own output
    logits: tf.Tensor  # float32 [B, L]; for Electric net_logits + log q + log odds
    probs: tf.Tensor  # float32 [B, L], that the token was replaced
    predictions: tf.Tensor  # int32 [B, L]
    per_example_loss: tf.Tensor  # float32 [B], mean over the tokens of a sequence
    loss: tf.Tensor  # scalar: mean over the tokens of the batch


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


class Objective:
    """What is learned; the contract of all objectives.

    By itself it is that of a generator, whose main network has no part in the loss.

    Attributes:
      model: what a model trained with it is called, for messages.
      description: how such a model was trained, for model cards.
      tag: of model cards, None for none beside "electra".
      scoring: the name in `scoring.METHODS` of the scores that the main network's
        own predictions give, None if they give none.
      needs_log_q: whether the generator must have `log_q`.
      metrics: of training and evaluation.

    Args:
      config: of a phase, or of a finished model.
    """

    model: str
    description: str
    tag: str | None = None
    scoring: str | None = None
    needs_log_q = False
    metrics: tuple[Metric, ...] = (metrics.LOSS, *metrics.GENERATOR_METRICS)

    def __init__(self, config: PretrainingConfig):
        self.config = config

    def heads(self, shape: ModelConfig, dtype) -> list[keras.layers.Layer]:
        """The built heads of its row; each is an attribute of the model by its name."""
        names = OBJECTIVES[self.config.objective].heads
        return [self.head(name, shape, dtype) for name in names]

    def head(self, name: str, shape: ModelConfig, dtype) -> keras.layers.Layer:
        """One built head."""
        if name == DISCRIMINATOR_HEAD:
            layer = DiscriminatorPredictions(shape, name=name, dtype=dtype)
            layer.build()
            return layer
        return MaskedLMHead(shape, self.config.embedding_size, name, dtype=dtype)

    def is_replaced(
        self, masked: tf.Tensor, corrupted_ids: tf.Tensor, input_ids: tf.Tensor
    ) -> tf.Tensor:
        """The labels, bool [B, L].

        Args:
          masked: bool [B, L], the positions that the generator filled.
          corrupted_ids, input_ids: int32 [B, L], with and without its samples.
        """
        return masked & (corrupted_ids != input_ids)

    @property
    def counts_all_tokens(self) -> bool:
        """Whether the main network's loss counts all tokens, as its metrics do."""
        return type(self).positions is Objective.positions

    def positions(self, inputs: MaskedInputs) -> tf.Tensor:
        """1 at the positions that the main network's loss counts, float32 [B, L]."""
        return tf.cast(inputs.input_mask, tf.float32)

    def loss(
        self, model, text: CorruptedText, seed: tf.Tensor | None, weights: LossWeights
    ) -> Losses:
        """The loss, the sums of metrics and the main network's predictions.

        Args:
          model: the ElectraPretrainer.
          seed: int32 [2], decides the dropout; None: no dropout.
          weights: of the global batch.
        """
        return Losses(self.config.gen_weight * text.generated.loss, text.sums())


class MaskedLM(Objective):
    """Masked language modeling, as in BERT: the tied generator is all there is."""

    model = "a masked language model"
    description = "a masked language model, trained as BERT"
    tag = "fill-mask"


class TwoTower(Objective):
    """The cloze loss of two towers that are the whole model (Electric paper, 3.2)."""

    model = "a two-tower cloze model"
    description = (
        "a two-tower cloze model: one transformer read from left to right, one from "
        "right to left, and together they predicted each token (Electric paper)"
    )


class Electra(Objective):
    """Replaced token detection (ELECTRA paper, section 2)."""

    model = "an ELECTRA"
    description = (
        "ELECTRA: a generator replaced tokens, the model learned which "
        "(Clark et al., ICLR 2020)"
    )
    scoring = "discriminator"
    metrics = (*Objective.metrics, *metrics.DISCRIMINATOR_METRICS)

    def loss(self, model, text, seed, weights):
        return self.detect(model, text, text.states(model.electra, seed), weights)

    def detect(self, model, text, hidden: tf.Tensor, weights) -> Losses:
        """Both networks' losses, from the hidden states [B, L, H]."""
        net_logits = model.discriminator_predictions(hidden)
        logits = self.logits(model, net_logits, text.generated, text.ids)
        counted = self.positions(text.inputs)
        losses = counted * tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(text.is_replaced, tf.float32), logits=logits
        )
        tokens = tf.reduce_sum(counted, axis=-1)
        total = tf.reduce_sum(tokens) if weights.tokens is None else weights.tokens
        found = DiscriminatorOutput(
            net_logits=net_logits,
            logits=logits,
            probs=tf.sigmoid(logits),
            # A logit of 0 counts as "original", as in the original program.
            predictions=tf.cast(logits > 0, tf.int32),
            per_example_loss=tf.reduce_sum(losses, axis=-1) / (tokens + EPSILON),
            loss=tf.reduce_sum(losses) / (total + EPSILON),
        )
        loss = self.config.gen_weight * text.generated.loss
        loss += self.config.disc_weight * found.loss
        return Losses(loss, text.sums() | _detection_sums(found, text), found)

    def logits(self, model, net_logits, generated, ids) -> tf.Tensor:
        """Log odds that each token was replaced, from the head's output: [B, L]."""
        return net_logits


def _detection_sums(
    found: DiscriminatorOutput, text: CorruptedText
) -> dict[str, tf.Tensor]:
    """The sums that DISCRIMINATOR_METRICS need."""
    mask = tf.cast(text.inputs.input_mask, tf.float32)
    labels = tf.cast(text.is_replaced, tf.int32)
    right = found.predictions == labels
    flagged = tf.cast(found.predictions, tf.float32) * mask
    fake = tf.cast(labels, tf.float32) * mask
    return {
        "sequences": tf.cast(tf.shape(labels)[0], tf.float32),
        "discriminator_loss": found.loss,
        "disc_loss": tf.reduce_sum(found.per_example_loss),
        "tokens": tf.reduce_sum(mask),
        "disc_correct": count(right, mask),
        "disc_flagged": tf.reduce_sum(flagged),
        "disc_flagged_correct": count(right, flagged),
        "disc_fake": tf.reduce_sum(fake),
        "disc_fake_correct": count(right, fake),
        # The original's AUC counts padding as tokens of label 0 and probability 0.
        "auc": histogram(found.probs * mask, fake, tf.ones_like(mask)),
        "auc_tokens": histogram(found.probs, fake, mask),
    }


class Electric(Electra):
    """Noise-contrastive estimation with the generator as noise (Electric paper, 2.2).

    A sample that is the original token is noise all the same.
    """

    model = "an Electric"
    description = (
        "Electric: an energy-based cloze model, trained by noise-contrastive "
        "estimation (Clark et al., EMNLP 2020)"
    )
    tag = "electric"
    scoring = "electric"
    needs_log_q = True

    def is_replaced(self, masked, corrupted_ids, input_ids):
        return masked

    def logits(self, model, net_logits, generated, ids):
        log_q = model.generator.log_q(generated, ids)
        return noise_contrastive_logits(net_logits, log_q, self.config.mask_prob)


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
        policy_loss, policy_sums = policy_of(
            generated.logits / text.temperature,
            gather_positions(text.ids, at),
            gather_positions(losses, at),
            tf.squeeze(model.generator_baseline(hidden), -1),
            inputs.masked_lm_weights,
            weights.generator,
        )
        # The policy's loss in place of the generator's likelihood.
        loss = self.config.gen_weight * policy_loss
        loss += self.config.disc_weight * found.loss
        return Losses(loss, sums | policy_sums, found)


def policy_of(
    logits: tf.Tensor,
    samples: tf.Tensor,
    reward: tf.Tensor,
    baseline_logits: tf.Tensor,
    weights: tf.Tensor,
    total,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """The loss whose gradients are those of the policy and its baseline; its sums.

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
    loss = weighted_mean(-log_p_sample * advantage, weights, total) + baseline_loss
    entropy = -tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)
    return loss, {
        "policy_loss": loss,
        "baseline_loss": baseline_loss,
        "entropy": tf.reduce_sum(entropy * weights),
        "reward": tf.reduce_sum(reward * weights),
        "baseline": tf.reduce_sum(baseline * weights),
    }


def objective_of(name: str, config: PretrainingConfig) -> Objective:
    """The objective of a key of `config.objectives.OBJECTIVES`."""
    return class_of(OBJECTIVES[name])(config)
