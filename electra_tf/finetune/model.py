# SPDX-License-Identifier: Apache-2.0
"""The encoder with a head for each task, and its interface to the training loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import ModelConfig
from electra_tf.finetune.task import SMOOTHED, HeadSpec
from electra_tf.model.dropout import dropout, fold_in
from electra_tf.model.encoder import TextEncoder
from electra_tf.model.transformer_layer import gelu, serializable
from electra_tf.pretrain.masking import gather_positions
from electra_tf.storage.checkpoints import StoredTensors
from electra_tf.train.reporting import Metric, Ratio
from electra_tf.train.step import Task

Tensors = Mapping[str, tf.Tensor]

# Added to the logits of positions that cannot be part of an answer, as in the original.
IMPOSSIBLE_POSITION = -1000.0
# Width of the layers in a question-answering head, whatever the encoder's width.
QA_HIDDEN_SIZE = 512


class _Head(keras.layers.Layer):
    """A head whose dense layers keep the dtype policy and Glorot's initializer."""

    def __init__(self, hidden_size: int, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.hidden_size = hidden_size
        self._inputs: list[tuple[keras.layers.Dense, int]] = []

    def dense(self, units: int, width: int, name: str) -> keras.layers.Dense:
        layer = keras.layers.Dense(units, name=name, dtype=self.dtype_policy)
        self._inputs.append((layer, width))
        return layer

    def build(self, input_shape=None):
        for layer, width in self._inputs:
            layer.build((None, width))


def _cross_entropy(labels, logits, smoothing: float = 0.0) -> tf.Tensor:
    """That of the right labels, a share `smoothing` of it that of all alike."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if smoothing:
        alike = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1 - smoothing) * losses + smoothing * alike
    return losses


class _ScoringHead(_Head):
    """A number, or one for each class, for a text or for each word.

    Args:
      label_smoothing: the share of the loss, in training, that all classes share.
      class_weights: by which the losses of each class's examples are multiplied then.
      has_hidden_layer: with GELU before the scores, as in transformers' heads.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int = 1,
        label_smoothing: float = 0.0,
        class_weights: list[float] | None = None,
        has_hidden_layer: bool = False,
        **kwargs,
    ):
        super().__init__(hidden_size, **kwargs)
        self.num_labels, self.hidden_layer = num_labels, None
        self.label_smoothing, self.class_weights = label_smoothing, class_weights
        if has_hidden_layer:
            self.hidden_layer = self.dense(hidden_size, hidden_size, "hidden")
        self.output_layer = self.dense(num_labels, hidden_size, "dense")

    def scores(self, hidden: tf.Tensor, seed) -> tf.Tensor:
        """Those of a text, float32 [B, scores], from the state at [CLS].

        `seed` switches dropout on.
        """
        pooled = dropout(hidden[:, 0], 0.1, seed)
        if self.hidden_layer:
            pooled = gelu(self.hidden_layer(pooled))
        return tf.cast(self.output_layer(pooled), tf.float32)


@serializable
class ClassificationHead(_ScoringHead):
    """One of `num_labels` classes, from the state at [CLS]; dropout before it."""

    def call(self, hidden, features: Tensors, training: bool, seed=None) -> Tensors:
        """Needs label_ids, int32 [B]; `seed` switches dropout on."""
        logits = self.scores(hidden, seed)
        labels = features["label_ids"]
        losses = _cross_entropy(labels, logits, self.label_smoothing * training)
        if training and self.class_weights:
            losses *= tf.gather(tf.constant(self.class_weights), labels)
        return {
            "loss": losses,
            "logits": logits,
            "predictions": tf.argmax(logits, axis=-1),
        }


@serializable
class MultilabelHead(_ScoringHead):
    """Any number of `num_labels` classes: a sigmoid for each, the loss their mean.

    Class weights count where a text has the class.
    """

    def call(self, hidden, features: Tensors, training: bool, seed=None) -> Tensors:
        """Needs label_flags, float32 [B, C]; `seed` switches dropout on."""
        logits = self.scores(hidden, seed)
        flags = features["label_flags"]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(flags, logits)
        if training and self.class_weights:
            losses *= tf.where(flags > 0, tf.constant(self.class_weights), 1.0)
        return {"loss": tf.reduce_mean(losses, axis=-1), "logits": logits}


@serializable
class RegressionHead(_ScoringHead):
    """A number, from the state at [CLS]; dropout before it, squared error."""

    def call(self, hidden, features: Tensors, training: bool, seed=None) -> Tensors:
        """Needs targets, float32 [B]; `seed` switches dropout on."""
        predictions = self.scores(hidden, seed)[:, 0]
        return {
            "loss": tf.square(predictions - features["targets"]),
            "predictions": predictions,
        }


@serializable
class TaggingHead(_ScoringHead):
    """A label for each word, from its first wordpiece; the loss sums over words."""

    def call(self, hidden, features: Tensors, training: bool, seed=None) -> Tensors:
        """Needs labeled_positions, labels int32 [B, W] and labels_mask float32."""
        del seed  # no dropout here, as in the original
        words = gather_positions(hidden, features["labeled_positions"])  # [B, W, H]
        flat = tf.reshape(words, [-1, self.hidden_size])
        labels, mask = features["labels"], features["labels_mask"]
        shape = tf.concat([tf.shape(labels), [self.num_labels]], 0)
        logits = tf.reshape(tf.cast(self.output_layer(flat), tf.float32), shape)
        losses = _cross_entropy(labels, logits, self.label_smoothing * training)
        return {
            "loss": tf.reduce_sum(losses * mask, axis=-1),
            "logits": logits,
            "predictions": tf.argmax(logits, axis=-1),
        }


@serializable
class QuestionAnsweringHead(_Head):
    """Where the answer starts and ends, and whether there is one.

    With `joint_prediction` the end is predicted from the start: in training from the
    right one, else from each of the `beam_size` best starts. `end_logits` is then 0
    outside training, and the loss of the end is meaningless, as in the original.

    Args:
      answerable_classifier: has a logit of "cannot be answered", from the state at
        [CLS] and, with `answerable_uses_start_logits`, the expected state at the start.
      answerable_weight: of that classifier's loss.
    """

    def __init__(
        self,
        hidden_size: int,
        joint_prediction: bool = True,
        beam_size: int = 20,
        answerable_classifier: bool = True,
        answerable_uses_start_logits: bool = True,
        answerable_weight: float = 0.5,
        **kwargs,
    ):
        super().__init__(hidden_size, **kwargs)
        self.joint_prediction, self.beam_size = joint_prediction, beam_size
        self.answerable_classifier = answerable_classifier
        self.answerable_uses_start_logits = answerable_uses_start_logits
        self.answerable_weight = answerable_weight
        names = iter(["dense", "dense_1", "dense_2", "dense_3"])
        self.start = self.dense(1, hidden_size, next(names))
        end_width = QA_HIDDEN_SIZE if joint_prediction else hidden_size
        if joint_prediction:
            self.qa_hidden = self.dense(end_width, 2 * hidden_size, "qa_hidden")
        self.end = self.dense(1, end_width, next(names))
        if answerable_classifier:
            width = QA_HIDDEN_SIZE if answerable_uses_start_logits else hidden_size
            if answerable_uses_start_logits:
                self.answerable_hidden = self.dense(width, 2 * hidden_size, next(names))
            self.answerable = self.dense(1, width, next(names))

    def call(self, hidden, features: Tensors, training: bool, seed=None) -> Tensors:
        """Needs input_mask and segment_ids [B, L], start_positions, end_positions and
        is_impossible [B], all int32."""
        del seed  # no dropout here, as in the original
        possible = tf.cast(features["input_mask"] * features["segment_ids"], tf.float32)
        possible += tf.one_hot(0, tf.shape(possible)[1])
        penalty = IMPOSSIBLE_POSITION * (1.0 - possible)  # [B, L]
        start_logits = self._scores(self.start, hidden) + penalty
        ends = self._ends(hidden, start_logits, penalty, features, training)
        of_start = _cross_entropy(features["start_positions"], start_logits)
        of_end = _cross_entropy(features["end_positions"], ends["end_logits"])
        losses = (of_start + of_end) / 2
        answerable_logit = tf.zeros_like(losses)
        if self.answerable_classifier:
            answerable_logit = self._answerable(hidden, start_logits)
            labels = tf.cast(features["is_impossible"], tf.float32)
            of_class = tf.nn.sigmoid_cross_entropy_with_logits(labels, answerable_logit)
            losses += self.answerable_weight * of_class
        scores = {"start_logits": start_logits, "answerable_logit": answerable_logit}
        return {"loss": losses} | scores | ends

    def _ends(self, hidden, start_logits, penalty, features, training):
        """End logits, and the best starts and ends by log-probability."""
        batch, beam = tf.shape(hidden)[0], self.beam_size
        found = {
            "start_top_log_probs": tf.zeros([batch, beam]),
            "start_top_index": tf.zeros([batch, beam], tf.int32),
            "end_top_log_probs": tf.zeros([batch, beam, beam]),
            "end_top_index": tf.zeros([batch, beam, beam], tf.int32),
        }
        if not self.joint_prediction:
            return found | {"end_logits": self._scores(self.end, hidden) + penalty}
        top = tf.math.top_k(tf.nn.log_softmax(start_logits), beam)
        found["start_top_log_probs"], found["start_top_index"] = top
        if training:
            starts = features["start_positions"][:, None]
            logits = self._ends_given(hidden, starts)[:, 0] + penalty
            return found | {"end_logits": logits}
        logits = self._ends_given(hidden, top.indices) + penalty[:, None]
        top = tf.math.top_k(tf.nn.log_softmax(logits), beam)
        found["end_top_log_probs"], found["end_top_index"] = top
        return found | {"end_logits": tf.zeros_like(start_logits)}

    def _ends_given(self, hidden: tf.Tensor, starts: tf.Tensor) -> tf.Tensor:
        """Scores of each end [B, S, L] given the starts [B, S].

        The hidden layer sees (start, end) side by side; its product is the sum of two,
        so no [B, S, L, 2H] is made, and one start at a time no [B, S, L, 512] either.
        """
        kernel = tf.cast(self.qa_hidden.kernel.value, hidden.dtype)
        bias = tf.cast(self.qa_hidden.bias.value, hidden.dtype)
        states = gather_positions(hidden, starts)  # [B, S, H]
        of_start = tf.matmul(states, kernel[: self.hidden_size]) + bias
        of_end = tf.matmul(hidden, kernel[self.hidden_size :])  # [B, L, 512]

        def scores(one_start):  # [B, 512]
            return self._scores(self.end, gelu(one_start[:, None] + of_end))

        if starts.shape[1] == 1:
            return scores(of_start[:, 0])[:, None]
        by_start = tf.transpose(of_start, [1, 0, 2])
        found = tf.map_fn(scores, by_start, fn_output_signature=tf.float32)
        return tf.transpose(found, [1, 0, 2])

    def _answerable(self, hidden, start_logits):
        state = hidden[:, 0]
        if self.answerable_uses_start_logits:
            weights = tf.cast(tf.nn.softmax(start_logits), hidden.dtype)
            expected = tf.matmul(weights[:, None], hidden)[:, 0]
            state = gelu(self.answerable_hidden(tf.concat([state, expected], -1)))
        return tf.cast(self.answerable(state)[:, 0], tf.float32)

    @staticmethod
    def _scores(layer, states: tf.Tensor) -> tf.Tensor:
        """A dense layer of width 1 on [B, L, D]: float32 [B, L]."""
        flat = tf.reshape(states, [-1, states.shape[-1]])
        return tf.cast(tf.reshape(layer(flat), tf.shape(states)[:-1]), tf.float32)


HEADS = {
    "classification": ClassificationHead,
    "multilabel": MultilabelHead,
    "regression": RegressionHead,
    "tagging": TaggingHead,
    "qa": QuestionAnsweringHead,
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

    def __init__(self, config: ModelConfig | dict, embedding_size, heads, **kwargs):
        super().__init__(autocast=False, **kwargs)
        config = ModelConfig(**config) if isinstance(config, dict) else config
        self.model_config = config
        self.embedding_size = embedding_size
        self.head_settings = {task: dict(given) for task, given in heads.items()}
        dtype = self.dtype_policy
        self.electra = TextEncoder(config, embedding_size, dtype=dtype)
        self.electra.build(None)
        self.heads = []
        with keras.name_scope("task_specific"):
            for task, settings in self.head_settings.items():
                own = {"name": task, "dtype": dtype} | settings
                head = HEADS[own.pop("kind")](config.hidden_size, **own)
                head.build()
                self.heads.append(head)
        self.built = True
        self._traced = {}

    def traced(self, task: str, specs: Mapping[str, tf.TensorSpec]):
        """The outputs of one head as a function of a batch; traced once.

        Args:
          specs: shapes and types of its batches.
        """
        key = task, *sorted(specs.items())
        if key not in self._traced:

            def outputs(batch):
                return self(batch, training=False).outputs[task]

            self._traced[key] = tf.function(outputs, [dict(specs)], autograph=False)
        return self._traced[key]

    def call(self, batch: Tensors, training=False, seed=None) -> FinetuningOutput:
        """Runs the heads whose features are in the batch.

        Args:
          batch: input_ids, input_mask, segment_ids [B, L], task_id [B] (a number that
            is not a task's marks padding) and `<task>:<feature>` of the tasks to run.
          training: whether answers' ends are predicted from the right start.
          seed: int32 [2], switches dropout on.
        """
        shared = {name: batch[name] for name in SHARED}
        encoded = self.electra(
            *shared.values(), seed=fold_in(seed, 0), training=False
        ).sequence_output
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
    shape = config.model_config(), config.embedding_size
    settings = {task.name: _head_settings(task.head, config) for task in tasks}
    return FinetuningModel(*shape, settings, dtype=dtype or config.precision)


def _head_settings(spec: HeadSpec, config: FinetuningConfig) -> dict[str, Any]:
    """The kind and the arguments of a head."""
    if spec.kind == "qa":
        names = ("joint_prediction", "beam_size", "answerable_classifier")
        names += ("answerable_uses_start_logits", "answerable_weight")
        return {"kind": "qa"} | {name: getattr(config, name) for name in names}
    smoothing = config.label_smoothing if spec.kind in SMOOTHED else 0.0
    options = spec._asdict() | {"label_smoothing": smoothing}
    return {name: value for name, value in options.items() if value}


def load_encoder(tensors: StoredTensors, variables: Mapping[str, Any]) -> None:
    """Assigns the encoder's weights; heads keep theirs.

    Raises `UserError` naming the first variable that is absent or of another shape.
    """
    tensors.assign_to({k: v for k, v in variables.items() if k.startswith("electra/")})


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
