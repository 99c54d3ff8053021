# SPDX-License-Identifier: Apache-2.0
"""GLUE: its tasks, in its own files or in rows as others distribute it.

Rows have columns by name and classes as numbers. Examples come in the order of GLUE's
files and with their ids, so features and submissions are the same from either form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.errors import UserError
from electra_tf.finetune import inputs
from electra_tf.finetune.classification import InputExample, TextTask
from electra_tf.finetune.inputs import Columns, parquet_name, shown, text_fields
from electra_tf.finetune.task import plain, rounded
from electra_tf.storage.files import atomic_write


class Glue(NamedTuple):
    """Columns of a task's files, and the form of its predictions."""

    text: tuple[int, ...]
    label: int
    submission: dict[str, str]  # split -> file name
    columns: tuple[Columns, ...] = (("sentence1", "sentence2"),)  # by their names
    test_text: tuple[int, ...] = ()  # where it is not `text`
    metrics: tuple[str, ...] = ("accuracy",)  # the original has the first alone
    labels: tuple[str, ...] = ("0", "1")  # () for regression
    has_header: bool = True
    is_unordered: bool = False


_NLI = ("entailment", "not_entailment")
_MNLI = ("contradiction", "entailment", "neutral")
_MNLI_FILES = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm"}
_MNLI_FILES |= {"diagnostic": "AX"}
_PAIR, _MNLI_PAIR = ("sentence1", "sentence2"), ("premise", "hypothesis")
_MRPC_PAIR = ("#1 String", "#2 String")
_SENTENCE, _QUESTIONS = ("sentence",), ("question1", "question2")
_BOTH = ("accuracy", "f1")
GLUE = {
    "cola": Glue(
        (3,), 1, {"test": "CoLA"}, (_SENTENCE,), (1,), ("mcc",), has_header=False
    ),
    "sst": Glue((0,), 1, {"test": "SST-2"}, (_SENTENCE,), (1,)),
    "mrpc": Glue(
        (3, 4), 0, {"test": "MRPC"}, (_MRPC_PAIR, _PAIR), (), _BOTH, is_unordered=True
    ),
    "sts": Glue((7, 8), -1, {"test": "STS-B"}, labels=(), is_unordered=True),
    "qqp": Glue((3, 4), 5, {"test": "QQP"}, (_QUESTIONS,), (1, 2), _BOTH),
    "mnli": Glue((8, 9), -1, _MNLI_FILES, (_PAIR, _MNLI_PAIR), labels=_MNLI),
    "qnli": Glue((1, 2), 3, {"test": "QNLI"}, (("question", "sentence"),), labels=_NLI),
    "rte": Glue((1, 2), 3, {"test": "RTE"}, labels=_NLI),
}


# Names and orders of classes in tables.
_THEIRS = {"sst": "sst2", "sts": "stsb"}
_CLASSES = {"mnli": ("entailment", "neutral", "contradiction")}
_CLASSES |= {"qnli": _NLI, "rte": _NLI}


class GlueTask(TextTask):
    """A task of GLUE, in the files of its download, else Hugging Face's Parquet."""

    _scale = limits = 0.0, 5.0  # of sts

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.glue = GLUE[name]
        self.num_texts = len(self.glue.text)
        self.labels = self.glue.labels
        self.metrics, self.usual_columns = self.glue.metrics, self.glue.columns

    def splits(self, kind: str) -> list[str]:
        """mnli has two dev sets and three test sets."""
        if kind == "test":
            return list(self.glue.submission)
        mismatched = self.name == "mnli" and self.is_there("dev_mismatched")
        return ["dev", "dev_mismatched"] if mismatched else ["dev"]

    def places(self, split: str) -> list[tuple[str, str]]:
        """GLUE's own file; a table in the folder of the task or of its name there."""
        file = "dev_matched" if (self.name, split) == ("mnli", "dev") else split
        theirs = _THEIRS.get(self.name, self.name), parquet_name(file)
        if split == "diagnostic":
            theirs = "ax", parquet_name("test")
        return [(self.name, f"{file}.tsv"), (self.name, theirs[1]), theirs]

    def examples(self, split: str) -> list[InputExample]:
        """All rows; in training both orders of pairs that have none."""
        found = super().examples(split)
        if split == "train" and self.glue.is_unordered and self.config.double_unordered:
            count = len(found)
            found += [InputExample(n + count, b, a, y) for n, a, b, y, _ in found]
        return found

    def rows(self, split: str) -> Iterator[tuple[str, int, dict[str, Any], str]]:
        """(place, example id, texts, label) of each row."""
        path, is_test = self.required(split), split in self.glue.submission
        if path.suffix == ".parquet":
            yield from self._table_rows(path, split)
            return
        lines = [*inputs.Source.of(path).lines]
        has_header = self.glue.has_header or is_test
        if has_header and lines and not is_test:
            self._check_header(path, lines[0])
        lines = lines[has_header:]
        columns = (is_test and self.glue.test_text) or self.glue.text
        columns = (1, 2) if split == "diagnostic" else columns
        wanted = max(*columns, 0 if is_test else self.glue.label) + 1
        for eid, line in enumerate(lines):
            if not line.strip():
                continue
            where = f"{path}, line {eid + 1 + has_header}"
            cells = line.split("\t")
            if len(cells) < wanted:
                what = f"{len(cells)} columns instead of {wanted} or more"
                self.bad(split, where, what)
                continue
            if is_test and cells[0].strip() != str(eid):
                raise UserError(
                    f"{where}: the index is {shown(cells[0])}, the line's place {eid}."
                    "\nIn GLUE's test files, and in submissions, they are the same."
                )
            label = self.unknown_label() if is_test else cells[self.glue.label]
            yield where, eid, text_fields(cells, columns), label

    def _table_rows(
        self, path: Path, split: str
    ) -> Iterator[tuple[str, int, dict[str, Any], str]]:
        """As `rows`, in the order of the table."""
        table, columns = inputs.Rows(str(path)), self.glue.columns[-1]
        names = table.classes.get("label") or _CLASSES.get(self.name, ())
        is_test = split in self.glue.submission
        for number, row in enumerate(table):
            where = f"{path}, row {number}"
            texts = [row.get(column) for column in columns]
            if not all(isinstance(text, str) for text in texts):
                what = f"the texts in {' and '.join(columns)} are {shown(texts)}"
                self.bad(split, where, what)
                continue
            # Only there the ids are GLUE's; those of MRPC's other sets have gaps.
            eid = row["idx"] if is_test else number
            known = None if is_test else self._label(row.get("label"), names)
            label = self.unknown_label() if known is None else known
            yield f"{where}: column 'label'", eid, text_fields(row, columns), label

    def _label(self, value: Any, names: Sequence[str]) -> str:
        """As GLUE's files have it: its name, or the number of a class or a score."""
        if not isinstance(value, int | float):
            return str(value)
        if not self.labels:
            return str(rounded(value))
        is_known = set(names) == set(self.labels) and 0 <= value < len(names)
        return names[int(value)] if is_known else f"{value:g}"

    def _check_header(self, path: Path, line: str) -> None:
        """Refuses a first line that is an example, which would be skipped."""
        cells, label = line.split("\t"), self.glue.label
        is_long = len(cells) > max(*self.glue.text, label)
        if is_long and not self.wrong_label(cells[label]):
            raise UserError(
                f"{path} has no header: its first line is an example.\nPut the line "
                "with the names of the columns above it."
            )

    def write_predictions(self, split, scorer, directory) -> list[str]:
        """For test sets also the file that GLUE takes."""
        paths = super().write_predictions(split, scorer, directory)
        if split not in self.glue.submission:
            return paths
        rows = sorted(scorer.rows, key=lambda row: int(row["eid"]))
        name, form = ("label", plain) if self.labels else ("value", "{:.3f}".format)
        lines = [f"{int(row['eid'])}\t{form(row[name])}\n" for row in rows]
        path = Path(directory) / f"{self.glue.submission[split]}.tsv"
        atomic_write(path, "".join(["index\tprediction\n", *lines]))
        return [*paths, str(path)]
