# SPDX-License-Identifier: Apache-2.0
"""The encoder with a head for each task, and what the training loop asks of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import ModelConfig
from electra_tf.finetune import heads
from electra_tf.finetune.task import SMOOTHED, HeadSpec
from electra_tf.model.dropout import fold_in
from electra_tf.model.encoder import TextEncoder
from electra_tf.train.reporting import Metric

HEADS = {
    "classification": heads.ClassificationHead,
    "multilabel": heads.MultilabelHead,
    "regression": heads.RegressionHead,
    "tagging": heads.TaggingHead,
    "qa": heads.QuestionAnsweringHead,
}
# What reaches every head under its own name.
SHARED = ("input_ids", "input_mask", "segment_ids")


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

    def __init__(
        self,
        config: ModelConfig | dict,
        embedding_size: int,
        heads: Mapping[str, Mapping[str, Any]],
        name: str = "finetuning_model",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        if isinstance(config, dict):
            config = ModelConfig(**config)
        self.model_config = config
        self.embedding_size = embedding_size
        self.head_settings = {task: dict(given) for task, given in heads.items()}
        dtype = self.dtype_policy
        self.electra = TextEncoder(config, embedding_size, dtype=dtype)
        self.electra.build(None)
        self.heads = []
        with keras.name_scope("task_specific"):
            for task, settings in self.head_settings.items():
                settings = dict(settings)
                head = HEADS[settings.pop("kind")](
                    config.hidden_size, name=task, dtype=dtype, **settings
                )
                head.build()
                self.heads.append(head)
        self.built = True
        self._traced = {}

    def traced(self, task: str, specs: Mapping[str, tf.TensorSpec]):
        """The outputs of one head as a function of a batch; traced once.

        Args:
          specs: what its batches may be.
        """
        key = task, *sorted(specs.items())
        if key not in self._traced:

            def outputs(batch):
                return self(batch, training=False).outputs[task]

            self._traced[key] = tf.function(outputs, [dict(specs)], autograph=False)
        return self._traced[key]

    def call(
        self,
        batch: dict[str, tf.Tensor],
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> FinetuningOutput:
        """Runs the heads whose features are in the batch.

        Args:
          batch: input_ids, input_mask, segment_ids [B, L], task_id [B] (a number that
            is not a task's marks padding) and `<task>:<feature>` of the tasks to run.
          training: whether answers' ends are predicted from the right start.
          seed: int32 [2], switches dropout on.
        """
        encoded = self.electra(
            *(batch[name] for name in SHARED), seed=fold_in(seed, 0), training=False
        ).sequence_output
        shared = {name: batch[name] for name in SHARED}
        outputs, losses = {}, []
        for number, head in enumerate(self.heads):
            prefix = f"{head.name}:"
            own = (key for key in batch if key.startswith(prefix))
            features = {key.removeprefix(prefix): batch[key] for key in own}
            if not features:
                losses.append(tf.zeros(tf.shape(batch["task_id"])))
                continue
            found = head(
                encoded,
                features | shared,
                training=training,
                seed=fold_in(seed, number + 1),
            )
            outputs[head.name] = found
            losses.append(found["loss"])
        chosen = tf.one_hot(batch["task_id"], len(self.heads))
        losses = chosen * tf.stack(losses, axis=-1)
        return FinetuningOutput(tf.reduce_sum(losses), losses, outputs)

    def get_config(self):
        return {
            "name": self.name,
            "dtype": self.dtype_policy.name,
            "config": dataclasses.asdict(self.model_config),
            "embedding_size": self.embedding_size,
            "heads": self.head_settings,
        }


def build_finetuning_model(config, tasks, dtype=None) -> FinetuningModel:
    """The model of a FinetuningConfig.

    Args:
      tasks: objects with a `name` and a `head` (`finetune.task.HeadSpec`).
      dtype: a Keras dtype policy; by default the one of `config.precision`.
    """
    settings = {task.name: head_settings(task.head, config) for task in tasks}
    dtype = dtype or config.precision
    shape = config.model_config(), config.embedding_size
    return FinetuningModel(*shape, settings, dtype=dtype)


def head_settings(spec: HeadSpec, config: FinetuningConfig) -> dict[str, Any]:
    """The kind and the arguments of a head."""
    if spec.kind == "qa":
        names = ("joint_prediction", "beam_size", "answerable_classifier")
        names += ("answerable_uses_start_logits", "answerable_weight")
        return {"kind": "qa"} | {name: getattr(config, name) for name in names}
    options = {
        "label_smoothing": config.label_smoothing if spec.kind in SMOOTHED else 0.0,
        "class_weights": spec.class_weights,
        "has_hidden_layer": spec.has_hidden_layer,
        "num_labels": spec.num_labels,
    }
    return {"kind": spec.kind} | {k: v for k, v in options.items() if v}


def freeze(model: FinetuningModel, layers: int) -> None:
    """Takes the embeddings and the lowest layers out of the training.

    They get no gradient, no decay and no slots of the optimizer. Dropout stays.
    """
    frozen = ("electra/embeddings/", "electra/embeddings_project/")
    frozen += tuple(f"electra/encoder/layer_{layer}/" for layer in range(layers))
    for variable in model.variables:
        if variable.path.startswith(frozen):
            variable.trainable = False


def without_padding(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """A batch of unknown length, cut to its longest example.

    A microbatch of similar lengths is shorter than the batch that it is a part of.
    """
    if batch["input_ids"].shape[1]:
        return batch
    longest = tf.reduce_max(tf.reduce_sum(batch["input_mask"], axis=1))
    return batch | {name: batch[name][:, :longest] for name in SHARED}


class TrainableFinetuningModel:
    """Trains a FinetuningModel (see `train.step.Trainable`)."""

    metrics = (Metric("loss", "loss, summed over the examples", short="loss"),)

    def __init__(self, model: FinetuningModel):
        self.model = model
        self.task_names = [head.name for head in model.heads]

    def loss_weights(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """The number of examples that are not padding; the loss is a sum, though."""
        real = batch["task_id"] < len(self.task_names)
        return tf.reduce_sum(tf.cast(real, tf.float32))

    def training_sums(
        self, batch: dict[str, tf.Tensor], seed: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """The loss, summed over examples, and each task's loss and examples."""
        del weights
        output = self.model(without_padding(batch), training=True, seed=seed)
        of_task = tf.one_hot(batch["task_id"], len(self.task_names))
        sums = {}
        for number, name in enumerate(self.task_names):
            sums[f"{name}/loss"] = tf.reduce_sum(output.losses[:, number])
            sums[f"{name}/examples"] = tf.reduce_sum(of_task[:, number])
        return output.total_loss, sums

    def training_metrics(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """`<task>_loss`: the mean over the task's examples in the batch."""
        return {
            f"{name}_loss": sums[f"{name}/loss"]
            / np.maximum(sums[f"{name}/examples"], 1.0)
            for name in self.task_names
        }
