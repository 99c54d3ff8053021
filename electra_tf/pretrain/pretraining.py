# SPDX-License-Identifier: Apache-2.0
"""ELECTRA's pre-training model: Figure 2 of the paper as one `call`.

A generator fills masked positions with plausible tokens; a discriminator predicts for
every token whether it was replaced.  The same class trains a masked language model,
Electric and the other objectives.

Shapes: B batch, L length, N masked positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.objectives import GENERATOR, MAIN, OBJECTIVES, translated
from electra_tf.config.pretraining import Phase, PretrainingConfig
from electra_tf.model.dropout import fold_in
from electra_tf.model.encoder import DisentangledEmbeddings, Embeddings, TextEncoder
from electra_tf.pretrain import masking
from electra_tf.pretrain.generators import GeneratorOutput, MaskedInputs, class_of
from electra_tf.pretrain.metrics import NUM_THRESHOLDS, strips
from electra_tf.pretrain.objectives import (
    CorruptedText,
    LossWeights,
    Objective,
    objective_of,
)
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train import optimization  # noqa: F401 - registered with Keras
from electra_tf.train.reporting import Metric, Ratio
from electra_tf.train.step import Task


class PretrainingOutput(NamedTuple):
    """Everything one pass computes."""

    total_loss: tf.Tensor
    sums: dict[str, tf.Tensor]  # of `Losses`, and those of LOSS
    generated: GeneratorOutput
    sampled_ids: tf.Tensor  # int32 [B, N]
    corrupted_ids: tf.Tensor  # int32 [B, L], the discriminator's input
    is_replaced: tf.Tensor  # bool [B, L], the discriminator's labels
    discriminated: NamedTuple | None  # of `Losses`


class RunningMetric(keras.metrics.Metric):
    """A metric over any number of batches, for `fit`.

    Args:
      metric: its `evaluation` computes it from the sums of batches.
    """

    def __init__(self, metric: Metric):
        super().__init__(name=metric.name)
        is_ratio = isinstance(metric.evaluation, Ratio)
        shape = () if is_ratio else (2, NUM_THRESHOLDS + 1)
        self._sums = {
            name: self.add_variable(shape, "zeros", name=name)
            for name in metric.evaluation
        }

    def update_state(self, sums: dict[str, tf.Tensor]) -> None:
        """Adds the sums of a batch."""
        for name, total in self._sums.items():
            total.assign_add(sums[name])

    def result(self) -> tf.Tensor:
        """The value, float32: TensorFlow's version of `Ratio` and `Auc`."""
        totals = [tf.convert_to_tensor(total) for total in self._sums.values()]
        if len(totals) == 2:
            return tf.math.divide_no_nan(*totals)
        [histogram] = totals
        return tf.reduce_sum(strips(tf.cumsum(histogram, axis=1, reverse=True)))


@keras.saving.register_keras_serializable("electra_tf")
class ElectraPretrainer(keras.Model):
    """Generate, corrupt, discriminate; built on construction.

    Variables carry the original program's names as their `path`.

    Args:
      config: PretrainingConfig, or its hparams.
      special_ids: the ids of ([CLS], [SEP], [MASK]).
      at_rest: as models are stored and used: a table that is learned as a residual is
        the sum, under the usual name.
    """

    # Not every objective has one; `Objective.heads` makes the others.
    discriminator_predictions: keras.layers.Layer | None = None

    def __init__(
        self,
        config: PretrainingConfig | dict,
        special_ids: Sequence[int],
        at_rest: bool = False,
        *,
        dtype=None,
        name: str = "electra_pretrainer",
        trainable: bool = True,
    ):
        # The batch's float32 numbers (weights, uniforms) keep their type.
        super().__init__(name=name, dtype=dtype, trainable=trainable, autocast=False)
        if isinstance(config, dict):
            config = PretrainingConfig(**translated(config))
        self.hparams, self.special_ids, self.at_rest = config, special_ids, at_rest
        shape = self.model_config = config.model_config()
        self.objective = objective_of(config.objective, config)
        dtype = self.dtype_policy
        # The encoder comes first: the embeddings that others share are named after it.
        width = config.embedding_size
        if not OBJECTIVES[config.objective].main_network:
            embeddings = {"hidden_size": width, "num_attention_heads": 1}
            shape = dataclasses.replace(shape, num_hidden_layers=0, **embeddings)
        embeddings = Embeddings(shape, width, dtype=dtype)
        base = None
        if config.embedding_sharing == "disentangled" and not at_rest:
            base = embeddings
            embeddings = DisentangledEmbeddings(base, dtype=dtype)
        self.electra = TextEncoder(shape, width, embeddings, dtype=dtype)
        if base is not None:
            # At the place of shared ones in the order of random numbers.
            with keras.name_scope("generator"):
                base.build(None)
        self.electra.build(None)
        self.generator = class_of(config.generator_kind).create(
            self.electra, config, tuple(special_ids), dtype
        )
        learned = {part for phase in config.run_phases() for part in phase.learns}
        if GENERATOR not in learned:
            self.generator.trainable = False
        for head in self.objective.heads(shape, dtype):
            setattr(self, head.name, head)
        self.built = True

    def call(
        self,
        batch: dict[str, tf.Tensor],
        training: bool = False,
        seed: tf.Tensor | None = None,
        weights: LossWeights | None = None,
        objective: Objective | None = None,
    ) -> PretrainingOutput:
        """One pass over a masked batch (see `masking.mask_batch`).

        Args:
          batch: int32 and float32 tensors by name.  With `sampled_ids` [B, N] in it,
            these replace the generator's samples.
          training: switches dropout on.
          seed: int32 [2], decides the dropout; None in training draws one.
          weights: of the global batch, when `batch` is a part of it.
          objective: of a phase of the training; None: the model's.
        """
        objective = objective or self.objective
        inputs = MaskedInputs.of(batch)
        weights = weights or LossWeights()
        if not training:
            seed = None
        elif seed is None:
            seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)

        # Generate: predict the masked tokens and sample replacements for them.
        generated = self.generator(inputs, fold_in(seed, 0), weights.generator)
        temperature = batch.get("temperature", objective.config.temperature)
        sampled_ids = batch.get("sampled_ids")
        if sampled_ids is None:
            disallowed = inputs.masked_lm_ids if self.hparams.disallow_correct else None
            draw = inputs.sample_uniform, temperature, disallowed
            sampled_ids = self.generator.sample(generated, *draw)

        # Corrupt: no gradient passes through the sampled tokens.
        corrupted_ids, masked = masking.scatter_update(
            inputs.input_ids, sampled_ids, inputs.masked_lm_positions
        )
        is_replaced = objective.is_replaced(masked, corrupted_ids, inputs.input_ids)

        # Discriminate: which tokens were replaced?  The losses of both networks.
        text = CorruptedText(
            *(corrupted_ids, is_replaced, inputs, generated, sampled_ids, temperature)
        )
        loss, sums, found = objective.loss(self, text, fold_in(seed, 1), weights)
        # Each replica's part of a global batch, whose loss is the sum of theirs.
        part = tf.ones([]) / tf.distribute.get_strategy().num_replicas_in_sync
        sums |= {"loss": loss, "batches": part}
        texts = sampled_ids, corrupted_ids, is_replaced
        return PretrainingOutput(loss, sums, generated, *texts, found)

    def replaced_logits(self, *text: tf.Tensor, net_only: bool = False) -> tf.Tensor:
        """Log odds that each token was replaced, in a text where nothing is masked.

        Args:
          text: input_ids, input_mask, segment_ids, int32 [B, L].
          net_only: the head's own output, which for Electric is the energy, without
            the log q and the prior of the noise.

        Returns float32 [B, L].
        """
        if self.discriminator_predictions is None:
            name = self.hparams.objective
            raise ValueError(f"A model of the objective {name} has no discriminator.")
        encoded = self.electra(*text)
        net_logits = self.discriminator_predictions(encoded.sequence_output)
        if net_only or not self.objective.needs_log_q:
            return net_logits
        generated = self.generator(MaskedInputs.unmasked(*text))
        return self.objective.logits(self, net_logits, generated, text[0])

    def compile(self, optimizer="rmsprop", loss=None, metrics=None, **options):
        """Configures `fit`, whose loss and metrics are the objective's own."""
        if loss is not None or metrics or options.get("weighted_metrics"):
            raise ValueError(
                "The objective has its own loss and metrics: compile(optimizer) alone."
            )
        super().compile(optimizer, **options)
        # Not tracked: they are not weights of the model.
        running = [
            RunningMetric(metric)
            for metric in self.objective.metrics
            if metric.evaluation and metric.name != "loss"
        ]
        object.__setattr__(self, "_running", running)

    def compile_from_config(self, config):
        """Keras leaves a `compile` of our own to us."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        self.optimizer.build(self.trainable_variables)

    @property
    def metrics(self):
        return [*super().metrics, *getattr(self, "_running", ())]

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss `compile`/`fit` minimise; Keras sums gradients over replicas."""
        return y_pred.total_loss / tf.distribute.get_strategy().num_replicas_in_sync

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The objective's metrics, over the batches of an epoch."""
        for metric in self._running:
            metric.update_state(y_pred.sums)
        return self.get_metrics_result()

    def predict_step(self, data):
        """What `predict` gives: the probability that each token was replaced [B, L]."""
        batch, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        text = (batch[name] for name in ("input_ids", "input_mask", "segment_ids"))
        return tf.sigmoid(self.replaced_logits(*text))

    def get_config(self):
        # Without paths, which mean nothing elsewhere.
        hparams = self.hparams.replaced(init_checkpoint=None, init_generator=None)
        return {
            "name": self.name,
            "dtype": self.dtype_policy.name,
            "config": hparams.settings(),
            "special_ids": list(self.special_ids),
            "at_rest": self.at_rest,
        }

    def begin_from_generator(self) -> None:
        """Initialises the main network with the weights of the generator's encoder."""
        stored = {v.path: v for v in self.generator.encoder.variables}
        for variable in self.electra.variables:
            name = variable.path.replace("electra/", "generator/", 1)
            variable.assign(stored[name].value)

    def trained_in(self, phase: Phase) -> list[keras.Variable]:
        """The variables that a phase trains."""
        own = {v.path for v in self.generator.trainable_variables}
        return [
            variable
            for variable in self.trainable_variables
            if (GENERATOR if variable.path in own else MAIN) in phase.learns
        ]


def task_of(model: ElectraPretrainer, phase: Phase | None = None) -> Task:
    """Trains and evaluates a model, in a phase; None: as a finished model."""
    objective = model.objective
    if phase is not None:
        objective = objective_of(phase.objective, phase.config)

    def loss(batch, seed, weights):
        options = {"training": seed is not None, "seed": seed, "weights": weights}
        output = model(batch, objective=objective, **options)
        return output.total_loss, output.sums

    def divisors(batch):
        inputs = MaskedInputs.of(batch)
        return LossWeights(
            model.generator.loss_weight(inputs),
            tf.reduce_sum(objective.positions(inputs)),
            tf.reduce_sum(inputs.masked_lm_weights),
        )

    return Task(model, loss, divisors, objective.metrics)


def build_pretrainer(
    config: PretrainingConfig,
    vocabulary: Vocabulary | tuple[int, int, int],
    dtype=None,
    at_rest: bool = False,
) -> ElectraPretrainer:
    """The model of a PretrainingConfig.

    Args:
      vocabulary: the Vocabulary, which gives vocab_size; or the ids of ([CLS], [SEP],
        [MASK]) in one.
      dtype: a Keras dtype policy; by default the one of `config.precision`, where that
        is float32 Keras's global one.
      at_rest: as models are stored and used: a table that is learned as a residual is
        the sum, under the usual name.
    """
    if isinstance(vocabulary, Vocabulary):
        config = config.replaced(vocab_size=len(vocabulary))
        vocabulary = vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id
    if dtype is None and config.precision != type(config).precision:
        dtype = config.precision
    return ElectraPretrainer(config, vocabulary, at_rest, dtype=dtype)
