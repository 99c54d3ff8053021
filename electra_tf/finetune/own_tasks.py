# SPDX-License-Identifier: Apache-2.0
"""Tasks that hparams describe, on files of the user's own.

    "tasks": {"mytask": {"type": "classification", "train": "train.tsv", "dev":
              "dev.tsv", "text_a": "sentence", "label": "class", "metric": "mcc"}}

Types: classification and regression (of one text, or of two with text_b), tagging
(words and tags on lines as CoNLL has them, or lists in JSONL), qa (files in SQuAD's
form). Texts come from TSV or CSV with a header, or from JSONL; paths are relative to
--data-dir.
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
from electra_tf.finetune.classification import InputExample, TextTask
from electra_tf.finetune.qa import QATask
from electra_tf.finetune.tagging import TaggingTask
from electra_tf.finetune.task import Task, read_text

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
    "regression": ("text_a*", "text_b", "label*", "lowest", "highest"),
    "tagging": ("words", "tags"),
    "qa": ("has_impossible",),
}


def make_own_task(name: str, config, tokenizer) -> Task:
    """The task that `config.tasks` describes under this name.

    Raises `UserError` for a description that is wrong, naming the key.
    """
    description = config.tasks[name]
    check_description(name, description)
    kinds = {"tagging": OwnTaggingTask, "qa": OwnQATask}
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


def records(
    path: Path, wanted: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where it stands, fields by column) of a TSV, CSV or JSONL file.

    Raises `UserError` for a file of another kind, a header without the wanted columns
    or a line that cannot be read.
    """
    ending = path.suffix.lower()
    if ending not in (".tsv", ".csv", ".jsonl"):
        raise UserError(f"{path} is none of .tsv, .csv, .jsonl.")
    text = read_text(path)
    if ending == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""))
        _check_header(path, reader.fieldnames or [], wanted)
        for row in reader:
            row = {k: v for k, v in row.items() if v is not None}
            yield f"{path}, line {reader.line_num}", row
        return
    lines = text.split("\n")
    header = lines[0].split("\t")
    if ending == ".tsv":
        _check_header(path, header, wanted)
    for number, line in enumerate(lines, start=1):
        if ending == ".jsonl" and line.strip():
            yield f"{path}, line {number}", _object(path, number, line)
        elif ending == ".tsv" and number > 1 and line.strip():
            # As GLUE's files: no quoting, a tab always ends a column.
            cells = dict(zip(header, line.split("\t"), strict=False))
            yield f"{path}, line {number}", cells


def _check_header(path: Path, header: Sequence[str], wanted: Sequence[str]) -> None:
    for column in wanted:
        if column not in header:
            close = difflib.get_close_matches(column, header, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise UserError(
                f"{path} has no column {column!r}{hint}\n"
                f"Its first line names {', '.join(header) or 'none'}."
            )


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise UserError(f"{path}, line {number}: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path}, line {number}: not an object {{...}}.")
    return {key: value for key, value in found.items() if value is not None}


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
        return Path(self.config.data_dir) / self.description[split]

    def splits(self, kind: str) -> list[str]:
        """Those that the description names."""
        return [kind] if kind in self.description else []


class OwnTextTask(_OwnFiles, TextTask):
    """Classes or numbers for texts in columns."""

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.num_texts = 2 if self.description.get("text_b") else 1
        self.metric = self.description.get("metric", "accuracy")
        if self.description["type"] == "classification":
            found = {str(row[self._label]) for _, row in self._rows("train")}
            self.labels = tuple(sorted(found))
            if len(found) < 2:
                raise UserError(
                    f"task {name}: {self.path('train')} has {len(found)} labels "
                    f"({', '.join(found) or 'none'}); there is nothing to learn."
                )
            return
        numbers = [_number(row[self._label]) for _, row in self._rows("train")]
        # What is no number is said where examples are made of these lines.
        numbers = [n for n in numbers if n is not None]
        self.lowest = float(self.description.get("lowest", min(numbers, default=0)))
        self.highest = float(self.description.get("highest", max(numbers, default=1)))
        if self.highest <= self.lowest:
            raise UserError(f"task {name}: all scores are {self.lowest:g}.")

    @property
    def _label(self) -> str:
        return self.description["label"]

    def _rows(self, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Lines that have all columns; `bad` has been told of the others."""
        wanted = [self.description["text_a"], self.description.get("text_b")]
        wanted = [column for column in wanted if column]
        if split != "test":
            wanted.append(self._label)
        for where, row in records(self.required(split), wanted):
            missing = [column for column in wanted if column not in row]
            if not missing and split != "test" and not str(row[self._label]).strip():
                self.bad(split, where, f"the column {self._label!r} is empty")
                continue
            if missing:
                there = ", ".join(map(str, row))
                self.bad(split, where, f"no column {missing[0]!r}, only {there}")
                continue
            yield where, row

    def examples(self, split: str) -> list[InputExample]:
        """All lines; the example ids count them."""
        found = []
        text_b = self.description.get("text_b")
        first = self.labels[0] if self.labels else str(self.lowest)
        for eid, (where, row) in enumerate(self._rows(split)):
            label = str(row[self._label]) if split != "test" else first
            wrong = self.wrong_label(label)
            if wrong:
                self.bad(split, where, wrong)
                continue
            texts = [str(row[self.description["text_a"]])]
            texts.append(str(row[text_b]) if text_b else None)
            found.append(InputExample(eid, *texts, label))
        return found


class OwnTaggingTask(_OwnFiles, TaggingTask):
    """Tags for words, from CoNLL lines or JSONL lists."""

    @functools.cached_property
    def labels(self) -> list[str]:
        """All tags of the training file, and of the dev file's spans."""
        found = set()
        for split in ("train", "dev"):
            for example in self.examples(split):
                found.update(example.tags)
        return sorted(found)

    def sentences(self, split: str) -> Iterator[tuple[str, list[str], list[str]]]:
        """(where it stands, words, tags) of each sentence."""
        if self.path(split).suffix.lower() != ".jsonl":
            yield from super().sentences(split)
            return
        words = self.description.get("words", "words")
        tags = self.description.get("tags", "tags")
        for where, row in records(self.required(split)):
            found = [row.get(key) for key in (words, tags)]
            if all(isinstance(x, list) for x in found) and found[0]:
                yield where, *[list(map(str, x)) for x in found]
                continue
            self.bad(split, where, f"{words} and {tags} are not two lists")


class OwnQATask(_OwnFiles, QATask):
    """Questions in a file of SQuAD's form."""

    def __init__(self, name, config, tokenizer):
        super().__init__(name, config, tokenizer)
        self.is_v2 = bool(self.description.get("has_impossible", False))
