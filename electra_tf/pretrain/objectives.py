# SPDX-License-Identifier: Apache-2.0
"""Objectives: what the main network reads and predicts, its loss and its metrics.

Here are the contract and the objectives of the original; the others are in
`electra_variants` and `token_objectives`.
`pretraining.ElectraPretrainer.call` generates and corrupts; the objective is the
main network's part.

Shapes: B batch, L length.
"""

from __future__ import annotations

import importlib
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.config.objectives import DISCRIMINATOR_HEAD, OBJECTIVES
from electra_tf.pretrain import metrics
from electra_tf.pretrain.generators import GeneratorOutput, MaskedInputs
from electra_tf.pretrain.heads import (
    DiscriminatorOutput,
    DiscriminatorPredictions,
    discriminator_output,
    masked_lm_head,
    noise_contrastive_logits,
)
from electra_tf.pretrain.metrics import NUM_THRESHOLDS, THRESHOLDS
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
    discriminator: tf.Tensor | None = None  # those that the main network's counts


class CorruptedText(NamedTuple):
    """A text with the generator's samples, and its sources."""

    ids: tf.Tensor  # int32 [B, L]
    is_replaced: tf.Tensor  # bool [B, L], the labels
    inputs: MaskedInputs
    generated: GeneratorOutput

    def states(self, encoder, seed: tf.Tensor | None) -> tf.Tensor:
        """The hidden states that an encoder gives it, [B, L, H]."""
        inputs = self.inputs
        encoded = encoder(self.ids, inputs.input_mask, inputs.segment_ids, seed)
        return encoded.sequence_output


class Objective:
    """What the main network learns; the contract of all objectives.

    The defaults are for an objective whose main network has no head of its own.

    Attributes:
      model: what a model trained with it is called, for messages.
      description: how such a model was trained, for model cards.
      tag: of model cards, None for none beside "electra".
      scoring: the name in `scoring.METHODS` of the scores that the main network's
        own predictions give, None if they give none.
      needs_log_q: whether the generator must have `log_q`.
      trains_generator: whether the generator's weights are ever trained.
      metrics: of training and evaluation.

    Args:
      settings: `pretraining.PretrainerSettings`.
      stage: of the training; None where there is only one, and for finished models.
    """

    model: str
    description: str
    tag: str | None = None
    scoring: str | None = None
    needs_log_q = False
    trains_generator = True
    metrics: tuple[Metric, ...] = (metrics.LOSS, *metrics.GENERATOR_METRICS)

    def __init__(self, settings, stage: int | None = None):
        self.settings, self.stage = settings, stage

    def heads(self, config: ModelConfig, dtype) -> list[keras.layers.Layer]:
        """The built heads of its row; each is an attribute of the model by its name."""
        names = OBJECTIVES[self.settings.objective].heads
        return [self.head(name, config, dtype) for name in names]

    def head(self, name: str, config: ModelConfig, dtype) -> keras.layers.Layer:
        """One built head."""
        if name == DISCRIMINATOR_HEAD:
            shape = config.hidden_size, config.initializer_range, config.hidden_act
            layer = DiscriminatorPredictions(*shape, name=name, dtype=dtype)
            layer.build()
            return layer
        width = self.settings.embedding_size
        return masked_lm_head(config, width, config.vocab_size, name, dtype)

    def is_replaced(
        self, masked: tf.Tensor, corrupted_ids: tf.Tensor, input_ids: tf.Tensor
    ) -> tf.Tensor:
        """The labels, bool [B, L].

        Args:
          masked: bool [B, L], the positions that the generator filled.
          corrupted_ids, input_ids: int32 [B, L], with and without its samples.
        """
        return masked & (corrupted_ids != input_ids)

    def discriminate(
        self, model, text: CorruptedText, seed: tf.Tensor | None, weights: LossWeights
    ) -> DiscriminatorOutput | None:
        """The main network's output for the corrupted text; None if it reads none.

        Returns a NamedTuple with `loss`, a scalar, and what `sums` needs.

        Args:
          model: the ElectraPretrainer.
          seed: int32 [2], decides the dropout; None: no dropout.
        """
        return None

    @property
    def counts_all_tokens(self) -> bool:
        """Whether the main network's loss counts all tokens, as its metrics do."""
        return type(self).positions is Objective.positions

    def positions(self, inputs: MaskedInputs) -> tf.Tensor:
        """1 at the positions that the main network's loss counts, float32 [B, L]."""
        return tf.cast(inputs.input_mask, tf.float32)

    def loss_weight(self, inputs: MaskedInputs) -> tf.Tensor:
        """The number of tokens in the main network's loss, in most cases a scalar."""
        return tf.reduce_sum(self.positions(inputs))

    def total_loss(self, generated: GeneratorOutput, discriminated) -> tf.Tensor:
        """The scalar that is minimised, from the outputs of both networks."""
        loss = self.settings.gen_weight * generated.loss
        if discriminated is not None:
            loss += self.main_loss(discriminated)
        return loss

    def main_loss(self, discriminated) -> tf.Tensor:
        """The main network's part of it, where that detects or predicts tokens."""
        return self.settings.disc_weight * discriminated.loss

    def begin(self, model) -> None:
        """Prepares the first step of a phase; called in the scope of the strategy.

        Where a run is resumed there, this is called again.
        """

    def trained_variables(self, model) -> list[keras.Variable]:
        """The variables that this stage trains."""
        return model.trainable_variables

    def sums(self, output, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The sums of one batch that `metrics` need: scalars and histograms.

        They are of a batch or of a part of it, and add up over batches and replicas.

        Args:
          output: `pretraining.PretrainingOutput` of the batch.
        """
        weights, generated = batch["masked_lm_weights"], output.generated
        right = generated.predictions == batch["masked_lm_ids"]
        return {
            "masked": tf.reduce_sum(weights),
            "masked_correct": count(right, weights),
            "masked_loss": tf.reduce_sum(generated.per_token_loss * weights),
            "generator_loss": generated.loss,
            # Each replica's part of a global batch, whose loss is the sum of theirs.
            "batches": tf.ones([]) / tf.distribute.get_strategy().num_replicas_in_sync,
            "loss": output.total_loss,
        }


def sampled_sums(output, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """The other sum that SAMPLED_ACCURACY needs."""
    right = output.sampled_ids == batch["masked_lm_ids"]
    return {"sampled_correct": count(right, batch["masked_lm_weights"])}


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

    def discriminate(self, model, text, seed, weights):
        hidden = text.states(model.electra, seed)
        return self.judge(model, hidden, text, weights.discriminator)

    def judge(self, model, hidden, text, total):
        """The heads' output for a CorruptedText, from its hidden states [B, L, H].

        Args:
          total: `loss_weight` of the global batch; None: of this one.
        """
        net_logits = model.discriminator_predictions(hidden)
        return discriminator_output(
            net_logits,
            self.logits(model, net_logits, text.generated, text.ids),
            text.is_replaced,
            self.positions(text.inputs),
            total,
        )

    def logits(self, model, net_logits, generated, ids) -> tf.Tensor:
        """Log odds that each token was replaced, from the head's output: [B, L]."""
        return net_logits

    def sums(self, output, batch):
        found = output.discriminated
        mask = tf.cast(batch["input_mask"], tf.float32)
        labels = tf.cast(output.is_replaced, tf.int32)
        right = found.predictions == labels
        flagged = tf.cast(found.predictions, tf.float32) * mask
        fake = tf.cast(labels, tf.float32) * mask
        sums = super().sums(output, batch) | sampled_sums(output, batch)
        return sums | {
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
        return noise_contrastive_logits(net_logits, log_q, self.settings.mask_prob)


def objective_class(name: str) -> type[Objective]:
    """The class of a key of `config.objectives.OBJECTIVES`."""
    module, _, cls = OBJECTIVES[name].implementation.partition(":")
    return getattr(importlib.import_module(f"electra_tf.pretrain.{module}"), cls)
