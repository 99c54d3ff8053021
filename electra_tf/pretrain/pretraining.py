# SPDX-License-Identifier: Apache-2.0
"""ELECTRA's pre-training model: Figure 2 of the paper as one `call`.

A generator fills masked positions with plausible tokens; a discriminator predicts for
every token whether it was replaced.  The same class trains a masked language model,
Electric and the other objectives.

Shapes: B batch, L length, N masked positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.pretraining import Phase, PretrainingConfig
from electra_tf.model.dropout import fold_in
from electra_tf.model.encoder import (
    DisentangledEmbeddings,
    TextEncoder,
    make_embeddings,
)
from electra_tf.pretrain import masking, metrics
from electra_tf.pretrain.generators import (
    GeneratorOutput,
    MaskedInputs,
    generator_class,
)
from electra_tf.pretrain.metrics import EPSILON, NUM_THRESHOLDS
from electra_tf.pretrain.objectives import (
    CorruptedText,
    LossWeights,
    Objective,
    objective_class,
)
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train import optimization  # noqa: F401 - registered with Keras
from electra_tf.train.reporting import Metric, Ratio


@dataclasses.dataclass(frozen=True)
class PretrainerSettings:
    """The settings of an ElectraPretrainer, beside the shapes of its networks.

    Attributes:
      embedding_size: width of the (shared) embeddings.
      special_ids: ids of ([CLS], [SEP], [MASK]).
      generator: a key of `config.objectives.GENERATORS`.
      objective: a key of `config.objectives.OBJECTIVES`.
      embedding_sharing: as the hparam; "summed": as "disentangled", at rest: of the
        generator's width as well, but each network has tables of its own.
      gen_weight, disc_weight, token_weight: weights of the losses.
      mask_prob: share of masked tokens, the prior of Electric's noise.
      temperature, disallow_correct: how replacements are sampled.
      cloze_chunk_size: positions whose vocabulary scores exist at one time, where they
        are computed at all positions; None: what suits the device.
      num_candidates: that multi_choice chooses from.
      init_discriminator: of two_stage, see PretrainingConfig.
      generator_width: the generator's hidden_size.
    """

    embedding_size: int
    special_ids: tuple[int, int, int]
    generator: str = "masked_lm"
    objective: str = "electra"
    embedding_sharing: str = "shared"
    gen_weight: float = 1.0
    disc_weight: float = 50.0
    token_weight: float = 1.0
    num_candidates: int = 5
    mask_prob: float = 0.15
    temperature: float = 1.0
    disallow_correct: bool = False
    cloze_chunk_size: int | None = None
    init_discriminator: bool = True
    generator_width: int = 0


class PretrainingOutput(NamedTuple):
    """Everything one pass computes."""

    total_loss: tf.Tensor
    generated: GeneratorOutput
    sampled_ids: tf.Tensor  # int32 [B, N]
    corrupted_ids: tf.Tensor  # int32 [B, L], the discriminator's input
    is_replaced: tf.Tensor  # bool [B, L], the discriminator's labels
    discriminated: NamedTuple | None  # by `Objective.discriminate`


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
        """The value, float32: as `Ratio` and `Auc`, whose are for NumPy."""
        totals = [tf.convert_to_tensor(total) for total in self._sums.values()]
        if len(totals) == 2:
            return tf.math.divide_no_nan(*totals)
        [histogram] = totals
        above = tf.cumsum(histogram, axis=1, reverse=True)[:, 1:]
        false_positive, true_positive = tf.unstack(
            above / (tf.reduce_sum(histogram, axis=1, keepdims=True) + EPSILON)
        )
        heights = (true_positive[:-1] + true_positive[1:]) / 2
        return tf.reduce_sum((false_positive[:-1] - false_positive[1:]) * heights)


@keras.saving.register_keras_serializable("electra_tf")
class ElectraPretrainer(keras.Model):
    """Generate, corrupt, discriminate; built on construction.

    Variables carry the original program's names as their `path`.

    Args:
      config: ModelConfig of the discriminator (of the only network for MLM).
      generator_config: ModelConfig of the generator.
      settings: the fields of PretrainerSettings.
    """

    # Not every objective has one; `Objective.heads` makes the others.
    discriminator_predictions: keras.layers.Layer | None = None

    def __init__(
        self,
        config: ModelConfig | dict,
        generator_config: ModelConfig | dict,
        *,
        dtype=None,
        name: str = "electra_pretrainer",
        trainable: bool = True,
        **settings,
    ):
        # The batch's float32 numbers (weights, uniforms) keep their type.
        super().__init__(name=name, dtype=dtype, trainable=trainable, autocast=False)
        config, generator_config = (
            ModelConfig(**shape) if isinstance(shape, dict) else shape
            for shape in (config, generator_config)
        )
        settings["special_ids"] = tuple(settings["special_ids"])
        settings["generator_width"] = generator_config.hidden_size
        self.settings = PretrainerSettings(**settings)
        self.model_config, self.generator_config = config, generator_config
        self.objective = objective_class(self.settings.objective)(self.settings)
        dtype = self.dtype_policy
        # The encoder comes first: the embeddings that others share are named after it.
        width = self.settings.embedding_size
        if not OBJECTIVES[self.settings.objective].main_network:
            embeddings = {"hidden_size": width, "num_attention_heads": 1}
            config = dataclasses.replace(config, num_hidden_layers=0, **embeddings)
        embeddings = make_embeddings(config, width, dtype=dtype)
        base = None
        if self.settings.embedding_sharing == "disentangled":
            base = embeddings
            embeddings = DisentangledEmbeddings(base, dtype=dtype)
        self.electra = TextEncoder(config, width, embeddings, dtype=dtype)
        if base is not None:
            # At the place of shared ones in the order of random numbers.
            with keras.name_scope("generator"):
                base.build(None)
        self.electra.build(None)
        self.generator = generator_class(self.settings.generator).create(
            self.electra, generator_config, self.settings, dtype
        )
        if not self.objective.trains_generator:
            self.generator.trainable = False
        for head in self.objective.heads(config, dtype):
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
        sampled_ids = self._sample(generated, inputs, batch, objective.settings)

        # Corrupt: no gradient passes through the sampled tokens.
        corrupted_ids, masked = masking.scatter_update(
            inputs.input_ids, sampled_ids, inputs.masked_lm_positions
        )
        is_replaced = objective.is_replaced(masked, corrupted_ids, inputs.input_ids)

        # Discriminate: which tokens were replaced?
        text = CorruptedText(corrupted_ids, is_replaced, inputs, generated)
        discriminated = objective.discriminate(self, text, fold_in(seed, 1), weights)
        return PretrainingOutput(
            objective.total_loss(generated, discriminated),
            generated,
            sampled_ids,
            corrupted_ids,
            is_replaced,
            discriminated,
        )

    def _sample(self, generated, inputs, batch, settings) -> tf.Tensor:
        """Replacements for the masked tokens, int32 [B, N]."""
        if "sampled_ids" in batch:
            return batch["sampled_ids"]
        correct = inputs.masked_lm_ids if settings.disallow_correct else None
        temperature = batch.get("temperature", settings.temperature)
        return self.generator.sample(
            generated, batch["sample_uniform"], temperature, correct
        )

    def replaced_logits(self, *text: tf.Tensor, net_only: bool = False) -> tf.Tensor:
        """Log odds that each token was replaced, in a text where nothing is masked.

        Args:
          text: input_ids, input_mask, segment_ids, int32 [B, L].
          net_only: the head's own output, which for Electric is the energy, without
            the log q and the prior of the noise.

        Returns float32 [B, L].
        """
        if self.discriminator_predictions is None:
            name = self.settings.objective
            raise ValueError(f"A model of the objective {name} has no discriminator.")
        encoded = self.electra(*text)
        net_logits = self.discriminator_predictions(encoded.sequence_output)
        if net_only or not self.objective.needs_log_q:
            return net_logits
        generated = self.generator(MaskedInputs.unmasked(*text))
        return self.objective.logits(self, net_logits, generated, text[0])

    def export(self, *args, **options):
        """Is refused: a call of this model is a training step."""
        raise ValueError(
            "A call of ElectraPretrainer is a training step, which is not exported.\n"
            "electra_tf.PretrainedModel(config, vocab, model).save(path) writes its "
            "networks;\na keras.Model on model.electra can be exported, too."
        )

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
        sums = self.objective.sums(y_pred, x)
        for metric in self._running:
            metric.update_state(sums)
        return self.get_metrics_result()

    def predict_step(self, data):
        """What `predict` gives: the probability that each token was replaced [B, L]."""
        batch, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        text = (batch[name] for name in ("input_ids", "input_mask", "segment_ids"))
        return tf.sigmoid(self.replaced_logits(*text))

    def get_config(self):
        return {
            "name": self.name,
            "dtype": self.dtype_policy.name,
            "config": dataclasses.asdict(self.model_config),
            "generator_config": dataclasses.asdict(self.generator_config),
            **dataclasses.asdict(self.settings),
        }


class TrainablePretrainer:
    """Trains and evaluates an ElectraPretrainer (see `train.step.Evaluable`).

    Args:
      phase: of the training; None: as a finished model.
    """

    def __init__(self, pretrainer: ElectraPretrainer, phase: Phase | None = None):
        self.model, self.objective = pretrainer, pretrainer.objective
        if phase is not None:
            own = {k: getattr(phase.config, k) for k in ("mask_prob", "temperature")}
            settings = dataclasses.replace(pretrainer.settings, **own)
            self.objective = type(self.objective)(settings, phase.stage)
        self.metrics = self.objective.metrics

    def loss_weights(self, batch: dict[str, tf.Tensor]) -> LossWeights:
        """This batch's share of what the two losses are divided by."""
        inputs = MaskedInputs.of(batch)
        return LossWeights(
            self.model.generator.loss_weight(inputs), self.objective.loss_weight(inputs)
        )

    def training_sums(
        self, batch: dict[str, tf.Tensor], seed: tf.Tensor, weights: LossWeights
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Total loss, and the sums that the metrics of a step need."""
        what = {"weights": weights, "objective": self.objective}
        output = self.model(batch, training=True, seed=seed, **what)
        sums = self.objective.sums(output, batch)
        # Histograms are for evaluation; unused, they are not computed.
        sums = {name: value for name, value in sums.items() if not value.shape.rank}
        del sums["loss"], sums["batches"]
        return output.total_loss, sums

    def training_metrics(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Metrics of single steps, of the batch as it was trained on, with dropout."""
        return {m.name: m.training(sums) for m in self.metrics if m.training}

    def evaluation_sums(
        self, batch: dict[str, tf.Tensor], weights: LossWeights | None = None
    ) -> dict[str, tf.Tensor]:
        """Sums over one part of a global batch, without dropout."""
        return self.objective.sums(self.evaluated(batch, weights), batch)

    def evaluated(self, batch, weights: LossWeights | None = None) -> PretrainingOutput:
        """One pass without dropout."""
        return self.model(batch, weights=weights, objective=self.objective)

    def evaluation_metrics(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        """The original's metrics, from the sums over all batches."""
        return metrics.evaluation_metrics(self.metrics, sums)


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
        config = dataclasses.replace(config, vocab_size=len(vocabulary))
        vocabulary = vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id
    if dtype is None and config.precision != type(config).precision:
        dtype = config.precision
    names = (field.name for field in dataclasses.fields(PretrainerSettings))
    settings = {name: getattr(config, name) for name in names if hasattr(config, name)}
    if at_rest and config.embedding_sharing == "disentangled":
        settings["embedding_sharing"] = "summed"
    return ElectraPretrainer(
        config.model_config(),
        config.generator_config(),
        special_ids=vocabulary,
        **settings,
        dtype=dtype,
    )
