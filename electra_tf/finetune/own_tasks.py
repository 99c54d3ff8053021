# SPDX-License-Identifier: Apache-2.0
"""Tasks that hparams describe, on files of the user's own.

    "tasks": {"mytask": {"type": "classification", "train": "train.tsv", "dev":
              "dev.tsv", "text_a": "sentence", "label": "class", "metric": "mcc"}}

Types: classification, multilabel, regression (of one text, or two with text_b), tagging
(words and tags on lines as CoNLL has them, or lists in JSONL; spans or plain tags), qa
(files in SQuAD's form). Texts come from TSV or CSV with a header, or from JSONL; paths
are relative to --data-dir.
"""

from __future__ import annotations

import csv
import difflib
import functools
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from electra_tf.errors import UserError
from electra_tf.finetune import tag_schemes
from electra_tf.finetune.classification import InputExample, TextTask
from electra_tf.finetune.multilabel import Multilabel
from electra_tf.finetune.qa import QATask
from electra_tf.finetune.tagging import Sentence, TaggingTask
from electra_tf.finetune.task import Task, read_text, shown
from electra_tf.storage.remote import fetch_once

FILES = ("train", "dev", "test")
METRICS = ("accuracy", "mcc", "f1")
_TYPES = {
    "lowest": ((int, float), "a number"),
    "highest": ((int, float), "a number"),
    "has_impossible": (bool, "true or false"),
}
# Names go into those of files and variables.
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Type -> the keys that a description may have beside the files; * must be there.
KEYS = {
    "classification": ("text_a*", "text_b", "label*", "metric"),
    "multilabel": ("text_a*", "text_b", "label*", "separator"),
    "regression": ("text_a*", "text_b", "label*", "lowest", "highest"),
    "tagging": ("words", "tags", "scheme"),
    "qa": ("has_impossible",),
}


def make_own_task(name: str, config, tokenizer) -> Task:
    """The task that `config.tasks` describes under this name.

    Raises `UserError` for a description that is wrong, naming the key.
    """
    description = config.tasks[name]
    check_description(name, description)
    kinds = {"tagging": OwnTaggingTask, "qa": OwnQATask}
    kinds["multilabel"] = OwnMultilabelTask
    return kinds.get(description["type"], OwnTextTask)(name, config, tokenizer)


def check_description(name: str, description: dict[str, Any]) -> None:
    """Raises a UserError that names the key that is wrong or missing."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"task {name!r}: a name has letters, digits and the signs _ . - only."
        )
    kind = description.get("type")
    if not isinstance(kind, str) or kind not in KEYS:
        raise UserError(
            f"task {name}: type is {kind!r}; it is one of {', '.join(KEYS)}."
        )
    keys = [key.rstrip("*") for key in KEYS[kind]]
    known = ["type", *FILES, *keys]
    for key in description:
        if key not in known:
            raise UserError(
                f"task {name}: unknown key {key!r}; {kind} has {', '.join(known)}."
            )
    needed = ["train", "dev"] + [k[:-1] for k in KEYS[kind] if k.endswith("*")]
    for key in needed:
        if key not in description:
            raise UserError(f"task {name}: {key!r} is missing; {kind} needs it.")
    for key, value in description.items():
        types, what = _TYPES.get(key, (str, "text"))
        if not isinstance(value, types):
            raise UserError(f"task {name}: {key} is {value!r}; it must be {what}.")
    if description.get("metric", "accuracy") not in METRICS:
        raise UserError(
            f"task {name}: metric is {description['metric']!r}; it is one of "
            f"{', '.join(METRICS)}."
        )
    if "scheme" in description:
        tag_schemes.scheme_named(description["scheme"])


def records(
    path: Path, wanted: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str | None, Any]]]:
    """(where it stands, fields by column) of a TSV, CSV or JSONL file.

    Cells beyond the header's are under None. Raises `UserError` for a file of another
    kind, a header without the wanted columns or a line that cannot be read.
    """
    ending = path.suffix.lower()
    if ending not in (".tsv", ".csv", ".jsonl"):
        raise UserError(f"{path} is none of .tsv, .csv, .jsonl.")
    text = read_text(path)
    if ending == ".jsonl":
        yield from _objects(path, text)
        return
    lines = _csv_lines(path, text)
    if ending == ".tsv":
        # As GLUE's files: no quoting, a tab always ends a column.
        numbered = enumerate(text.split("\n"), start=1)
        lines = (
            (n, line.split("\t")) for n, line in numbered if n == 1 or line.strip()
        )
    _, header = next(lines, (1, []))
    _check_header(path, header, wanted)
    for number, cells in lines:
        row: dict[str | None, Any] = dict(zip(header, cells, strict=False))
        if any(cell.strip() for cell in cells[len(header) :]):
            row[None] = cells[len(header) :]
        yield f"{path}, line {number}", row


def _csv_lines(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """(line where it begins, cells) of each row."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    first = 1
    try:
        for cells in reader:
            if cells:
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{path}, line {first}: a quote is opened there and not closed where its "
            f"column ends ({error}).\nInside a quoted text write two for one, as in "
            '"a 5"" disk".'
        ) from None


def _check_header(path: Path, header: Sequence[str], wanted: Sequence[str]) -> None:
    for column in wanted:
        if header.count(column) == 1:
            continue
        close = difflib.get_close_matches(column, header, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        found = f"no column {column!r}{hint}"
        if column in header:
            found = f"{header.count(column)} columns {column!r}."
        names = ", ".join(header) or "none"
        names = names if len(names) <= 200 else f"{names[:200]}..."
        raise UserError(f"{path} has {found}\nIts first line names {names}.")


def _objects(path: Path, text: str) -> Iterator[tuple[str, dict[str | None, Any]]]:
    if text.lstrip().startswith("["):
        raise UserError(
            f"{path}, line 1: a JSON array; .jsonl has one object {{...}} on each line."
            f"\nConvert it: jq -c '.[]' {path.name}"
        )
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            found = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
        if not isinstance(found, dict):
            raise UserError(f"{where}: not an object {{...}}.")
        yield where, {key: value for key, value in found.items() if value is not None}


def _number(label: Any) -> float | None:
    try:
        found = float(label)
    except (ValueError, TypeError):
        return None
    return found if math.isfinite(found) else None


class _OwnFiles(Task):
    """Where the files are that a description names."""

    @property
    def description(self) -> dict[str, Any]:
        return self.config.tasks[self.name]

    def path(self, split: str) -> Path:
        """The file of a split."""
        path = Path(self.config.data_dir) / self.description[split]
        return Path(fetch_once(str(path)))

    def splits(self, kind: str) -> list[str]:
        """Those that the description names."""
        return [kind] if kind in self.description else []


class OwnTextTask(_OwnFiles, TextTask):
    """Classes or numbers for texts in columns."""

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.num_texts = 2 if self.description.get("text_b") else 1
        self.metric = self.description.get("metric", "accuracy")
        self._has_classes = self.description["type"] != "regression"

    @functools.cached_property
    def labels(self) -> tuple[str, ...]:
        """Those that the model was trained for, else those of the training file."""
        if self.stored:
            return self.stored.labels
        found = {e.label for e in self.read("train")} if self._has_classes else ()
        return tuple(sorted(found))

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
        """Two classes or numbers at least, and a scale that holds the dev set's."""
        if self._has_classes and len(self.labels) < 2:
            raise UserError(
                f"task {self.name}: {self.path('train')} has {len(self.labels)} labels "
                f"({', '.join(self.labels) or 'none'}); there is nothing to learn."
            )
        if self._has_classes:
            return
        if self.highest <= self.lowest:
            raise UserError(f"task {self.name}: all scores are {self.lowest:g}.")
        if not self.config.do_eval or self._is_scale_given:
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
    def _label(self) -> str:
        return self.description["label"]

    def _rows(self, split: str) -> Iterator[tuple[str, dict[str | None, Any]]]:
        """Lines that have all columns; `bad` has been told of the others."""
        wanted = [self.description["text_a"], self.description.get("text_b")]
        wanted = [column for column in wanted if column]
        if split != "test":
            wanted.append(self._label)
        for where, row in records(self.required(split), wanted):
            missing = [column for column in wanted if column not in row]
            if None in row:
                more = f"more columns than the first line: {shown(row[None][0])}"
                self.bad(split, where, f"{more} comes after the last; quote the text")
            elif missing:
                there = ", ".join(map(str, row))
                self.bad(split, where, f"no column {missing[0]!r}, only {there}")
            elif split != "test" and self.label_of(row) == "":
                self.bad(split, where, f"the column {self._label!r} is empty")
            else:
                yield where, row

    def examples(self, split: str) -> list[InputExample]:
        """All lines, counted by the example ids; spaces around labels do not count."""
        found = []
        text_b = self.description.get("text_b")
        if split == "test":
            unknown = self.unknown_label()
        for eid, (where, row) in enumerate(self._rows(split)):
            label = unknown if split == "test" else self.label_of(row)
            wrong = None if split == "test" else self._wrong(split, label)
            if wrong:
                self.bad(split, where, wrong)
                continue
            texts = [str(row[self.description["text_a"]])]
            texts.append(str(row[text_b]) if text_b else None)
            found.append(InputExample(eid, *texts, label))
        return found

    def label_of(self, row: dict[str | None, Any]) -> str:
        """The label of a line, without the spaces around it."""
        return str(row[self._label]).strip()

    def unknown_label(self) -> str:
        """What stands for the label of a test set."""
        return self.labels[0] if self.labels else str(self.lowest)

    def _wrong(self, split: str, label: str) -> str | None:
        """What is wrong with a label, as far as the file can tell by itself."""
        if not self._has_classes and not self._is_scale_given:
            return (
                None if _number(label) is not None else f"{shown(label)} is no number"
            )
        if self._has_classes and split == "train" and not self.stored:
            return None
        return self.wrong_label(label)


class OwnMultilabelTask(Multilabel, OwnTextTask):
    """Any number of classes for texts in columns."""


def _range(examples: Sequence[InputExample]) -> tuple[float, float]:
    numbers = [float(example.label) for example in examples]
    return min(numbers, default=0.0), max(numbers, default=1.0)


class OwnTaggingTask(_OwnFiles, TaggingTask):
    """Tags for words, from CoNLL lines or JSONL lists."""

    is_frugal = False

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        said = self.description.get("scheme")
        self._said = said and tag_schemes.scheme_named(said)
        self.is_plain = self._said == tag_schemes.PLAIN

    def reading(self, tags: Sequence[str]) -> list[tag_schemes.Span]:
        """The spans in tags, as far as the scheme can tell them apart."""
        spans = tag_schemes.spans_in(tags)
        if self._said == "IO":
            io = tag_schemes.tags_of(spans, len(tags), self._said)
            spans = tag_schemes.spans_in(io)
        return spans

    @functools.cached_property
    def scheme(self) -> str:
        """The description's, else the one that the training file is in."""
        if self._said:
            return self._said
        split = "train" if self.path("train").is_file() else "dev"
        try:
            return tag_schemes.scheme_of([e.written for e in self.read(split)])
        except UserError as error:
            raise UserError(f"{self.path(split)} has {error}.") from None

    def form(self, split: str) -> str:
        """The scheme that predictions are written in."""
        return self.scheme

    def wrong_tag(self, tag: str) -> str | None:
        """What is wrong with a tag."""
        found = tag_schemes.wrong_tag(tag, self._said)
        if found and not self._said and "-" not in tag:
            found += '; "scheme": "plain" takes any tag'
        return found

    def data_labels(self) -> list[str]:
        """All tags of the training file."""
        return sorted({tag for e in self.read("train") for tag in e.tags})

    def check(self) -> None:
        """The tags are in one scheme."""
        super().check()
        if self.path("train").is_file() and self.scheme:
            self.data_labels()

    def sentences(self, split: str) -> Iterator[Sentence]:
        """(where it stands, words, tags) of each sentence."""
        if self.path(split).suffix.lower() != ".jsonl":
            yield from super().sentences(split)
            return
        words = self.description.get("words", "words")
        tags = self.description.get("tags", "tags")
        for where, row in records(self.required(split)):
            found = [row.get(key) for key in (words, tags)]
            if split == "test" and isinstance(found[0], list) and found[1] is None:
                yield where, list(map(str, found[0])), None
            elif all(isinstance(x, list) for x in found) and found[0]:
                yield where, *[list(map(str, x)) for x in found]
            else:
                self.bad(split, where, f"{words} and {tags} are not two lists")


class OwnQATask(_OwnFiles, QATask):
    """Questions in a file of SQuAD's form."""

    answer_text = "offsets"

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.is_v2 = bool(self.description.get("has_impossible", False))
