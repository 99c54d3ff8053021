# SPDX-License-Identifier: Apache-2.0
"""The encoder with a head for each task, and its interface to the training loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import without_left
from electra_tf.config.model import ModelConfig
from electra_tf.finetune import task as tasks
from electra_tf.finetune.registry import TYPES
from electra_tf.finetune.task import Head
from electra_tf.model.dropout import fold_in
from electra_tf.model.encoder import TextEncoder
from electra_tf.model.heads import PredictionHead
from electra_tf.storage.checkpoints import StoredTensors
from electra_tf.train.reporting import Metric, Ratio
from electra_tf.train.step import Task

Tensors = Mapping[str, tf.Tensor]
# What reaches every head under its own name.
SHARED = ("input_ids", "input_mask", "segment_ids")


class TaskHead(keras.layers.Layer):
    """The dense layers of a task's head, with Glorot's initializer.

    On pre-norm blocks a `PredictionHead` precedes them, as in ModernBERT.

    Args:
      config: the encoder's shape.
      head: what it computes.
    """

    def __init__(self, config: ModelConfig, head: Head, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.head = head
        self.prediction_head = None
        if config.kind.is_pre_norm:
            self.prediction_head = PredictionHead(config, dtype=self.dtype_policy)
        self._sizes = head.layers(config.hidden_size)
        self.dense = {
            name: keras.layers.Dense(units, name=name, dtype=self.dtype_policy)
            for name, (_, units) in self._sizes.items()
        }

    def build(self, input_shape=None):
        if self.prediction_head is not None:
            self.prediction_head.build((None, self.prediction_head.dense.units))
        for name, (inputs, _) in self._sizes.items():
            self.dense[name].build((None, inputs))

    def call(self, hidden, features: Tensors, training=False, seed=None) -> Tensors:
        """The outputs by name, with the `loss` of each example."""
        outputs = self.outputs(hidden, features, training, seed)
        return outputs | {"loss": self.head.loss(outputs, features, training)}

    def outputs(self, hidden, features: Tensors, training=False, seed=None) -> Tensors:
        """The outputs alone; outside training they need no right answer."""
        if self.prediction_head is not None:
            hidden = self.prediction_head(hidden)
        return self.head.outputs(self.dense, hidden, features, training, seed)


class FinetuningOutput(NamedTuple):
    """The outputs of a FinetuningModel."""

    total_loss: tf.Tensor  # scalar, the sum over the batch
    losses: tf.Tensor  # float32 [B, tasks]; 0 where an example is not of that task
    outputs: dict[str, dict[str, tf.Tensor]]  # task -> the original's outputs


@keras.saving.register_keras_serializable("electra_tf")
class FinetuningModel(keras.Model):
    """An encoder and a head per task; an example trains the head of its `task_id`.

    Args:
      config: the encoder's shape.
      embedding_size: width of its embeddings.
      heads: task name -> kind ("classification", "multilabel", "regression", ...) and
        the head's arguments, as `{"kind": ..., "num_labels": ...}`.
    """

    def __init__(self, config: ModelConfig | dict, embedding_size, heads, **kwargs):
        super().__init__(autocast=False, **kwargs)
        if isinstance(config, dict):
            config = ModelConfig(**without_left(config))
        self.model_config = config
        self.embedding_size = embedding_size
        self.head_settings = {task: dict(given) for task, given in heads.items()}
        dtype = self.dtype_policy
        self.electra = TextEncoder(config, embedding_size, dtype=dtype)
        self.electra.build(None)
        self.heads = []
        with keras.name_scope("task_specific"):
            for task, settings in self.head_settings.items():
                own = dict(settings)
                made = TYPES[own.pop("kind")].head(**own)
                head = TaskHead(config, made, name=task, dtype=dtype)
                head.build()
                self.heads.append(head)
        self.built = True
        self._traced = {}

    def traced(self, task: tasks.Task, specs: Mapping[str, tf.TensorSpec]):
        """The outputs and answers of a task as a function of a batch; traced once.

        Args:
          specs: shapes and types of its batches.
        """
        key = task.name, *sorted(specs.items())
        if key not in self._traced:
            [head] = [one.head for one in self.heads if one.name == task.name]

            def answered(batch):
                outputs = self(batch, training=False).outputs[task.name]
                return outputs | head.answer(task, outputs)

            self._traced[key] = tf.function(answered, [dict(specs)], autograph=False)
        return self._traced[key]

    def call(self, batch: Tensors, training=False, seed=None) -> FinetuningOutput:
        """Runs the heads whose features are in the batch.

        Args:
          batch: input_ids, input_mask, segment_ids [B, L], or [B, C, L] of C choices,
            task_id [B] (a number that is not a task's marks padding) and
            `<task>:<feature>` of the tasks to run.
          training: whether answers' ends are predicted from the right start.
          seed: int32 [2], switches dropout on.
        """
        shared = {name: batch[name] for name in SHARED}
        encoded = self._states(*shared.values(), fold_in(seed, 0))
        outputs = {}
        for number, head in enumerate(self.heads):
            prefix = f"{head.name}:"
            names = (key for key in batch if key.startswith(prefix))
            features = {key.removeprefix(prefix): batch[key] for key in names}
            if features:
                own = fold_in(seed, number + 1)
                found = head(encoded, features | shared, training=training, seed=own)
                outputs[head.name] = features | found
        none = {"loss": tf.zeros(tf.shape(batch["task_id"]))}
        losses = [outputs.get(head.name, none)["loss"] for head in self.heads]
        chosen = tf.one_hot(batch["task_id"], len(self.heads))
        losses = chosen * tf.stack(losses, axis=-1)
        return FinetuningOutput(tf.reduce_sum(losses), losses, outputs)

    def _states(self, ids, mask, segments, seed) -> tf.Tensor:
        """The encoder's states [B, L, H], of choices [B, C, L, H]."""
        inputs, length = [ids, mask, segments], ids.shape[-1] or tf.shape(ids)[-1]
        if len(ids.shape) == 3:
            inputs = [tf.reshape(x, [-1, length]) for x in inputs]
        states = self.electra(*inputs, seed=seed, training=False).sequence_output
        if len(ids.shape) == 2:
            return states
        return tf.reshape(states, [*tf.unstack(tf.shape(ids)), states.shape[-1]])

    def get_config(self):
        return {
            "name": self.name,
            "dtype": self.dtype_policy.name,
            "config": dataclasses.asdict(self.model_config),
            "embedding_size": self.embedding_size,
            "heads": self.head_settings,
        }


def build_finetuning_model(
    config: FinetuningConfig, heads: Mapping[str, Head], dtype=None
) -> FinetuningModel:
    """The model of a FinetuningConfig.

    Args:
      heads: by the names of the tasks.
      dtype: a Keras dtype policy; by default the one of `config.precision`.
    """
    given = {
        task: {"kind": head.kind} | dataclasses.asdict(head)
        for task, head in heads.items()
    }
    shape = config.model_config(), config.embedding_size
    return FinetuningModel(*shape, given, dtype=dtype or config.precision)


def load_encoder(tensors: StoredTensors, variables: Mapping[str, Any]) -> None:
    """Assigns the encoder's weights; heads keep theirs.

    Raises `UserError` naming the first variable that is absent or of another shape.
    """
    tensors.assign_to({k: v for k, v in variables.items() if k.startswith("electra/")})


def freeze(model: FinetuningModel, layers: int) -> None:
    """Takes the embeddings and the lowest layers out of the training.

    They get no gradient, no decay and no slots of the optimizer. Dropout stays.
    """
    frozen = [f"electra/encoder/layer_{layer}/" for layer in range(layers)]
    frozen = "electra/embeddings", *frozen
    for variable in model.variables:
        if variable.path.startswith(frozen):
            variable.trainable = False


def without_padding(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """A batch of unknown length, cut to its longest example.

    A microbatch of similar lengths is shorter than the batch that it is a part of.
    """
    if batch["input_ids"].shape[-1]:
        return batch
    longest = tf.reduce_max(tf.reduce_sum(batch["input_mask"], axis=-1))
    return batch | {name: batch[name][..., :longest] for name in SHARED}


def training_task(model: FinetuningModel) -> Task:
    """Trains a model: the loss, summed over the examples, and the mean of each task."""
    names = [head.name for head in model.heads]

    def loss(batch: dict[str, tf.Tensor], seed, divisors):
        del divisors
        output = model(without_padding(batch), training=True, seed=seed)
        of_task = tf.one_hot(batch["task_id"], len(names))
        sums = {}
        for number, name in enumerate(names):
            sums[f"{name}/loss"] = tf.reduce_sum(output.losses[:, number])
            sums[f"{name}/examples"] = tf.reduce_sum(of_task[:, number])
        return output.total_loss, sums

    def divisors(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """The number of examples that are not padding; the loss is a sum, though."""
        real = batch["task_id"] < len(names)
        return tf.reduce_sum(tf.cast(real, tf.float32))

    metrics = [Metric("loss", "loss, summed over the examples", short="loss")]
    for name in names:
        mean = Ratio(f"{name}/loss", f"{name}/examples")
        metrics.append(Metric(f"{name}_loss", f"mean loss of {name}", training=mean))
    return Task(model, loss, divisors, metrics)
