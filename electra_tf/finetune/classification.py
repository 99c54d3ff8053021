# SPDX-License-Identifier: Apache-2.0
"""One or two texts, and a class or a number."""

from __future__ import annotations

import collections
import functools
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.finetune import cells, inputs
from electra_tf.finetune.inputs import Columns, Input, Source, shown
from electra_tf.finetune.task import (
    FeatureSpec,
    HeadSpec,
    OwnFiles,
    Scorer,
    Task,
    class_details,
    reasons,
    rounded,
    write_jsonl,
)
from electra_tf.text import packing


class InputExample(NamedTuple):
    """One line of a file."""

    eid: int
    text_a: str
    text_b: str | None
    label: Any
    id: Any = None  # the user's own


def example_of(eid: int, given: dict[str, Any], label: Any) -> InputExample:
    """The example of what `inputs.texts` gives."""
    return InputExample(eid, given["text"], given.get("text_b"), label, given.get("id"))


def columns_of(
    description: Mapping[str, Any], usual: Sequence[Columns], num_texts: int
) -> list[Columns]:
    """Where the texts of a task may stand in a table: the first that are there."""
    own = tuple(description[k] for k in ("text_a", "text_b") if description.get(k))
    return [*([own] if own else usual), ("text", "text_b")[:num_texts]]


class ClassificationScorer(Scorer):
    """Accuracy, Matthews' correlation or F1, by scikit-learn.

    F1 is that of the second of two classes; of more classes, the mean over them.

    Args:
      metric: the main one.
      labels: the names of the classes.
      more: other metrics.
    """

    def __init__(
        self, metric: str, labels: Sequence[str] = (), more: Sequence[str] = ()
    ):
        super().__init__()
        self.metrics, self.labels = (metric, *more), labels

    def get_results(self) -> list[tuple[str, float]]:
        """The metrics and the mean loss."""
        labels = np.array([row["label_ids"] for row in self.rows])
        predictions = np.array([row["predictions"] for row in self.rows])
        found = [(m, 100.0 * self._value(m, labels, predictions)) for m in self.metrics]
        loss = np.mean([row["loss"] for row in self.rows], dtype=np.float64)
        return [*found, ("loss", float(loss))]

    def _value(self, metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
        from sklearn import metrics

        if metric == "mcc":
            return float(metrics.matthews_corrcoef(labels, predictions))
        if metric == "f1":
            average = "binary" if len(self.labels) == 2 else "macro"
            options = {"average": average, "zero_division": 0.0}
            return float(metrics.f1_score(labels, predictions, **options))
        return float(metrics.accuracy_score(labels, predictions))

    def details(self) -> dict[str, Any]:
        """Each class's precision, recall and F1, and which is taken for which."""
        both = (
            [self.labels[int(row[name])] for row in self.rows]
            for name in ("label_ids", "predictions")
        )
        return class_details(*both)

    @property
    def is_degenerate(self) -> bool:
        """Whether every example gets the same class."""
        return len({int(row["predictions"]) for row in self.rows}) == 1


class RegressionScorer(Scorer):
    """Correlations and the mean squared error.

    A correlation is 0 where predictions do not vary, and not a number where nothing can
    correlate: one example, or equal targets.
    """

    def get_results(self) -> list[tuple[str, float]]:
        """pearson, spearman, mse, loss."""
        from scipy import stats

        targets = np.array([row["targets"] for row in self.rows])
        predictions = np.array([row["predictions"] for row in self.rows])
        is_defined = len(self.rows) > 1 and np.ptp(targets) > 0
        pearson = spearman = 0.0 if is_defined else math.nan
        if is_defined and not self.is_degenerate:
            pearson = stats.pearsonr(targets, predictions)[0]
            spearman = stats.spearmanr(targets, predictions)[0]
        return [
            ("pearson", 100.0 * float(pearson)),
            ("spearman", 100.0 * float(spearman)),
            ("mse", float(np.mean(np.square(targets - predictions)))),
            ("loss", float(np.mean([row["loss"] for row in self.rows]))),
        ]

    @property
    def is_degenerate(self) -> bool:
        """Whether the predictions hardly differ."""
        return float(np.std([row["predictions"] for row in self.rows])) < 1e-4


class TextTask(Task):
    """One or two texts, and a class or a number between `lowest` and `highest`."""

    metric = "accuracy"
    more_metrics: Sequence[str] = ()
    usual_columns: Sequence[Columns] = ()
    identity: Columns = ("id", "index")  # the user's own, in a table

    @property
    def columns(self) -> list[Columns]:
        """Where texts may stand in a table."""
        description = self.config.tasks.get(self.name, {})
        return columns_of(description, self.usual_columns, self.num_texts)

    def read_inputs(
        self, source: Source, bad: Callable[[str, str], None] = inputs.refuse
    ) -> Iterator[Input]:
        """Texts in columns."""
        return inputs.texts(source, self.columns, self.identity, bad)

    def input_example(self, number: int, given: dict[str, Any]) -> InputExample:
        """With any label."""
        return example_of(number, given, self.unknown_label())

    def feature_settings(self) -> dict[str, Any]:
        """Numbers are learnt as shares of their scale."""
        scale = {} if self.labels else {"scale": [self.lowest, self.highest]}
        return super().feature_settings() | scale

    def unknown_label(self) -> Any:
        """What stands for the label of a text that has none."""
        return self.labels[0] if self.labels else str(self.lowest)

    @property
    def main_metric(self) -> str:
        """The task's metric; of numbers Pearson's correlation."""
        return self.metric if self.labels else "pearson"

    @property
    def head(self) -> HeadSpec:
        """One output per class, or one."""
        if self.labels:
            return HeadSpec("classification", len(self.labels), self.class_weights)
        return HeadSpec("regression")

    @property
    def said_weights(self) -> Any:
        """The class weights that were asked for; None: none."""
        return self.config.class_weights.get(self.name)

    @functools.cached_property
    def class_weights(self) -> list[float] | None:
        """What the losses of each class's examples are multiplied by in training."""
        said = self.said_weights
        if said is None or not self.config.do_train or self.stored:
            return None
        examples = self.read("train")
        return weights_of(self.name, said, self.labels, examples)

    def wrong_label(self, label: str) -> str | None:
        """What is wrong with a label or a number."""
        if self.labels:
            if label in self.labels:
                return None
            known = "there are" if self.stored is None else "the model was trained for"
            return f"unknown label {shown(label)}; {known} {', '.join(self.labels)}"
        try:
            right = self.lowest <= float(label) <= self.highest
        except ValueError:
            right = False
        if right:
            return None
        allowed = f"{self.lowest:g} to {self.highest:g}"
        return f"the score is {shown(label)}; it must be {allowed}"

    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """label_ids or targets, and eid."""
        answer = FeatureSpec("targets", (), "float32")
        if self.labels:
            answer = FeatureSpec("label_ids", (), "int32")
        return (answer, FeatureSpec("eid", (), "int32"))

    def featurize(
        self, example: InputExample, is_training: bool
    ) -> Iterator[dict[str, Any]]:
        """[CLS] a [SEP] b [SEP], the longer text cut first; numbers become 0 to 1."""
        a = self.tokenizer.encode(example.text_a)
        b = self.tokenizer.encode(example.text_b or "")
        before = len(a) + len(b)
        a, b = truncate_pair(a, b, packing.room(self.config.max_seq_length, b))
        self.num_cut += before - len(a) - len(b)
        features = packing.join(self.tokenizer.vocab, a, b)._asdict()
        yield features | {"eid": example.eid} | self.answer_features(example)

    def answer_features(self, example: InputExample) -> dict[str, Any]:
        """What is right: label_ids or targets."""
        if self.labels:
            return {"label_ids": self.labels.index(example.label)}
        value = float(example.label) - self.lowest
        return {"targets": value / (self.highest - self.lowest)}

    def scorer(self, split: str) -> Scorer:
        """By the task's metric."""
        if self.labels:
            return ClassificationScorer(self.metric, self.labels, self.more_metrics)
        return RegressionScorer()

    def answer(self, row: dict[str, Any], form: str = ".3f") -> str:
        """A prediction in the form of a submission: the label's name, or the number."""
        if self.labels:
            return self.labels[int(row["predictions"])]
        share = min(max(float(row["predictions"]), 0.0), 1.0)
        return format(self.lowest + share * (self.highest - self.lowest), form)

    def prediction(
        self, example: InputExample, rows: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """The label and all probabilities, or the number."""
        del example
        [row] = rows
        if not self.labels:
            return {"value": float(self.answer(row, ".7g"))}
        logits = np.asarray(row["logits"], np.float64)
        shares = np.exp(logits - logits.max())
        pairs = zip(self.labels, shares / shares.sum(), strict=True)
        return {
            "label": self.answer(row),
            "probabilities": {name: rounded(share) for name, share in pairs},
        }

    def write_predictions(self, split, scorer, directory, trial) -> list[str]:
        """JSONL: what was asked, the prediction, of a dev set also what is right."""
        del trial
        examples, rows = {e.eid: e for e in self.read(split)}, []
        for row in sorted(scorer.rows, key=lambda row: int(row["eid"])):
            one = examples[int(row["eid"])]
            given = {"id": one.id, "text": one.text_a, "text_b": one.text_b}
            given = {name: value for name, value in given.items() if value is not None}
            right = {"correct": one.label} if split in self.splits("dev") else {}
            rows.append({"eid": one.eid} | given | self.prediction(one, [row]) | right)
        return [write_jsonl(Path(directory) / f"{self.name}_{split}.jsonl", rows)]


def truncate_pair(a: list[int], b: list[int], length: int) -> tuple[list, list]:
    """Drops from the end of the longer one until both fit; b where they are equal."""
    a, b = list(a), list(b)
    while len(a) + len(b) > length:
        (a if len(a) > len(b) else b).pop()
    return a, b


BALANCED = "balanced"


def weights_of(
    name: str, given: Any, labels: Sequence[str], examples: Iterable[Any]
) -> list[float]:
    """The weight of each label.

    Args:
      name: of the task, for messages.
      given: "balanced"; or numbers, in the order of the labels or by their names, where
        one that is left out is 1.
      labels: in the order of the head's outputs.
      examples: the training set's, with a `label`, or a tuple of labels.

    Raises `UserError` for anything else.
    """
    if given == BALANCED:
        return _balanced(name, labels, [example.label for example in examples])
    is_named = isinstance(given, Mapping)
    weights = [given.get(label, 1.0) for label in labels] if is_named else given
    wrong = [label for label in given if label not in labels] if is_named else []
    if isinstance(weights, list):
        is_right = [type(x) in (int, float) and 0 <= x < math.inf for x in weights]
        wrong += [x for x, right in zip(weights, is_right, strict=True) if not right]
    if wrong or not isinstance(weights, list) or len(weights) != len(labels):
        raise UserError(
            f"task {name}: class_weights has {shown(wrong[0] if wrong else given)}.\n"
            f"It must be {BALANCED!r}, or a list or object with a number of at least 0 "
            f"for each class: {', '.join(labels)}."
        )
    return [float(weight) for weight in weights]


def _balanced(name: str, labels: Sequence[str], given: Sequence[Any]) -> list[float]:
    """So that each class has the same part in the loss, the mean weight being 1.

    Where a text has any number of classes: so that it weighs as much to have one as
    not to have it.
    """
    has_one = all(isinstance(label, str) for label in given)
    each = given if has_one else itertools.chain.from_iterable(given)
    counts = collections.Counter(each)
    if missing := next((label for label in labels if not counts[label]), None):
        raise UserError(
            f"task {name}: class_weights is {BALANCED!r}, but there is no training "
            f"example of {missing}.\nGive the weights as numbers."
        )
    if has_one:
        return [len(given) / (len(labels) * counts[label]) for label in labels]
    return [max(len(given) - counts[x], 1) / counts[x] for x in labels]


METRICS = ("accuracy", "mcc", "f1")


def metrics_of(description: dict[str, Any]) -> list[Any]:
    """The metrics of a description, the main one first."""
    found = description.get("metric", "accuracy")
    return found if isinstance(found, list) else [found]


def _number(label: Any) -> float | None:
    try:
        found = float(label)
    except (ValueError, TypeError):
        return None
    return found if math.isfinite(found) else None


class OwnTextTask(OwnFiles, TextTask):
    """Classes or numbers for texts in columns."""

    fewest_labels = 2

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.num_texts = 2 if self.description.get("text_b") else 1
        self.identity = (self.description.get("id", "id"),)
        self.metric, *self.more_metrics = metrics_of(self.description)
        self._has_classes = self.description["type"] != "regression"

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Those that the model was trained for, else those of the training file."""
        if self.stored:
            return self.stored.labels
        found = {e.label for e in self.read("train")} if self._has_classes else ()
        return tuple(sorted(found))

    @property
    def said_weights(self) -> Any:
        """The class weights of the description."""
        return self.description.get("class_weights")

    @property
    def lowest(self) -> float:
        """The low end of the scale."""
        return self._scale[0]

    @property
    def highest(self) -> float:
        """The high end of the scale."""
        return self._scale[1]

    @functools.cached_property
    def _scale(self) -> tuple[float, float]:
        """What the description says, else the model, else the training file."""
        known = self.stored
        if self._has_classes:
            return 0.0, 1.0
        if known:
            found = known.lowest, known.highest
        elif {"lowest", "highest"} <= set(self.description):
            found = 0.0, 1.0
        else:
            found = _range(self.read("train"))
        keys = zip(("lowest", "highest"), found, strict=True)
        low, high = (float(self.description.get(key, value)) for key, value in keys)
        return low, high

    def check(self) -> None:
        """Classes or numbers to tell apart, and a scale that holds the dev set's."""
        if self._has_classes and len(self.labels) < self.fewest_labels:
            raise UserError(
                f"task {self.name}: {self.path('train')} has {len(self.labels)} labels "
                f"({', '.join(self.labels) or 'none'}); there is nothing to learn"
                f"{reasons(self.skipped.get('train', ()))}."
            )
        if self._has_classes:
            _ = self.class_weights  # What is wrong with them is said now.
            given = () if self.stored else self.read("train")
            texts = {(e.text_a, e.text_b) for e in given}
            if given and len(texts) < len({e.label for e in given}):
                raise UserError(
                    f"task {self.name}: {self.path('train')} has {len(texts)} texts "
                    f"and more labels, as {shown(given[0].label)}.\nAre the columns of "
                    "text and label swapped? text_a and label of the task name them."
                )
            return
        if self.highest <= self.lowest:
            raise UserError(f"task {self.name}: all scores are {self.lowest:g}.")
        if not self.config.scores_dev or self._is_scale_given:
            return
        low, high = _range(self.read("dev"))
        if low < self.lowest or high > self.highest:
            low, high = min(low, self.lowest), max(high, self.highest)
            raise UserError(
                f"{self.path('dev')} has scores from {low:g} to {high:g}, the training "
                f"file from {self.lowest:g} to {self.highest:g}.\nSay in the task what "
                f'the scale is, such as "lowest": {low:g}, "highest": {high:g}.'
            )

    @property
    def _is_scale_given(self) -> bool:
        """By a model or both keys; else the training file's scores are the scale."""
        return bool(self.stored) or {"lowest", "highest"} <= set(self.description)

    @property
    def label_columns(self) -> tuple[str, ...]:
        """One; of classes in columns of their own, all."""
        label = self.description["label"]
        return (label,) if isinstance(label, str) else tuple(label)

    def _labelled(self, split: str) -> Iterator[tuple[str, dict[str | None, Any]]]:
        """Lines that have all columns; `bad` has been told of the others."""
        columns = (*self.columns[0], *self.label_columns)
        bad = functools.partial(self.bad, split)
        source = self.source(split)
        for where, row, _ in inputs.whole_rows(source, [columns], bad):
            if wrong := inputs.no_text(row, self.columns[0]):
                bad(where, wrong)
            elif wrong := self.wrong_cells(row):
                bad(where, wrong)
            else:
                yield where, row

    def examples(self, split: str) -> list[InputExample]:
        """All lines, counted by the example ids; spaces around labels do not count."""
        if split == "test":
            # In the described columns alone: those of other files are looked for.
            bad = functools.partial(self.bad, split)
            found = self.columns[:1], self.identity, bad
            read = enumerate(inputs.texts(self.source(split), *found))
            return [self.input_example(eid, one.fields) for eid, one in read]
        found = []
        rows = list(self._labelled(split))
        labels = [self.label_of(row) for _, row in rows]
        labels = self.one_spelling(split, labels)
        for eid, ((where, row), label) in enumerate(zip(rows, labels, strict=True)):
            if wrong := self._wrong(split, label):
                self.bad(split, where, wrong)
                continue
            given = inputs.given_of(row, self.columns[0], self.identity)
            found.append(example_of(eid, given, label))
        return found

    def wrong_cells(self, row: dict[str | None, Any]) -> str | None:
        """What is wrong with the cell of the label, as far as its type goes."""
        [column] = self.label_columns
        if isinstance(row[column], (list, dict)) or cells.is_printed(row[column]):
            hint = "; type multilabel reads lists" * self._has_classes
            return f"{column} is {shown(row[column])}{hint}"
        return None if self.label_of(row) else f"the column {column!r} is empty"

    def label_of(self, row: dict[str | None, Any]) -> str:
        """The label of a line, without the spaces around it."""
        [column] = self.label_columns
        return str(row[column]).strip()

    def one_spelling(self, split: str, labels: list[Any]) -> list[Any]:
        """Labels in one spelling for equal numbers, such as 0 and 0.0."""
        if not self._has_classes:
            found = [cells.with_decimal_point(label) for label in labels]
            if count := sum(map(str.__ne__, labels, found)):
                self.remark(split, "numbers have a decimal comma", count)
            return found
        is_known = split != "train" or self.stored
        spellings = cells.spellings(self.labels if is_known else labels)
        known = {*self.labels} if is_known else set()
        found = [
            label if label in known else spellings.get(cells.number_of(label), label)
            for label in labels
        ]
        if not is_known and (count := len({*labels}) - len({*found})):
            what = "spellings of a number that another class has, as 0.0 beside 0"
            self.remark(split, what, count)
        return found

    def _wrong(self, split: str, label: str) -> str | None:
        """What is wrong with a label, as far as the file can tell by itself."""
        if not self._has_classes and not self._is_scale_given:
            return self._wrong_number(label)
        if self._has_classes and split == "train" and not self.stored:
            return None
        return self.wrong_label(label)

    def _wrong_number(self, label: str) -> str | None:
        """What is wrong with a score, where one end of the scale at most is given."""
        value = _number(label)
        if value is None:
            either = f"; {label.replace(',', '.')} or {label.replace(',', '')}?"
            is_thousands = re.fullmatch(r"-?\d{1,3}(,\d{3})+", label)
            return f"{shown(label)} is not a number{either if is_thousands else ''}"
        low, high = (self.description.get(key) for key in ("lowest", "highest"))
        if low is not None and value < float(low):
            return f"the score is {label}, lowest is {low}"
        if high is not None and value > float(high):
            return f"the score is {label}, highest is {high}"
        return None


def _range(examples: Sequence[InputExample]) -> tuple[float, float]:
    numbers = [float(example.label) for example in examples]
    return min(numbers, default=0.0), max(numbers, default=1.0)
