# SPDX-License-Identifier: Apache-2.0
"""The heads on top of the encoder, one per task.

Layer names are those the original program's variables got, so that `variable.path` is
the name in its checkpoints. A head takes hidden states [B, L, H] and the features of
its task by their names without the task's prefix, and returns the original's outputs
by name, among them "loss" [B].

Shapes: B batch, L length, H hidden width, W labelled words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from electra_tf.model.dropout import dropout
from electra_tf.model.transformer_layer import gelu, serializable
from electra_tf.pretrain.masking import gather_positions

Features = Mapping[str, tf.Tensor]

# Added to the logits of positions that cannot be part of an answer, as in the original.
IMPOSSIBLE_POSITION = -1000.0
# Width of the layers in a question-answering head, whatever the encoder's width.
QA_HIDDEN_SIZE = 512


class _Head(keras.layers.Layer):
    """A head whose dense layers keep the dtype policy and Glorot's initializer."""

    def __init__(self, hidden_size: int, name: str, **kwargs):
        super().__init__(name=name, autocast=False, **kwargs)
        self.hidden_size = hidden_size
        self._inputs: list[tuple[keras.layers.Dense, int]] = []

    def dense(self, units: int, width: int, name: str) -> keras.layers.Dense:
        layer = keras.layers.Dense(units, name=name, dtype=self.dtype_policy)
        self._inputs.append((layer, width))
        return layer

    def build(self, input_shape=None):
        for layer, width in self._inputs:
            layer.build((None, width))


def cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, smoothing: float = 0.0
) -> tf.Tensor:
    """That of the right labels, a share `smoothing` of it that of all alike."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if smoothing:
        alike = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1 - smoothing) * losses + smoothing * alike
    return losses


class _TextHead(_Head):
    """Scores of a text, from the state at [CLS]; dropout before them.

    Args:
      has_hidden_layer: with GELU before the scores, as in transformers' heads.
    """

    def __init__(
        self,
        hidden_size: int,
        num_scores: int,
        dropout_rate: float = 0.1,
        has_hidden_layer: bool = False,
        **kwargs,
    ):
        super().__init__(hidden_size, **kwargs)
        self.dropout_rate = dropout_rate
        self.hidden_layer = None
        if has_hidden_layer:
            self.hidden_layer = self.dense(hidden_size, hidden_size, "hidden")
        self.output_layer = self.dense(num_scores, hidden_size, "dense")

    def scores(self, hidden: tf.Tensor, seed) -> tf.Tensor:
        """float32 [B, scores]; `seed` switches dropout on."""
        pooled = dropout(hidden[:, 0], self.dropout_rate, seed)
        if self.hidden_layer:
            pooled = gelu(self.hidden_layer(pooled))
        return tf.cast(self.output_layer(pooled), tf.float32)


@serializable
class ClassificationHead(_TextHead):
    """One of `num_labels` classes, from the state at [CLS]; dropout before it.

    Args:
      label_smoothing: the share of the loss, in training, that all classes share.
      class_weights: by which the losses of each class's examples are multiplied then.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        label_smoothing: float = 0.0,
        class_weights: Sequence[float] | None = None,
        name: str = "classification",
        **kwargs,
    ):
        super().__init__(hidden_size, num_labels, name=name, **kwargs)
        self.num_labels = num_labels
        self.label_smoothing, self.class_weights = label_smoothing, class_weights

    def call(
        self, hidden: tf.Tensor, features: Features, training: bool, seed=None
    ) -> dict[str, tf.Tensor]:
        """Needs label_ids, int32 [B]; `seed` switches dropout on."""
        logits = self.scores(hidden, seed)
        labels = features["label_ids"]
        losses = cross_entropy(labels, logits, self.label_smoothing * training)
        if training and self.class_weights:
            losses *= tf.gather(tf.constant(self.class_weights), labels)
        return {
            "loss": losses,
            "logits": logits,
            "predictions": tf.argmax(logits, axis=-1),
            "label_ids": labels,
            "eid": features["eid"],
        }


@serializable
class MultilabelHead(ClassificationHead):
    """Any number of `num_labels` classes: a sigmoid for each, the loss their mean.

    Class weights count where a text has the class.
    """

    def call(
        self, hidden: tf.Tensor, features: Features, training: bool, seed=None
    ) -> dict[str, tf.Tensor]:
        """Needs label_flags, float32 [B, C]; `seed` switches dropout on."""
        logits = self.scores(hidden, seed)
        flags = features["label_flags"]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(flags, logits)
        if training and self.class_weights:
            losses *= tf.where(flags > 0, tf.constant(self.class_weights), 1.0)
        return {
            "loss": tf.reduce_mean(losses, axis=-1),
            "logits": logits,
            "label_flags": flags,
            "eid": features["eid"],
        }


@serializable
class RegressionHead(_TextHead):
    """A number, from the state at [CLS]; dropout before it, squared error."""

    def __init__(self, hidden_size: int, name: str = "regression", **kwargs):
        super().__init__(hidden_size, 1, name=name, **kwargs)

    def call(
        self, hidden: tf.Tensor, features: Features, training: bool, seed=None
    ) -> dict[str, tf.Tensor]:
        """Needs targets, float32 [B]; `seed` switches dropout on."""
        predictions = self.scores(hidden, seed)[:, 0]
        return {
            "loss": tf.square(predictions - features["targets"]),
            "predictions": predictions,
            "targets": features["targets"],
            "eid": features["eid"],
        }


@serializable
class TaggingHead(_Head):
    """A label for each word, from its first wordpiece; the loss sums over words."""

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        label_smoothing: float = 0.0,
        name: str = "tagging",
        **kwargs,
    ):
        super().__init__(hidden_size, name, **kwargs)
        self.num_labels, self.label_smoothing = num_labels, label_smoothing
        self.output_layer = self.dense(num_labels, hidden_size, "dense")

    def call(
        self, hidden: tf.Tensor, features: Features, training: bool, seed=None
    ) -> dict[str, tf.Tensor]:
        """Needs labeled_positions, labels int32 [B, W] and labels_mask float32."""
        del seed  # no dropout here, as in the original
        words = gather_positions(hidden, features["labeled_positions"])  # [B, W, H]
        flat = tf.reshape(words, [-1, self.hidden_size])
        labels, mask = features["labels"], features["labels_mask"]
        shape = tf.concat([tf.shape(labels), [self.num_labels]], 0)
        logits = tf.reshape(tf.cast(self.output_layer(flat), tf.float32), shape)
        losses = cross_entropy(labels, logits, self.label_smoothing * training)
        return {
            "loss": tf.reduce_sum(losses * mask, axis=-1),
            "logits": logits,
            "predictions": tf.argmax(logits, axis=-1),
            "labels": labels,
            "labels_mask": mask,
            "eid": features["eid"],
        }


@serializable
class QuestionAnsweringHead(_Head):
    """Where the answer starts and ends, and whether there is one.

    With `joint_prediction` the end is predicted from the start: in training from the
    right one, else from each of the `beam_size` best starts. `end_logits` is then 0
    outside training, and the loss of the end tells nothing, as in the original.

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
        name: str = "qa",
        **kwargs,
    ):
        super().__init__(hidden_size, name, **kwargs)
        self.joint_prediction = joint_prediction
        self.beam_size = beam_size
        self.answerable_classifier = answerable_classifier
        self.answerable_uses_start_logits = answerable_uses_start_logits
        self.answerable_weight = answerable_weight
        names = iter(["dense", "dense_1", "dense_2", "dense_3"])
        self.start = self.dense(1, hidden_size, next(names))
        end_width = hidden_size
        if joint_prediction:
            end_width = QA_HIDDEN_SIZE
            self.qa_hidden = self.dense(end_width, 2 * hidden_size, "qa_hidden")
        self.end = self.dense(1, end_width, next(names))
        if answerable_classifier:
            width = hidden_size
            if answerable_uses_start_logits:
                width = QA_HIDDEN_SIZE
                self.answerable_hidden = self.dense(width, 2 * hidden_size, next(names))
            self.answerable = self.dense(1, width, next(names))

    def call(
        self, hidden: tf.Tensor, features: Features, training: bool, seed=None
    ) -> dict[str, tf.Tensor]:
        """Needs input_mask and segment_ids [B, L], start_positions, end_positions and
        is_impossible [B], all int32."""
        del seed  # no dropout here, as in the original
        possible = tf.cast(features["input_mask"] * features["segment_ids"], tf.float32)
        possible += tf.one_hot(0, tf.shape(possible)[1])
        penalty = IMPOSSIBLE_POSITION * (1.0 - possible)  # [B, L]
        start_logits = self._scores(self.start, hidden) + penalty
        ends = self._ends(hidden, start_logits, penalty, features, training)
        start_positions, end_positions = (
            features[name] for name in ("start_positions", "end_positions")
        )
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
        of_start = cross_entropy(start_positions, start_logits)
        losses = (of_start + cross_entropy(end_positions, ends["end_logits"])) / 2
        answerable_logit = tf.zeros_like(losses)
        if self.answerable_classifier:
            answerable_logit = self._answerable(hidden, start_logits)
            labels = tf.cast(features["is_impossible"], tf.float32)
            losses += self.answerable_weight * tf.nn.sigmoid_cross_entropy_with_logits(
                labels, answerable_logit
            )
        return {
            "loss": losses,
            "start_logits": start_logits,
            "answerable_logit": answerable_logit,
            "start_positions": start_positions,
            "end_positions": end_positions,
            **ends,
            "eid": features["eid"],
        }

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
            both = tf.concat([state, expected], -1)
            state = gelu(self.answerable_hidden(both))
        return tf.cast(self.answerable(state)[:, 0], tf.float32)

    @staticmethod
    def _scores(layer, states: tf.Tensor) -> tf.Tensor:
        """A dense layer of width 1 on [B, L, D]: float32 [B, L]."""
        flat = tf.reshape(states, [-1, states.shape[-1]])
        return tf.cast(tf.reshape(layer(flat), tf.shape(states)[:-1]), tf.float32)
