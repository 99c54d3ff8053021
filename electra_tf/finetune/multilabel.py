# SPDX-License-Identifier: Apache-2.0
"""Texts with any number of classes each, in files of the user's own.

The column of labels has them side by side, separated by a sign; in JSONL it may be a
list. A text may have none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from electra_tf.errors import UserError
from electra_tf.finetune import inputs
from electra_tf.finetune.classification import TextTask
from electra_tf.finetune.inputs import shown
from electra_tf.finetune.task import (
    FeatureSpec,
    HeadSpec,
    Scorer,
    rounded,
    scores_by_class,
)

SEPARATOR = ","
_VECTOR = re.compile(r"[01]([ ,;|]+[01])+")
_UNNAMED = (
    "labels are vectors of {} numbers, one for each class, and classes are called by "
    "their place from 0; label_names names them"
)


def split(label: Any, separator: str) -> tuple[str, ...]:
    """The labels of one text, without the spaces around them.

    A list, one that was printed (as pandas does), 0 and 1 side by side, or a text with
    separators.
    """
    if isinstance(label, str) and label.strip()[:1] in ("[", "(", "{"):
        there = inputs.printed(label)
        label = there if isinstance(there, list) else label
    if isinstance(label, str) and _VECTOR.fullmatch(label.strip()):
        label = re.findall(r"[01]", label)
    parts = label if isinstance(label, list) else str(label).split(separator)
    parts = (int(part) if isinstance(part, bool) else part for part in parts)
    found = (str(part).strip() for part in parts)
    return tuple(part for part in found if part)


def _flag(value: Any) -> float | None:
    """0 or 1 of a cell; any other number; None for text."""
    return inputs.number_of(int(value) if isinstance(value, bool) else value)


def is_vectors(labels: Sequence[tuple[str, ...]]) -> bool:
    """Whether labels are vectors of 0 and 1, a number for each class."""
    widths = {len(label) for label in labels}
    numbers = {inputs.number_of(name) for label in labels for name in label}
    return len(widths) == 1 and max(widths) > 1 and numbers <= {0.0, 1.0}


class MultilabelScorer(Scorer):
    """F1 over all decisions (micro) and over classes (macro), and whole matches."""

    def __init__(self, labels: tuple[str, ...]):
        super().__init__()
        self.labels = labels

    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        gold = np.array([row["label_flags"] for row in self.rows]) > 0.5
        return gold, np.array([row["logits"] for row in self.rows]) > 0

    @property
    def _which(self) -> list[bool] | None:
        """For scikit-learn, to which one column is two classes: no and yes."""
        return [True] if len(self.labels) == 1 else None

    def get_results(self) -> list[tuple[str, float]]:
        """f1 (micro), f1_macro, exact_match and loss."""
        from sklearn import metrics

        gold, ours = self._arrays()
        options = {"labels": self._which, "zero_division": 0.0}
        found = {
            "f1": metrics.f1_score(gold, ours, average="micro", **options),
            "f1_macro": metrics.f1_score(gold, ours, average="macro", **options),
            "exact_match": np.mean(np.all(gold == ours, axis=1)),
        }
        loss = np.mean([row["loss"] for row in self.rows], dtype=np.float64)
        return [
            *((k, 100.0 * float(v)) for k, v in found.items()),
            ("loss", float(loss)),
        ]

    def details(self) -> dict[str, Any]:
        """Precision, recall and F1 of each class, in percent."""
        classes = scores_by_class(*self._arrays(), self.labels, self._which)
        return {"classes": classes}

    @property
    def is_degenerate(self) -> bool:
        """Whether every text gets the same classes."""
        return len({row.tobytes() for row in self._arrays()[1]}) == 1


class MultilabelTask(TextTask):
    """Any number of classes for texts in columns."""

    fewest_labels = 1  # Which a text may have or not.
    main_metric = "f1"

    @property
    def head(self) -> HeadSpec:
        """One output per class."""
        return HeadSpec("multilabel", len(self.labels), self.class_weights)

    def names_in(self, label: tuple[str, ...]) -> tuple[str, ...]:
        """The classes that the label of an example names."""
        return label

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """label_flags and eid."""
        flags = FeatureSpec("label_flags", (len(self.labels),), "float32")
        return (flags, FeatureSpec("eid", (), "int32"))

    @property
    def _has_columns(self) -> bool:
        """Whether each class has a column of its own, of 0 and 1."""
        return isinstance(self.description["label"], list)

    def wrong_cells(self, row: dict[str | None, Any]) -> str | None:
        """What is wrong with the cells of the labels, as far as their type goes."""
        for column in self.label_columns:
            value = row[column]
            if self._has_columns and _flag(value) not in (0, 1):
                return f"column {column!r} is {shown(value)}, not 0 or 1"
            parts = value if isinstance(value, list) else [value]
            if any(part is None or isinstance(part, (list, dict)) for part in parts):
                return f"{column} is {shown(value)}"
            if str(value)[:1] == "{" and isinstance(inputs.printed(value), dict):
                return f"{column} is {shown(value)}, not a list"
        return None

    def label_of(self, row: dict[str | None, Any]) -> tuple[str, ...]:
        """The labels of a line."""
        if self._has_columns:
            return tuple(name for name in self.label_columns if _flag(row[name]))
        separator = self.description.get("separator", SEPARATOR)
        return split(row[self.description["label"]], separator)

    def one_spelling(self, split: str, labels: list[Any]) -> list[Any]:
        """Labels by name: of vectors those that are 1, of numbers those of a list."""
        if self._has_columns:
            return labels
        names = self.description.get("label_names")
        if split == "train" or not self.is_there("train"):
            self._is_vectors = is_vectors(labels)
            self._width = len(labels[0]) if labels else 0
            if {*labels} == {("0",), ("1",)}:
                raise UserError(
                    f"task {self.name}: the labels of {self.path(split)} are the "
                    "numbers 0 and 1, one each.\nType classification is for one class "
                    'a text; "label" may list the columns of several classes.'
                )
            if self._is_vectors and not names:
                self.remark(split, _UNNAMED.format(self._width), 0)
        elif not hasattr(self, "_is_vectors"):
            self.read("train")
        if self._is_vectors:
            names = names or [*map(str, range(self._width))]
            labels = [self._of_vector(label, names) for label in labels]
        elif names:
            of_number = {str(number): name for number, name in enumerate(names)}
            labels = [tuple(of_number.get(x, x) for x in label) for label in labels]
        flat = [name for label in labels for name in label]
        if several := [name for name in flat if re.search(r"\w *[;|] *\w", name)]:
            what = f'labels such as {shown(several[0])} are one class; "separator" '
            self.remark(split, f"{what}of the task parts them", len(several))
        spelling = dict(zip(flat, super().one_spelling(split, flat), strict=True))
        return [tuple(dict.fromkeys(map(spelling.get, label))) for label in labels]

    def _of_vector(self, label: tuple[str, ...], names: Sequence[str]):
        numbers = [inputs.number_of(x) for x in label]
        if len(numbers) != self._width or not {*numbers} <= {0.0, 1.0}:
            return ("no vector: " + " ".join(label),)
        pairs = zip(names, numbers, strict=False)
        return tuple(name for name, number in pairs if number)

    def unknown_label(self) -> tuple[str, ...]:
        """The labels of a test set, which has none."""
        return ()

    def wrong_label(self, label: tuple[str, ...]) -> str | None:
        """What is wrong with the labels of a text."""
        return next(filter(None, map(super().wrong_label, label)), None)

    def answer_features(self, example) -> dict[str, Any]:
        """The features of the right answer."""
        return {"label_flags": [float(name in example.label) for name in self.labels]}

    def scorer(self, split: str) -> Scorer:
        """By F1."""
        return MultilabelScorer(self.labels)

    def prediction(self, example, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The classes above one half, and all probabilities."""
        del example
        [row] = rows
        shares = 1 / (1 + np.exp(-np.asarray(row["logits"], np.float64)))
        pairs = list(zip(self.labels, shares, strict=True))
        return {
            "labels": [name for name, share in pairs if share > 0.5],
            "probabilities": {name: rounded(share) for name, share in pairs},
        }
