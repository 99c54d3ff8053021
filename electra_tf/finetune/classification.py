# SPDX-License-Identifier: Apache-2.0
"""GLUE's tasks: one or two sentences, a class or a number."""

from __future__ import annotations

import functools
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.finetune import class_weights, inputs
from electra_tf.finetune.inputs import Asked, Columns, Source, read_text, shown
from electra_tf.finetune.task import (
    FeatureSpec,
    HeadSpec,
    Scorer,
    Task,
    class_details,
    rounded,
    write_jsonl,
)
from electra_tf.storage.files import atomic_write
from electra_tf.text import packing


class Glue(NamedTuple):
    """Columns of a task's files, and how GLUE wants its predictions."""

    text: tuple[int, ...]
    label: int
    labels: tuple[str, ...]  # () for regression
    submission: dict[str, str]  # split -> file name
    test_text: tuple[int, ...] = ()  # where it is not `text`
    has_header: bool = True
    is_unordered: bool = False
    metric: str = "accuracy"
    columns: tuple[Columns, ...] = (("sentence1", "sentence2"),)  # by their names
    more_metrics: tuple[str, ...] = ()  # which the original does not have


_NLI = ("entailment", "not_entailment")
_SENTENCE = (("sentence",),)
GLUE = {
    "cola": Glue(
        *((3,), 1, ("0", "1"), {"test": "CoLA"}, (1,)),
        **{"has_header": False, "metric": "mcc", "columns": _SENTENCE},
    ),
    "sst": Glue((0,), 1, ("0", "1"), {"test": "SST-2"}, (1,), columns=_SENTENCE),
    "mrpc": Glue(
        *((3, 4), 0, ("0", "1"), {"test": "MRPC"}),
        is_unordered=True,
        columns=(("#1 String", "#2 String"), ("sentence1", "sentence2")),
        more_metrics=("f1",),
    ),
    "sts": Glue((7, 8), -1, (), {"test": "STS-B"}, is_unordered=True, metric="pearson"),
    "qqp": Glue(
        *((3, 4), 5, ("0", "1"), {"test": "QQP"}, (1, 2)),
        columns=(("question1", "question2"),),
        more_metrics=("f1",),
    ),
    "mnli": Glue(
        (8, 9),
        -1,
        ("contradiction", "entailment", "neutral"),
        {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", "diagnostic": "AX"},
        columns=(("sentence1", "sentence2"), ("premise", "hypothesis")),
    ),
    "qnli": Glue(
        *((1, 2), 3, _NLI, {"test": "QNLI"}), columns=(("question", "sentence"),)
    ),
    "rte": Glue((1, 2), 3, _NLI, {"test": "RTE"}),
}
HIGHEST_SCORE = 5.0  # of sts


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


def columns_of(name: str, config, num_texts: int) -> list[Columns]:
    """Where the texts of a task may stand in a table: the first that are there."""
    said = config.tasks.get(name, {})
    own = tuple(said[key] for key in ("text_a", "text_b") if said.get(key))
    others = GLUE[name].columns if name in GLUE and not own else ()
    return [columns for columns in (own, *others) if columns] + [
        ("text", "text_b")[:num_texts]
    ]


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

    num_texts = 1
    labels: Sequence[str] = ()  # () for numbers
    metric = "accuracy"
    more_metrics: Sequence[str] = ()
    lowest, highest = 0.0, 1.0
    identity: Columns = ("id", "index")  # the user's own, in a table

    @property
    def columns(self) -> list[Columns]:
        """Where texts may stand in a table."""
        return columns_of(self.name, self.config, self.num_texts)

    def asked(
        self, source: Source, bad: Callable[[str, str], None] = inputs.refuse
    ) -> Iterator[Asked]:
        """Texts in columns."""
        return inputs.texts(source, self.columns, self.identity, bad)

    def example_of(self, number: int, given: dict[str, Any]) -> InputExample:
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
            return HeadSpec("classification", len(self.labels))
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
        return class_weights.weights_of(self.name, said, self.labels, examples)

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

    def told(self, example: InputExample, rows: list[dict[str, Any]]) -> dict[str, Any]:
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
            rows.append({"eid": one.eid} | given | self.told(one, [row]) | right)
        return [write_jsonl(Path(directory) / f"{self.name}_{split}.jsonl", rows)]


class GlueTask(TextTask):
    """A task of GLUE, in the files of its download."""

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.glue = GLUE[name]
        self.num_texts = len(self.glue.text)
        self.labels = self.glue.labels
        self.metric, self.more_metrics = self.glue.metric, self.glue.more_metrics
        self.highest = HIGHEST_SCORE

    def splits(self, kind: str) -> list[str]:
        """mnli has two dev sets and three test sets."""
        if kind == "test":
            return list(self.glue.submission)
        mismatched = self.name == "mnli" and self.path("dev_mismatched").is_file()
        return ["dev", "dev_mismatched"] if mismatched else ["dev"]

    def notes(self, kinds: Sequence[str]) -> list[str]:
        """Which of mnli's sets is not there."""
        found = super().notes(kinds)
        if self.name == "mnli" and "dev" in kinds and len(self.splits("dev")) < 2:
            name = self.path("dev_mismatched").name
            found.append(f"mnli has no {name}: only the matched set counts")
        return found

    def path(self, split: str) -> Path:
        """The file of a split."""
        file = "dev_matched" if (self.name, split) == ("mnli", "dev") else split
        return Path(self.config.raw_data_dir(self.name)) / f"{file}.tsv"

    def examples(self, split: str) -> list[InputExample]:
        """All lines; in training both orders of pairs that have none."""
        path = self.required(split)
        is_test = split in self.glue.submission
        lines = read_text(path).split("\n")
        first_line = 1
        if self.glue.has_header or is_test:
            self._check_header(path, lines[0], is_test)
            lines, first_line = lines[1:], 2
        found = []
        for eid, line in enumerate(lines):
            if line.strip():
                where = f"{path}, line {eid + first_line}"
                example = self._example(eid, line, split, where)
                if example:
                    found.append(example)
        return self.in_both_orders(found) if split == "train" else found

    def _check_header(self, path: Path, line: str, is_test: bool) -> None:
        """Refuses a first line that is an example: nothing would be left of it."""
        cells = line.rstrip("\r").split("\t")
        if is_test:
            is_example = len(cells) > 1 and cells[0].strip().isdecimal()
        else:
            wanted = max(*self.glue.text, self.glue.label)
            label = cells[self.glue.label] if len(cells) > wanted else ""
            is_example = bool(label) and self.wrong_label(label) is None
        if is_example:
            raise UserError(
                f"{path} has no header: its first line is an example.\n"
                "Put the line with the names of the columns above it, as GLUE has it."
            )

    def in_both_orders(self, found: list[InputExample]) -> list[InputExample]:
        """With the turned pairs behind them, where pairs have no order."""
        if not (self.glue.is_unordered and self.config.double_unordered):
            return found
        return found + [
            InputExample(e.eid + len(found), e.text_b, e.text_a, e.label) for e in found
        ]

    def _example(self, eid, line, split, where) -> InputExample | None:
        is_test = split in self.glue.submission
        cells = line.rstrip("\r").split("\t")
        columns = self.glue.text
        if split == "diagnostic":
            columns = (1, 2)
        elif is_test:
            columns = self.glue.test_text or columns
        wanted = max(*columns, 0 if is_test else self.glue.label) + 1
        if len(cells) < wanted:
            what = f"{len(cells)} columns instead of {wanted} or more"
            return self.bad(split, where, what)
        if is_test and cells[0].strip() != str(eid):
            raise UserError(
                f"{where}: the index is {shown(cells[0])}, the line's place {eid}.\n"
                "GLUE's test files count their lines from 0 below the header, and what "
                "is submitted is known by these numbers."
            )
        texts = [cells[column] for column in columns] + [None]
        label = self.unknown_label()
        if not is_test:
            label = cells[self.glue.label]
        wrong = self.wrong_label(label)
        if wrong:
            return self.bad(split, where, wrong)
        return InputExample(eid, texts[0], texts[1], label)

    def write_predictions(self, split, scorer, directory, trial) -> list[str]:
        """For test sets also the file that GLUE takes, alone and zipped."""
        paths = super().write_predictions(split, scorer, directory, trial)
        if split not in self.glue.submission:
            return paths
        rows = sorted(scorer.rows, key=lambda row: int(row["eid"]))
        lines = [f"{int(row['eid'])}\t{self.answer(row)}\n" for row in rows]
        name = self.glue.submission[split]
        tsv, archive = (Path(directory) / f"{name}.{end}" for end in ("tsv", "zip"))
        content = "".join(["index\tprediction\n", *lines]).encode()
        atomic_write(tsv, content)
        atomic_write(archive, zipped({tsv.name: content}))
        return [*paths, str(tsv), str(archive)]


def zipped(files: dict[str, bytes]) -> bytes:
    """An archive of files by their names."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return content.getvalue()


def truncate_pair(a: list[int], b: list[int], length: int) -> tuple[list, list]:
    """Drops from the end of the longer one until both fit; b where they are equal."""
    a, b = list(a), list(b)
    while len(a) + len(b) > length:
        (a if len(a) > len(b) else b).pop()
    return a, b
