# SPDX-License-Identifier: Apache-2.0
"""One or two texts, and any number of classes: a sigmoid for each.

Labels are a text with separators, a list, or a column of 0 and 1 for each class.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from electra_tf.finetune import classification, task
from electra_tf.finetune.classification import PRINTED, TEXTS, LabelsHead, TextTask
from electra_tf.finetune.inputs import Row, shown

_FLAGS = {"0": False, "0.0": False, "False": False, "false": False}
_FLAGS |= {"1": True, "1.0": True, "True": True, "true": True}
# A label of a vector: 1 0 0, 100, [1. 0. 0.], or 1 of 1, 0, 0.
_BITS = re.compile(r"[^\w+-]*[01]([01]|[^\w+-])*")


@dataclasses.dataclass(frozen=True)
class FlagsHead(LabelsHead):
    """Any number of classes: a sigmoid for each, the loss their mean."""

    kind = "multilabel"

    def outputs(self, dense, hidden, features, training, seed):
        """logits [B, C]."""
        return {"logits": self.scores(dense, hidden, seed)}

    def shares(self, logits):
        """The probability of each class by itself."""
        import tensorflow as tf

        return tf.sigmoid(logits)

    @staticmethod
    def prediction(fields, row):
        """The classes above one half, and all probabilities."""
        odds = LabelsHead.odds(row)
        likely = [name for name, share in odds.items() if share > 0.5]
        return {"labels": likely, "probabilities": odds}

    def loss(self, outputs, features, training):
        """Needs label_flags, float32 [B, C]."""
        import tensorflow as tf

        flags, logits = features["label_flags"], outputs["logits"]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(flags, logits)
        if training and self.class_weights:
            losses *= tf.where(flags > 0, tf.constant(self.class_weights), 1.0)
        return tf.reduce_mean(losses, axis=-1)


class MultilabelScorer(task.Scorer):
    """F1 over all decisions (micro) and over classes (macro), and whole matches."""

    def __init__(self, labels: tuple[str, ...]):
        super().__init__()
        self.labels = labels

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        return self.values("label_flags") > 0.5, self.values("logits") > 0

    def get_results(self) -> list[tuple[str, float]]:
        """f1 (micro), f1_macro, exact_match and loss."""
        gold, ours = self._arrays()
        right, total = np.sum(gold & ours, 0), np.sum(gold, 0) + np.sum(ours, 0)
        found = {
            "f1": 2 * np.sum(right) / max(np.sum(total), 1),
            "f1_macro": np.mean(2 * right / np.maximum(total, 1)),
            "exact_match": np.mean(np.all(gold == ours, axis=1)),
        }
        shares = ((name, 100.0 * float(value)) for name, value in found.items())
        return [*shares, ("loss", self.mean_loss)]

    def details(self) -> dict[str, Any]:
        """Precision, recall and F1 of each class, in percent."""
        gold, ours = (
            {(row, self.labels[k]) for row, k in np.argwhere(flags).tolist()}
            for flags in self._arrays()
        )
        return {"classes": task.scores_by_class(ours, gold)}


class MultilabelTask(TextTask):
    """Any number of classes for texts in columns."""

    fewest_labels = 1  # which a text may have or not
    main_metric = "f1"

    @property
    def head(self) -> task.Head:
        """One output per class."""
        return FlagsHead(len(self.labels), class_weights=self.class_weights)

    def feature_specs(self) -> tuple[task.FeatureSpec, ...]:
        """label_flags and eid."""
        flags = task.FeatureSpec("label_flags", (len(self.labels),), "float32")
        return flags, task.FeatureSpec("eid", (), "int32")

    def label_of(self, row: Row) -> tuple[str, ...]:
        """The labels of a row; ValueError for cells of another type."""
        given = self.description.get
        if isinstance(given("label"), list):
            flags = {k: _FLAGS.get(str(row[k]).strip()) for k in self.label_columns}
            if wrong := [name for name, flag in flags.items() if flag is None]:
                value = shown(row[wrong[0]])
                raise ValueError(f"column {wrong[0]!r} is {value}, not 0 or 1")
            return tuple(str(name) for name, flag in flags.items() if flag)
        [column] = self.label_columns
        value = row[column]
        if isinstance(value, str) and not PRINTED.fullmatch(value.strip()):
            value = value.split(given("separator", ","))
        parts, kinds = value if isinstance(value, list) else [value], (str, int, float)
        if isinstance(value, str) or not all(isinstance(x, kinds) for x in parts):
            raise ValueError(
                f"{column} is {shown(value)}, neither a list in JSON nor labels with "
                '"," or the task\'s "separator" between them'
            )
        numbers = {str(n): name for n, name in enumerate(given("label_names", ()))}
        texts = (str(int(x) if isinstance(x, bool) else x).strip() for x in parts)
        return tuple(dict.fromkeys(numbers.get(text, text) for text in texts if text))

    def _problems(self) -> Iterator[str]:
        """Also labels that are vectors of 0 and 1."""
        given, labels = self.description.get, () if self.stored else self.labels
        is_named = isinstance(given("label"), list) or given("label_names")
        if not is_named and labels and all(map(_BITS.fullmatch, labels)):
            yield (
                f"the labels of {self.path('train')} are vectors of 0 and 1.\nWrite "
                'the names of the classes, or give each a column: "label": ["joy", '
                '"fear"]. For one class use the type classification.'
            )
        yield from super()._problems()

    def unknown_label(self) -> tuple[str, ...]:
        """The labels of a test set, which has none."""
        return ()

    def wrong_label(self, label: tuple[str, ...]) -> str | None:
        """What is wrong with the labels of a text."""
        return next(filter(None, map(super().wrong_label, label)), None)

    def answer_features(self, example) -> dict[str, Any]:
        """The features of the right answer."""
        return {"label_flags": [float(name in example.label) for name in self.labels]}

    def scorer(self, split: str) -> task.Scorer:
        """By F1."""
        return MultilabelScorer(self.labels)


_LABELS = task.of_types("a column, or a list of one a class", str, int, list).needed
_SEPARATOR = task.Key(
    lambda x: type(x) is str and x != "", "the sign between labels, such as ,"
)
_KEYS = {"label": _LABELS, "separator": _SEPARATOR}
_KEYS |= {"label_names": task.NAMES, "class_weights": classification.WEIGHTS}
TYPES = {"multilabel": task.TaskType(MultilabelTask, FlagsHead, TEXTS | _KEYS)}
