# SPDX-License-Identifier: Apache-2.0
"""The interface of a fine-tuning task: examples, features, a head, a scorer.

Standard library only: errors in names and data are reported before TensorFlow loads.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError
from electra_tf.finetune.inputs import Columns, Input, Source
from electra_tf.storage.checkpoints import as_text, differences
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import sha256
from electra_tf.text import tokenization
from electra_tf.text.records import json_line
from electra_tf.text.tokenization import Tokenizer, encoded

TASKS_FILE = "tasks.json"
# What a task and the model that it is to use have in common.
_SAME = {"type", "labels", "num_texts", "lowest", "highest", "has_impossible"}
# Characters of the data that a message shows.
_SHOWN = 200
# The keys of a task's description that name files.
FILES = ("train", "dev", "test")


class FeatureSpec(NamedTuple):
    """A feature of one example, without the task's prefix."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # "int32" or "float32"


class Head(ABC):
    """What a type of task computes on the encoder's states, and how it learns.

    A subclass is a frozen dataclass of the head's settings, which are stored with the
    model. It imports TensorFlow within functions: tasks are checked before.

    Attributes:
      kind: the type's name, a key of `registry.TYPES`.
      reads: its kind of input, a key of `inputs.FORMS`.
      fields: of an input that is given as a tuple.
    """

    kind: ClassVar[str]
    reads: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    @abstractmethod
    def read_inputs(source: Source, settings: Mapping[str, Any]) -> Iterator[Input]:
        """The inputs in a file.

        Args:
          settings: of the task (`Task.settings`), from a manifest perhaps.
        """

    @classmethod
    def object_of(cls, one: Any, most: int) -> Mapping[str, Any] | None:
        """An input in Python by field; None if it has more than `most`."""
        parts = (one,) if isinstance(one, str) else tuple(one)
        found = dict(zip(cls.fields, parts, strict=False))
        return found if len(parts) <= most else None

    @staticmethod
    def served_inputs(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The inputs of the served model for the fields of one input."""
        return fields

    @staticmethod
    @abstractmethod
    def prediction(fields: Mapping[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        """As `Task.prediction`, from the served model's answer to one input."""

    @abstractmethod
    def layers(self, width: int) -> dict[str, tuple[int, int]]:
        """Dense layer -> (inputs, outputs), for an encoder of that width."""

    @abstractmethod
    def outputs(self, dense, hidden, features, training: bool, seed) -> dict[str, Any]:
        """The outputs of a batch, by name.

        Args:
          dense: the layers by name.
          hidden: states of the encoder, [B, L, H].
          features: input_ids, input_mask, segment_ids, and the task's own; those of the
            right answer are there in training.
          seed: int32 [2], switches dropout on.
        """

    @abstractmethod
    def loss(self, outputs, features, training: bool) -> Any:
        """The loss of each example, float32 [B]."""

    def answer(self, task: Task, outputs) -> dict[str, Any]:
        """What predictions state, from the outputs of sequences, in a graph."""
        del task, outputs
        return {}

    @abstractmethod
    def text_shapes(self, task: Task) -> dict[str, list[None]]:
        """The string inputs of the served model, with their shapes."""

    @abstractmethod
    def answer_texts(self, task: Task, tokenizer, compute, *texts) -> dict[str, Any]:
        """The answers to a batch of the inputs, as graph operations.

        Args:
          tokenizer: a `text.tf_tokenization.TFTokenizer`.
          compute: see `answer_ids`.
        """

    @abstractmethod
    def answer_ids(self, task: Task, compute, inputs) -> dict[str, Any]:
        """The outputs for packed ids by name.

        Args:
          compute: the head's outputs, of `text.tokenization.PackedTexts`.
          inputs: such ones.
        """

    def probes(self, task: Task, texts: Sequence[str]) -> dict[str, Sequence]:
        """Inputs of the served model on which an export is compared with the model."""
        both = texts, texts[::-1]
        return dict(zip(self.text_shapes(task), both, strict=False))

    @classmethod
    @abstractmethod
    def stored(cls, labels: Sequence[str], config: FinetuningConfig) -> Head:
        """The head of a stored model, from its labels and hparams."""


def cross_entropy(labels, logits, smoothing: float = 0.0) -> Any:
    """That of the right labels, a share `smoothing` of it that of all alike."""
    import tensorflow as tf

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if smoothing:
        alike = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1 - smoothing) * losses + smoothing * alike
    return losses


class Key(NamedTuple):
    """What a key of a task's description takes."""

    fits: Callable[[Any], bool]
    what: str  # for messages
    is_needed: bool = False

    @property
    def needed(self) -> Key:
        """The same, of a key that must be there."""
        return self._replace(is_needed=True)


def of_types(what: str, *types: type) -> Key:
    """A key whose values have one of the types."""
    return Key(lambda value: type(value) in types, what)


TEXT, NAMES = of_types("text", str), of_types("a list of names", list)
NUMBER, FLAG = of_types("a number", int, float), of_types("true or false", bool)
COLUMN = Key(
    lambda x: type(x) is str or (type(x) is int and x > 0),
    "a column's name, or its number from 1",
)
DELIMITER = Key(lambda x: type(x) is str and len(x) == 1, "one character, such as ;")


class TaskType(NamedTuple):
    """A row of `registry.TYPES`."""

    task: Callable[..., Task]  # of (name, config, tokenizer)
    head: type[Head]
    keys: Mapping[str, Key]  # of a description, beside the files


class Scorer(ABC):
    """Collects the predictions on a data set; scores them in percent.

    Attributes:
      most_sequences: of an example; the eid of its sequence k is its own, times this,
        plus k.
    """

    most_sequences = 1

    def __init__(self):
        self.rows: list[dict[str, Any]] = []

    def update(self, outputs: dict[str, Any]) -> None:
        """Takes the head's outputs for one example."""
        self.rows.append(outputs)

    def __len__(self) -> int:
        return len(self.rows)

    @functools.cached_property
    def outputs(self) -> dict[int, list[dict[str, Any]]]:
        """Those of each example's sequences, when all are there."""
        found = collections.defaultdict(list)
        for row in self.rows:
            found[int(row["eid"]) // self.most_sequences].append(row)
        return found

    def values(self, name: str) -> np.ndarray:
        """An output of all examples."""
        return np.array([row[name] for row in self.rows])

    @property
    def mean_loss(self) -> float:
        """Over the examples."""
        return float(self.values("loss").mean(dtype=np.float64))

    @abstractmethod
    def get_results(self) -> list[tuple[str, float]]:
        """(metric, value), in the original's order."""

    def details(self) -> dict[str, Any]:
        """Further results for JSON, such as the scores of each class."""
        return {}

    @property
    def is_degenerate(self) -> bool:
        """Whether all predicted classes, tags or numbers are the same."""
        found = [row["predictions"] for row in self.rows if "predictions" in row]
        return bool(found) and float(np.std(found)) < 1e-4


class Task(ABC):
    """A task; subclasses define how its files are read, its head and its scorer.

    Args:
      name: also the name of its directory and the prefix of its features.

    Attributes:
      version: of a class of your own: features are made anew when it changes; None:
        when the source of its module does.
      main_metric: the metric that one training is better than another by; None: the
        first of its scorer.
      identity: possible names of the column with the user's own id.
      stored: what `write_tasks` wrote of a model that is not trained further; its
        labels and scale take precedence.
      read: split -> its `examples`.
      known_hash: split -> its `data_hash`.
    """

    identity: Columns = ("id",)
    labels: Sequence[str] = ()  # () where the answer is not a class
    num_texts = 1
    lowest, highest = 0.0, 1.0  # of a regression's numbers
    is_v2 = False  # whether questions may have no answer
    scheme: str | None = None  # that tags are written in
    is_plain = False  # whether tags are of single words, not of spans
    version: str | None = None
    main_metric: str | None = None
    stored: Mapping[str, Any] | None = None

    def __init__(self, name: str, config: FinetuningConfig, tokenizer: Tokenizer):
        self.name = name
        self.config = config
        self.description = config.tasks.get(name, {})
        if self.description:
            self.identity = (self.description.get("id", "id"),)
        self.tokenizer = tokenizer
        # What was left out of a split by "on_bad_example": "skip", line by line.
        self.skipped: dict[str, dict[str, None]] = {}
        # How often something was found of a split that its user should see.
        self.remarks: dict[str, collections.Counter[str]] = {}
        self.num_cut = 0  # tokens that `featurize` left out
        # preprocessing.FeatureStore by digest, those that this run has made or opened.
        self.stores: dict[str, Any] = {}
        # Once for each split: they stay the same if a file is changed during a run.
        self.read = functools.cache(self._read)
        self.known_hash = functools.cache(self.data_hash)

    head: Head

    def check(self) -> None:  # noqa: B027 - optional
        """Raises a UserError for data that no training can use, before any work."""

    def _read(self, split: str) -> list[Any]:
        self.known_hash(split)
        return self.examples(split)

    def fingerprint(self, split: str) -> str:
        """A hash of a split's data and of how examples and features are made of them.

        Without hparams and vocabulary, which all tasks share.
        """
        settings = self.feature_settings(), self.tokenizer.config
        text = f"{self.known_hash(split)} {json.dumps(settings, sort_keys=True)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def feature_settings(self) -> dict[str, Any]:
        """What features follow from, beside data, vocabulary and shared hparams."""
        found: dict[str, Any] = {"labels": list(self.labels)}
        ours = __name__.partition(".")[0]
        for cls in type(self).__mro__[:-1]:
            if cls.__module__.partition(".")[0] != ours:
                source = self.version or inspect.getsource(inspect.getmodule(cls))
                found[cls.__qualname__] = hashlib.sha256(source.encode()).hexdigest()
        return found

    def bad(self, split: str, where: str, what: str) -> None:
        """Raises a UserError for an example that cannot be used, or notes it."""
        what = what if len(what) <= _SHOWN else f"{what[:_SHOWN]}..."
        if self.config.on_bad_example == "stop":
            raise UserError(
                f"{where}: {what}.\n"
                'Fix it, or leave such examples out by "on_bad_example": "skip".'
            )
        self.skipped.setdefault(split, {})[f"{where}: {what}"] = None

    def remark(self, split: str, what: str, count: int = 1) -> None:
        """Counts something that is not an error; the summary of the data shows it.

        Args:
          count: 0 prints the remark without a count.
        """
        self.remarks.setdefault(split, collections.Counter())[what] += count

    def splits(self, kind: str) -> list[str]:
        """The data sets of a kind, "dev" or "test", which is optional."""
        if self.description:
            return [kind] if kind in self.description else []
        return [kind] if kind == "dev" or self.is_there(kind) else []

    def path(self, split: str) -> Path:
        """The file of a split: the description's, or the first that is there."""
        if self.description:
            return Path(self.config.data_file(self.description[split]))
        folder, places = self.config.raw_data_dir, self.places(split)
        paths = [Path(folder(name)) / file for name, file in places]
        return next((path for path in paths if path.is_file()), paths[0])

    def places(self, split: str) -> list[tuple[str, str]]:
        """Folders and files that a split of the original's task may be in."""
        raise NotImplementedError(f"{type(self).__name__} has neither places nor path")

    def is_there(self, split: str) -> bool:
        """Whether there are data of a split."""
        return self.path(split).is_file()

    def source(self, split: str) -> Source:
        """The lines of a split's file."""
        delimiter = self.description.get("delimiter")
        return Source.of(self.required(split))._replace(delimiter=delimiter)

    def data_hash(self, split: str) -> str:
        """Of the data of a split; features are made anew when it changes."""
        return sha256(self.required(split))

    @abstractmethod
    def examples(self, split: str) -> list[Any]:
        """All examples of a split, each with an `eid`."""

    @abstractmethod
    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """The task's own features, beside ids, mask and segments."""

    @abstractmethod
    def featurize(self, example: Any, is_training: bool) -> Iterator[dict[str, Any]]:
        """Yields unpadded features; "input_ids" and "segment_ids" among them."""

    def packed(self, a: list[int], b: list[int]) -> tokenization.Row:
        """[CLS] a [SEP] b [SEP], the longer text cut first."""
        room = tokenization.room(self.config.max_seq_length, b)
        before, (a, b) = len(a) + len(b), truncate_pair(a, b, room)
        self.num_cut += before - len(a) - len(b)
        return tokenization.join(self.tokenizer.vocab, a, b)

    @abstractmethod
    def scorer(self, split: str) -> Scorer:
        """A scorer for one data set."""

    @property
    def names(self) -> list[bytes]:
        """The labels as texts of a graph."""
        return [encoded(str(label)) for label in self.labels]

    def settings(self) -> dict[str, Any]:
        """The task without its data: all that predictions depend on beside the weights.

        It stands beside checkpoints and in the manifests of exports.
        """
        found = {"type": self.head.kind, "labels": [*self.labels]}
        found["identity"] = self.identity
        found["hparams"] = {"max_seq_length": self.config.max_seq_length}
        if delimiter := self.description.get("delimiter"):
            found["delimiter"] = delimiter
        return found

    def classes_of(self, example: Any) -> Iterable[str]:
        """The classes in an example, for the summary of the training set."""
        del example
        return ()

    def read_inputs(self, source: Source) -> Iterator[Input]:
        """The inputs in a file, for `input_example`."""
        return self.head.read_inputs(source, self.settings())

    def input_example(self, number: int, given: dict[str, Any]) -> Any:
        """The example of an input, which has no label."""
        raise UserError(f"{self.name} has no `input_example`, so it cannot read files.")

    def prediction(self, example: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A prediction in JSON, from the head's outputs for the example's features."""
        answer = {name: plain(value) for name, value in rows[0].items()}
        answer["labels"] = self.labels
        return self.head.prediction(self.fields_of(example), answer)

    def fields_of(self, example: Any) -> dict[str, Any]:
        """What the predictions on a data set repeat of an example: its id, if any."""
        name = getattr(example, "id", None)
        return {} if name is None else {"id": name}

    def right_answer(self, split: str, example: Any) -> Any:
        """What predictions on a data set are beside; None without any."""
        return example.label if split in self.splits("dev") else None

    def predicted(self, split: str, scorer: Scorer) -> list[dict[str, Any]]:
        """Each example: eid, fields, prediction and, if there is one, the answer."""
        rows = []
        for one in self.read(split):
            found = self.prediction(one, scorer.outputs[one.eid])
            rows.append({"eid": one.eid} | self.fields_of(one) | found)
            if (right := self.right_answer(split, one)) is not None:
                rows[-1]["correct"] = right
        return rows

    def write_predictions(
        self, split: str, scorer: Scorer, directory: str
    ) -> list[str]:
        """Writes `predicted` as JSON Lines; returns the paths."""
        path = Path(directory) / f"{self.name}_{split}.jsonl"
        return [write_jsonl(path, self.predicted(split, scorer))]

    def required(self, split: str) -> Path:
        """The file of a split, which must be there."""
        path = self.path(split)
        if not path.is_file():
            raise UserError(
                f"{self.name} needs {path}, which does not exist or is not a file."
            )
        return path


def truncate_pair(a: list[Any], b: list[Any], length: int) -> tuple[list, list]:
    """Drops from the end of the longer one until both fit; b where they are equal."""
    of_b = min(len(b), max(length // 2, length - len(a)))
    return a[: length - of_b], b[:of_b]


def without_files(description: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a task without its files, whose contents are hashed."""
    return {key: value for key, value in description.items() if key not in FILES}


def write_tasks(directory: str | os.PathLike, tasks: Sequence[Task]) -> None:
    """Writes the tasks of a run into its directory, above all their labels."""
    found = [{"name": t.name, "scheme": t.scheme} | t.settings() for t in tasks]
    atomic_write(Path(directory) / TASKS_FILE, json.dumps(found, indent=1) + "\n")


def read_tasks(directory: str | os.PathLike) -> list[dict[str, Any]]:
    """What `write_tasks` wrote, [] without it; `UserError` (65) for anything else."""
    path = Path(directory) / TASKS_FILE
    try:
        found = json.loads(path.read_text("utf-8")) if path.is_file() else []
        for one in found:
            one["labels"] = [*one["labels"]]
            one.setdefault("type", one.get("kind"))  # as it was called before
        return found
    except (OSError, *JSON_ERRORS) as error:
        raise UserError(
            f"{path} cannot be read: {error}.\nIf you remove it, the task's data "
            "define its labels.",
            EXIT_DAMAGED,
        ) from None


def take_stored(task: Task, directory: str | os.PathLike) -> None:
    """Gives a task the labels and the scale of the model in a directory.

    Raises `UserError` if the model has another task of that name.
    """
    found = (one for one in read_tasks(directory) if one["name"] == task.name)
    if not (stored := next(found, None)):
        return
    task.stored = stored
    ours = task.settings()
    names = _SAME & stored.keys() & ours.keys()
    if changed := differences(*({k: x[k] for k in names} for x in (stored, ours))):
        raise UserError(
            f"{task.name}: {Path(directory) / TASKS_FILE} is of another task: "
            f"{as_text(changed)}.\nMake them the same, or train anew."
        )


def class_details(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, Any]:
    """Each class's precision, recall and F1 in percent, and the confusion matrix.

    Its rows are the right classes, its columns the predicted ones, both in the order
    of its labels.
    """
    from sklearn.metrics import confusion_matrix

    labels = sorted({*gold, *predicted})
    matrix = confusion_matrix(gold, predicted, labels=labels).tolist()
    classes = scores_by_class(enumerate(predicted), enumerate(gold))
    return {"classes": classes, "confusion": {"labels": labels, "matrix": matrix}}


def scores(predicted: set[Any], gold: set[Any]) -> dict[str, float]:
    """precision, recall and F1 in percent."""
    right = len(predicted & gold)
    precision, recall = (right / len(x) if x else 0.0 for x in (predicted, gold))
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    return {"precision": 100.0 * precision, "recall": 100.0 * recall, "f1": 100.0 * f1}


def scores_by_class(
    predicted: Iterable[tuple], gold: Iterable[tuple]
) -> dict[str, dict[str, float]]:
    """Class -> `scores` and support, of tuples that end with their class."""
    ours, right = (collections.defaultdict(set) for _ in range(2))
    for groups, found in ((ours, predicted), (right, gold)):
        for one in found:
            groups[one[-1]].add(one)
    return {
        name: scores(ours[name], right[name]) | {"support": len(right[name])}
        for name in sorted({*ours, *right})
    }


def reasons(skipped: Iterable[str]) -> str:
    """How many examples were left out, and why the first one."""
    lines = [*skipped]
    return f":\n{len(lines):,} left out, as {lines[0][:_SHOWN]}" if lines else ""


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    """Writes a JSON object per line; returns the path."""
    atomic_write(path, "".join(f"{json_line(row)}\n" for row in rows))
    return str(path)


def plain(value: Any) -> Any:
    """A tensor, an array or one of its values as Python values; bytes as text."""
    value = value.numpy() if hasattr(value, "numpy") else value
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def rounded(value: Any) -> float:
    """As many digits as float32 has."""
    return float(f"{float(value):.7g}")
