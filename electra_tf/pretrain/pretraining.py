# SPDX-License-Identifier: Apache-2.0
"""ELECTRA's pre-training model: Figure 2 of the paper as one `call`.

A generator fills masked positions with plausible tokens; a discriminator says for
every token whether it was replaced.  The same class trains a masked language model
(`electra_objective` and `electric_objective` off) and Electric.

Shapes: B batch, L length, N masked positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.pretraining import ModelConfig
from electra_tf.model.dropout import fold_in
from electra_tf.model.encoder import TextEncoder
from electra_tf.pretrain import discriminator, masking
from electra_tf.pretrain.generators import (
    EPSILON,
    GENERATORS,
    GeneratorOutput,
    MaskedInputs,
    TwoTowerGenerator,
)


class LossWeights(NamedTuple):
    """What the losses are divided by, summed over the global batch; scalars."""

    generator: tf.Tensor  # masked positions; two towers: candidate positions
    discriminator: tf.Tensor  # tokens


class PretrainingOutput(NamedTuple):
    """Everything one pass computes."""

    total_loss: tf.Tensor
    generated: GeneratorOutput
    sampled_ids: tf.Tensor  # int32 [B, N]
    corrupted_ids: tf.Tensor  # int32 [B, L], the discriminator's input
    is_replaced: tf.Tensor  # bool [B, L], the discriminator's labels
    judged: discriminator.DiscriminatorOutput | None  # None without a discriminator


class ElectraPretrainer(keras.Model):
    """Generate, corrupt, discriminate; built on construction.

    Variables carry the original program's names as their `path`.

    Args:
      config: ModelConfig of the discriminator (of the only network for MLM).
      generator_config: ModelConfig of the generator.
      embedding_size: width of the (shared) embeddings.
      generator: a key of GENERATORS.
      objective: "electra", "electric" or "mlm".
      special_ids: ids of ([CLS], [SEP], [MASK]).
      gen_weight, disc_weight: weights of the two losses.
      mask_prob: share of masked tokens, the prior of Electric's noise.
      temperature, disallow_correct: how replacements are sampled.
      cloze_chunk_size: see TwoTowerGenerator.
    """

    def __init__(
        self,
        config: ModelConfig | dict,
        generator_config: ModelConfig | dict,
        *,
        embedding_size: int,
        special_ids: tuple[int, int, int],
        generator: str = "masked_lm",
        objective: str = "electra",
        untied_generator_embeddings: bool = False,
        gen_weight: float = 1.0,
        disc_weight: float = 50.0,
        mask_prob: float = 0.15,
        temperature: float = 1.0,
        disallow_correct: bool = False,
        cloze_chunk_size: int = 1024,
        name: str = "electra_pretrainer",
        **kwargs,
    ):
        # The batch's float32 numbers (weights, uniforms) keep their type.
        super().__init__(name=name, autocast=False, **kwargs)
        if isinstance(config, dict):
            config = ModelConfig(**config)
        if isinstance(generator_config, dict):
            generator_config = ModelConfig(**generator_config)
        self.settings = {
            "embedding_size": embedding_size,
            "special_ids": tuple(special_ids),
            "generator": generator,
            "objective": objective,
            "untied_generator_embeddings": untied_generator_embeddings,
            "gen_weight": gen_weight,
            "disc_weight": disc_weight,
            "mask_prob": mask_prob,
            "temperature": temperature,
            "disallow_correct": disallow_correct,
            "cloze_chunk_size": cloze_chunk_size,
        }
        self.model_config, self.generator_config = config, generator_config
        self.objective = objective
        dtype = self.dtype_policy
        # The encoder comes first: the embeddings that others share are named after it.
        self.electra = TextEncoder(config, embedding_size, dtype=dtype)
        self.electra.build(None)
        self.generator = GENERATORS[generator](
            self.electra, generator_config, self.settings, dtype=dtype
        )
        self._build_generator_head()
        self.discriminator_predictions = None
        if objective != "mlm":
            self.discriminator_predictions = discriminator.DiscriminatorPredictions(
                config.hidden_size,
                config.initializer_range,
                config.hidden_act,
                dtype=dtype,
            )
            self.discriminator_predictions.build()
        self.built = True

    def _build_generator_head(self):
        if isinstance(self.generator, TwoTowerGenerator):
            width = self.generator.ltr.hidden_size + self.generator.rtl.hidden_size
            self.generator.head.build((None, width))
        elif hasattr(self.generator, "head"):
            self.generator.head.build((None, self.generator.encoder.hidden_size))
        self.generator.built = True

    def call(
        self,
        batch: dict[str, tf.Tensor],
        training: bool = False,
        seed: tf.Tensor | None = None,
        weights: LossWeights | None = None,
    ) -> PretrainingOutput:
        """One pass over a masked batch (see `masking.mask_batch`).

        Args:
          batch: int32 and float32 tensors by name.  With `sampled_ids` [B, N] in it,
            these replace the generator's samples.
          training: switches dropout on.
          seed: int32 [2], decides the dropout; None in training draws one.
          weights: of the global batch, when `batch` is a part of it.
        """
        inputs = MaskedInputs(*(batch[name] for name in MaskedInputs._fields))
        weights = weights or LossWeights(None, None)
        if not training:
            seed = None
        elif seed is None:
            seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)

        # Generate: predict the masked tokens and sample replacements for them.
        generated = self.generator(inputs, fold_in(seed, 0), weights.generator)
        sampled_ids = self._sample(generated, inputs, batch)

        # Corrupt: no gradient passes through the sampled tokens.
        corrupted_ids, masked = masking.scatter_update(
            inputs.input_ids, sampled_ids, inputs.masked_lm_positions
        )
        # A sample that equals the original token counts as original; to Electric it
        # is noise all the same.
        is_replaced = masked
        if self.objective != "electric":
            is_replaced = masked & (corrupted_ids != inputs.input_ids)

        # Discriminate: which tokens were replaced?
        judged = None
        total_loss = self.settings["gen_weight"] * generated.loss
        if self.discriminator_predictions is not None:
            judged = self._judge(
                corrupted_ids, is_replaced, inputs, generated, fold_in(seed, 1), weights
            )
            total_loss += self.settings["disc_weight"] * judged.loss
        return PretrainingOutput(
            total_loss, generated, sampled_ids, corrupted_ids, is_replaced, judged
        )

    def _sample(self, generated, inputs, batch) -> tf.Tensor:
        """Replacements for the masked tokens, int32 [B, N]."""
        if "sampled_ids" in batch:
            return batch["sampled_ids"]
        correct = inputs.masked_lm_ids if self.settings["disallow_correct"] else None
        uniform = batch["sample_uniform"]
        if generated.logits is None:
            return masking.sample_uniformly(
                uniform, self.model_config.vocab_size, disallowed_ids=correct
            )
        return masking.sample_from_softmax(
            tf.stop_gradient(generated.logits),
            uniform,
            temperature=self.settings["temperature"],
            disallowed_ids=correct,
        )

    def _judge(self, corrupted_ids, is_replaced, inputs, generated, seed, weights):
        encoded = self.electra(
            corrupted_ids, inputs.input_mask, inputs.segment_ids, seed
        )
        net_logits = self.discriminator_predictions(encoded.sequence_output)
        logits = net_logits
        if self.objective == "electric":
            log_q = self.generator.log_q(generated.cloze, corrupted_ids)
            logits = discriminator.noise_contrastive_logits(
                net_logits, log_q, self.settings["mask_prob"]
            )
        return discriminator.discriminator_output(
            net_logits,
            logits,
            is_replaced,
            inputs.input_mask,
            weights.discriminator,
            EPSILON,
        )

    def replaced_logits(
        self, input_ids, input_mask, segment_ids, net_only: bool = False
    ) -> tf.Tensor:
        """Log odds that each token was replaced, in a text where nothing is masked.

        Args:
          input_ids, input_mask, segment_ids: int32 [B, L].
          net_only: the head's own output, which for Electric is the energy, without
            the log q and the prior of the noise.

        Returns float32 [B, L].
        """
        encoded = self.electra(input_ids, input_mask, segment_ids)
        logits = self.discriminator_predictions(encoded.sequence_output)
        if net_only or self.objective != "electric":
            return logits
        generated = self.generator(
            MaskedInputs.unmasked(input_ids, input_mask, segment_ids)
        )
        log_q = self.generator.log_q(generated.cloze, input_ids)
        return discriminator.noise_contrastive_logits(
            logits, log_q, self.settings["mask_prob"]
        )

    def loss_weights(self, batch: dict[str, tf.Tensor]) -> LossWeights:
        """This batch's share of what the losses are divided by."""
        inputs = MaskedInputs(*(batch[name] for name in MaskedInputs._fields))
        counted = inputs.masked_lm_weights
        if isinstance(self.generator, TwoTowerGenerator):
            counted = self.generator.candidate_weights(inputs)
        tokens = tf.cast(inputs.input_mask, tf.float32)
        return LossWeights(tf.reduce_sum(counted), tf.reduce_sum(tokens))

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss `compile`/`fit` minimise; Keras sums gradients over replicas."""
        del x, y, sample_weight, training
        return y_pred.total_loss / tf.distribute.get_strategy().num_replicas_in_sync

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Only the loss: `electra_tf.pretrain.metrics` holds the others."""
        del x, y, y_pred, sample_weight
        return self.get_metrics_result()

    def get_config(self):
        return {
            "name": self.name,
            "dtype": self.dtype_policy.name,
            "config": dataclasses.asdict(self.model_config),
            "generator_config": dataclasses.asdict(self.generator_config),
            **self.settings,
        }


def build_pretrainer(
    config, special_ids: tuple[int, int, int], dtype=None
) -> ElectraPretrainer:
    """The model of a PretrainingConfig.

    Args:
      special_ids: ids of ([CLS], [SEP], [MASK]) in its vocabulary.
      dtype: a Keras dtype policy; by default the one of `config.precision`.
    """
    if config.electric_objective:
        objective = "electric"
    else:
        objective = "electra" if config.electra_objective else "mlm"
    if config.uniform_generator:
        generator = "uniform"
    elif config.two_tower_generator or config.electric_objective:
        generator = "two_tower"
    elif objective == "mlm" or not config.untied_generator:
        generator = "tied"
    else:
        generator = "masked_lm"
    return ElectraPretrainer(
        config.model_config(),
        config.generator_config(),
        embedding_size=config.embedding_size,
        special_ids=special_ids,
        generator=generator,
        objective=objective,
        untied_generator_embeddings=config.untied_generator_embeddings,
        gen_weight=config.gen_weight,
        disc_weight=config.disc_weight,
        mask_prob=config.mask_prob,
        temperature=config.temperature,
        disallow_correct=config.disallow_correct,
        cloze_chunk_size=config.cloze_chunk_size,
        dtype=dtype or config.precision,
    )
