# SPDX-License-Identifier: Apache-2.0
"""One or two texts, and a class or a number."""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.finetune import inputs, task
from electra_tf.finetune.inputs import Columns, Row, shown

METRICS = ("accuracy", "mcc", "f1")


class InputExample(NamedTuple):
    """One line of a file."""

    eid: int
    text_a: str
    text_b: str | None
    label: Any
    id: Any = None  # the user's own


class ClassificationScorer(task.Scorer):
    """Accuracy, Matthews' correlation or F1, by scikit-learn.

    F1 is that of the second of two classes; of more classes, the mean over them.

    Args:
      metrics: the main one first.
      labels: the names of the classes; () where they are not the same everywhere.
    """

    def __init__(self, *metrics: str, labels: Sequence[str] = ()):
        super().__init__()
        self.metrics, self.labels = metrics, labels

    def get_results(self) -> list[tuple[str, float]]:
        """The metrics and the mean loss."""
        from sklearn import metrics  # It takes a second.

        average = "binary" if len(self.labels) == 2 else "macro"
        f1 = functools.partial(metrics.f1_score, average=average, zero_division=0.0)
        functions = metrics.accuracy_score, metrics.matthews_corrcoef, f1
        values = dict(zip(METRICS, functions, strict=True))
        both = self.values("label_ids"), self.values("predictions")
        found = [(name, 100.0 * float(values[name](*both))) for name in self.metrics]
        return [*found, ("loss", self.mean_loss)]

    def details(self) -> dict[str, Any]:
        """Each class's precision, recall and F1, and which is taken for which."""
        if not self.labels:
            return {}
        both = self.values("label_ids"), self.values("predictions")
        names = ([self.labels[k] for k in numbers] for numbers in both)
        return task.class_details(*names)


class RegressionScorer(task.Scorer):
    """Correlations and the mean squared error.

    A correlation is 0 for constant predictions, and nan for constant targets or one
    example.
    """

    def get_results(self) -> list[tuple[str, float]]:
        """pearson, spearman, mse, loss."""
        from scipy import stats

        targets, predictions = self.values("targets"), self.values("predictions")
        is_defined = len(self.rows) > 1 and np.ptp(targets) > 0
        pearson = spearman = 0.0 if is_defined else math.nan
        if is_defined and not self.is_degenerate:
            pearson = float(stats.pearsonr(targets, predictions)[0])
            spearman = float(stats.spearmanr(targets, predictions)[0])
        mse = float(np.mean(np.square(targets - predictions)))
        found = {"pearson": 100.0 * pearson, "spearman": 100.0 * spearman, "mse": mse}
        return [*found.items(), ("loss", float(np.mean(self.values("loss"))))]


def _classes(label: str | tuple[str, ...]) -> tuple[str, ...]:
    """The classes that a label names."""
    return label if isinstance(label, tuple) else (label,)


@dataclasses.dataclass(frozen=True)
class ScoresHead(task.Head):
    """A number for each output, from the state at [CLS]; dropout before it.

    Attributes:
      has_hidden_layer: with GELU before the scores, as in transformers' heads.
    """

    reads = "texts"
    fields = ("text", "text_b")

    num_labels: int = 1
    has_hidden_layer: bool = False

    @classmethod
    def stored(cls, labels, config):
        """One output per label, or one."""
        return cls(max(1, len(labels)))

    def layers(self, width: int) -> dict[str, tuple[int, int]]:
        """The scores, and the layer before them."""
        hidden = {"hidden": (width, width)} if self.has_hidden_layer else {}
        return hidden | {"dense": (width, self.num_labels)}

    def scores(self, dense, hidden, seed):
        """float32 [..., num_labels], of states [..., L, H]; `seed` drops some out."""
        import tensorflow as tf

        from electra_tf.model.dropout import dropout
        from electra_tf.model.layers import gelu

        pooled = dropout(hidden[..., 0, :], 0.1, seed)
        if self.has_hidden_layer:
            pooled = gelu(dense["hidden"](pooled))
        return tf.cast(dense["dense"](pooled), tf.float32)

    def logits_of(self, task, tokenizer, compute, *texts):
        """float32 [B, num_labels], of one or two texts [B]; long ones are cut."""
        import tensorflow as tf

        from electra_tf.text import tf_tokenization

        width, segments = self.num_labels, [*map(tokenizer.tokenize, texts)]
        segments = tf_tokenization.truncate(segments, task.config.max_seq_length)
        return tf_tokenization.map_rows(
            lambda inputs: tf.reshape(compute(inputs)["logits"], [-1, width]),
            *(segments, tokenizer.vocab, width),
        )

    @staticmethod
    def read_inputs(source, settings):
        """Texts in columns, separated as in the task's own files."""
        source = source._replace(delimiter=settings.get("delimiter"))
        columns = [*map(tuple, settings["columns"])]
        return inputs.texts(source, columns, tuple(settings["identity"]))

    def text_shapes(self, task):
        """text, and text_b of pairs."""
        return dict.fromkeys(self.fields[: task.num_texts], [None])

    def answer_texts(self, task, tokenizer, compute, *texts):
        """Long texts are cut as in training."""
        from electra_tf.text import tf_tokenization

        texts = tf_tokenization.of_same_rows("text and text_b", *texts)
        logits = self.logits_of(task, tokenizer, compute, *texts)
        return self.answer(task, {"logits": logits})


@dataclasses.dataclass(frozen=True)
class LabelsHead(ScoresHead):
    """A score for each class.

    Attributes:
      class_weights: factors of the losses of the texts with each class, in training.
    """

    class_weights: Sequence[float] | None = None

    def shares(self, logits):
        """The probability of each class."""
        import tensorflow as tf

        return tf.nn.softmax(logits)

    def answer(self, task, outputs):
        """probabilities float32 [B, C]."""
        return {"probabilities": self.shares(outputs["logits"])}

    def answer_texts(self, task, tokenizer, compute, *texts):
        """Also labels string [B, C], the names of the classes."""
        import tensorflow as tf

        found = super().answer_texts(task, tokenizer, compute, *texts)
        names = tf.broadcast_to(task.names, tf.shape(found["probabilities"]))
        return found | {"labels": names}

    def answer_ids(self, task, compute, inputs):
        """logits and probabilities [B, C]."""
        logits = compute(inputs)["logits"]
        return {"logits": logits, "probabilities": self.shares(logits)}

    @staticmethod
    def odds(row):
        """The probability of each class by its name."""
        shares = map(task.rounded, row["probabilities"])
        return dict(zip(row["labels"], shares, strict=True))


@dataclasses.dataclass(frozen=True)
class ClassHead(LabelsHead):
    """One of several classes.

    Attributes:
      label_smoothing: the share of the loss, in training, that all classes share.
    """

    kind = "classification"

    label_smoothing: float = 0.0

    def outputs(self, dense, hidden, features, training, seed):
        """logits [B, C] and predictions [B]."""
        import tensorflow as tf

        logits = self.scores(dense, hidden, seed)
        return {"logits": logits, "predictions": tf.argmax(logits, axis=-1)}

    def loss(self, outputs, features, training):
        """Needs label_ids, int32 [B]."""
        import tensorflow as tf

        labels = features["label_ids"]
        smoothing = self.label_smoothing * training
        losses = task.cross_entropy(labels, outputs["logits"], smoothing)
        if training and self.class_weights:
            losses *= tf.gather(tf.constant(self.class_weights), labels)
        return losses

    def answer(self, task, outputs):
        """Also label string and probability float32 [B], of the likeliest."""
        import tensorflow as tf

        found = super().answer(task, outputs)
        best = tf.gather(task.names, tf.argmax(outputs["logits"], axis=-1))
        share = tf.reduce_max(found["probabilities"], axis=-1)
        return found | {"label": best, "probability": share}

    @staticmethod
    def prediction(fields, row):
        """The label and all probabilities."""
        return {"label": row["label"], "probabilities": LabelsHead.odds(row)}


@dataclasses.dataclass(frozen=True)
class NumberHead(ScoresHead):
    """A number; squared error.

    Attributes:
      is_bounded: the outputs from 0 to 1 are the task's scale; else they are numbers as
        they are.
    """

    kind = "regression"

    is_bounded: bool = True

    def outputs(self, dense, hidden, features, training, seed):
        """logits [B, 1] and predictions [B]."""
        logits = self.scores(dense, hidden, seed)
        return {"logits": logits, "predictions": logits[:, 0]}

    def loss(self, outputs, features, training):
        """Needs targets, float32 [B]."""
        return (outputs["predictions"] - features["targets"]) ** 2

    def answer(self, task, outputs):
        """value float32 [B], on the task's scale."""
        import tensorflow as tf

        value = outputs["logits"][:, 0]
        if self.is_bounded:
            share = tf.clip_by_value(value, 0.0, 1.0)
            value = task.lowest + share * (task.highest - task.lowest)
        return {"value": value}

    def answer_ids(self, task, compute, inputs):
        """value [B]."""
        return self.answer(task, compute(inputs))

    @staticmethod
    def prediction(fields, row):
        """The number."""
        return {"value": task.rounded(row["value"])}


class TextTask(task.Task):
    """One or two texts, and a class or a number between `lowest` and `highest`.

    Labels, and by default the scale, are those of the training file.
    """

    metrics: Sequence[str] = ("accuracy",)  # of classes, the main one first
    usual_columns: Sequence[Columns] = ()
    identity: Columns = ("id", "index")  # the user's own, in a table
    fewest_labels = 2
    limits = (-math.inf, math.inf)  # of scores in files

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self._has_classes = True
        if self.description:
            given, (low, high) = self.description.get, self.limits
            self.num_texts = 2 if given("text_b") else 1
            metrics = given("metric", "accuracy")
            self.metrics = [metrics] if isinstance(metrics, str) else metrics
            self._has_classes = given("type") != "regression"
            self.limits = given("lowest", low), given("highest", high)

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Those that the model was trained for, else those of the training file."""
        if self.stored:
            return tuple(self.stored["labels"])
        examples = self.read("train") if self._has_classes else ()
        return tuple(sorted({x for e in examples for x in _classes(e.label)}))

    @property
    def columns(self) -> list[Columns]:
        """Where texts may be in a table: the first of these that are there."""
        given = map(self.description.get, ("text_a", "text_b"))
        own = tuple(filter(None, given))
        named = [own] if own else self.usual_columns
        return [*named, ScoresHead.fields[: self.num_texts]]

    def input_example(
        self, number: int, fields: dict[str, Any], label: Any = None
    ) -> InputExample:
        """With any label if there is none."""
        label = self.unknown_label() if label is None else label
        texts = fields["text"], fields.get("text_b")
        return InputExample(number, *texts, label, fields.get("id"))

    def settings(self) -> dict[str, Any]:
        """Also where a table has the texts and ids, and the scale of numbers."""
        own = {"columns": self.columns, "num_texts": self.num_texts}
        scale = {} if self.labels else {"lowest": self.lowest, "highest": self.highest}
        return super().settings() | own | scale

    def feature_settings(self) -> dict[str, Any]:
        """Numbers are learnt as shares of their scale."""
        scale = {} if self.labels else {"scale": [self.lowest, self.highest]}
        return super().feature_settings() | scale

    def unknown_label(self) -> Any:
        """The label that a text without one gets."""
        return self.labels[0] if self.labels else str(self.lowest)

    @property
    def main_metric(self) -> str:
        """The task's metric; of numbers Pearson's correlation."""
        return self.metrics[0] if self.labels else "pearson"

    @property
    def head(self) -> task.Head:
        """One output per class, or one."""
        if not self.labels:
            return NumberHead()
        shares = {"label_smoothing": self.config.label_smoothing}
        return ClassHead(len(self.labels), class_weights=self.class_weights, **shares)

    @functools.cached_property
    def class_weights(self) -> list[float] | None:
        """Factors of the losses of each class's examples, in training."""
        given = self.description.get("class_weights")
        if given is None or not self.config.do_train or self.stored:
            return None
        if given == "balanced":
            return self._balanced_weights()
        if others := given.keys() - {*self.labels}:
            raise UserError(
                f"task {self.name}: class_weights has {shown(min(others))}; the "
                f"classes are {', '.join(self.labels)}."
            )
        return [float(given.get(label, 1)) for label in self.labels]

    def _balanced_weights(self) -> list[float]:
        """Weights that give each class the same part in the loss; their mean is 1.

        Where a text has any number of classes: the same part to texts with and without
        the class.
        """
        examples, labels = self.read("train"), self.labels
        named = (name for e in examples for name in _classes(e.label))
        counts, total = collections.Counter(named), len(examples)
        if isinstance(examples[0].label, str):
            return [total / (len(labels) * counts[label]) for label in labels]
        return [max(total - counts[x], 1) / counts[x] for x in labels]

    def wrong_label(self, label: str) -> str | None:
        """What is wrong with a label or a number."""
        if not self.labels:
            return self._wrong_number(label)
        if label in self.labels:
            return None
        known = "there are" if self.stored is None else "the model was trained for"
        return f"unknown label {shown(label)}; {known} {', '.join(self.labels)}"

    def _wrong_number(self, label: str) -> str | None:
        try:
            value = float(label)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            return f"{shown(label)} is not a number; its decimal sign is a point"
        lowest, highest = self.limits
        what = f"the score is {label}; it must be {lowest:g} to {highest:g}"
        return None if lowest <= value <= highest else what

    def feature_specs(self) -> tuple[task.FeatureSpec, ...]:
        """label_ids or targets, and eid."""
        name, dtype = ("label_ids", "int32") if self.labels else ("targets", "float32")
        return (task.FeatureSpec(name, (), dtype), task.FeatureSpec("eid", (), "int32"))

    def featurize(self, example: InputExample, is_training: bool) -> Iterator[Row]:
        """[CLS] a [SEP] b [SEP], the longer text cut first; numbers become 0 to 1."""
        a = self.tokenizer.encode(example.text_a)
        b = self.tokenizer.encode(example.text_b or "")
        features = self.packed(a, b)._asdict()
        yield features | {"eid": example.eid} | self.answer_features(example)

    def answer_features(self, example: InputExample) -> dict[str, Any]:
        """The right answer: label_ids or targets."""
        if self.labels:
            return {"label_ids": self.labels.index(example.label)}
        value = float(example.label) - self.lowest
        return {"targets": value / (self.highest - self.lowest)}

    def classes_of(self, example: InputExample) -> Iterable[str]:
        """Those of its label."""
        return _classes(example.label) if self.labels else ()

    def scorer(self, split: str) -> task.Scorer:
        """By the task's metric."""
        if self.labels:
            return ClassificationScorer(*self.metrics, labels=self.labels)
        return RegressionScorer()

    def fields_of(self, example) -> dict[str, Any]:
        """The id and the texts."""
        found = super().fields_of(example) | {"text": example.text_a}
        return found if example.text_b is None else found | {"text_b": example.text_b}

    # Reading the files of a description.

    lowest = functools.cached_property(lambda self: self._scale[0])
    highest = functools.cached_property(lambda self: self._scale[1])

    @functools.cached_property
    def _scale(self) -> tuple[float, float]:
        """The scale of the description, else of the model or the training file."""
        low, high = 0.0, 1.0
        if self.stored:
            low, high = self.stored.get("lowest", low), self.stored.get("highest", high)
        elif not (self._has_classes or all(map(math.isfinite, self.limits))):
            numbers = [float(example.label) for example in self.read("train")]
            low, high = min(numbers, default=0.0), max(numbers, default=1.0)
        given = self.description.get
        return float(given("lowest", low)), float(given("highest", high))

    def check(self) -> None:
        """Classes or numbers to tell apart."""
        if self.description and (problem := next(self._problems(), None)):
            raise UserError(f"task {self.name}: {problem}")
        _ = self._has_classes and self.class_weights  # which may be wrong

    def _problems(self) -> Iterator[str]:
        train, labels = self.path("train"), self.labels
        if self._has_classes:
            if len(labels) < self.fewest_labels:
                skipped = task.reasons(self.skipped.get("train", ()))
                found = f"{train} has {len(labels)} labels ({', '.join(labels)})"
                yield f"{found}; there is nothing to learn{skipped}."
            # pandas writes 1.0 for 1 in a column with an empty cell.
            numbers = (x for x in labels if x.lstrip("-").isdecimal())
            if both := [f"{x} and {x}.0" for x in numbers if f"{x}.0" in labels]:
                found = f"{train} has the labels {both[0]}, one number"
                yield f"{found}.\nWrite each class in one way."
            examples = [] if self.stored else self.read("train")
            texts = {(e.text_a, e.text_b) for e in examples}
            if len(texts) < len({e.label for e in examples}):
                found = f"{train} has {len(texts)} texts and more labels"
                yield f"{found}.\nAre the columns text_a and label swapped?"
        elif self.highest <= self.lowest:
            yield f"all scores are {self.lowest:g}."

    @property
    def label_columns(self) -> tuple[str, ...]:
        """One; of classes in columns of their own, all."""
        label = self.description["label"]
        return tuple(label) if isinstance(label, list) else (label,)

    def examples(self, split: str) -> list[InputExample]:
        """All rows with a right label."""
        # Classes are those of the training file; GLUE's tasks have their own.
        is_free = self.description and split == "train" and self._has_classes
        found = []
        for where, eid, fields, label in self.rows(split):
            wrong = None if is_free and not self.stored else self.wrong_label(label)
            if wrong:
                self.bad(split, where, wrong)
            else:
                found.append(self.input_example(eid, fields, label))
        return found

    def rows(self, split: str) -> Iterator[tuple[str, int, dict[str, Any], Any]]:
        """(place, example id, texts, label) of each row.

        Spaces around labels do not count.
        """
        bad, [columns, *_] = functools.partial(self.bad, split), self.columns
        eid, is_test = 0, split == "test"
        # Only the configured columns.
        wanted = columns if is_test else (*columns, *self.label_columns)
        rows = inputs.whole_rows(self.source(split), [wanted], bad, len(columns))
        for where, row, _ in rows:
            try:
                label = self.unknown_label() if is_test else self.label_of(row)
            except ValueError as error:
                bad(where, str(error))
            else:
                yield where, eid, inputs.text_fields(row, columns, self.identity), label
                eid += 1

    def label_of(self, row: Row) -> Any:
        """The label of a row; ValueError for a cell of another type."""
        [column] = self.label_columns
        label = row[column]
        if isinstance(label, (list, dict)) or PRINTED.fullmatch(str(label).strip()):
            hint = "; type multilabel has several labels" * self._has_classes
            raise ValueError(f"{column} is {shown(label)}, a list{hint}")
        if label := str(label).strip():
            return label
        raise ValueError(f"the column {column!r} is empty")


# A list or object that a program printed: ['a'], ["a"], ['a' 'b'], [a, b], {'a'}.
PRINTED = re.compile(
    r"""(\w+\()?[\[{(]\s*['"].*[]})]|[\[{]([^]}]*[,:][^]}]*)?[]}]""", re.DOTALL
)


def _is_weight(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


TEXTS = {"text_a": task.COLUMN.needed, "label": task.COLUMN.needed}
TEXTS |= {"text_b": task.COLUMN, "id": task.COLUMN, "delimiter": task.DELIMITER}
WEIGHTS = task.Key(
    lambda x: x == "balanced" or type(x) is dict and all(map(_is_weight, x.values())),
    '"balanced", or an object class -> number of at least 0',
)
_METRIC = task.Key(
    lambda x: x and {*map(str, x if isinstance(x, list) else [x])} <= {*METRICS},
    f"one of {', '.join(METRICS)}, or a list of them, the main one first",
)
TYPES = {
    "classification": task.TaskType(
        TextTask, ClassHead, TEXTS | {"metric": _METRIC, "class_weights": WEIGHTS}
    ),
    "regression": task.TaskType(
        TextTask, NumberHead, TEXTS | {"lowest": task.NUMBER, "highest": task.NUMBER}
    ),
}
