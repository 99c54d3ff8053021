# SPDX-License-Identifier: Apache-2.0
"""GLUE in rows with columns by name and classes as numbers, as others distribute it.

Examples come in the order of GLUE's files and with their ids, so features and what is
submitted are the same from either form.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.finetune.classification import GLUE, GlueTask, InputExample
from electra_tf.finetune.inputs import parquet_name, shown
from electra_tf.finetune.task import rounded
from electra_tf.text import tables

CONFIGS = {name: name for name in GLUE} | {"sst": "sst2", "sts": "stsb"}
# What the numbers of classes stand for, where GLUE's own files have names.
_NLI = ("entailment", "not_entailment")
_CLASSES = {"mnli": ("entailment", "neutral", "contradiction")}
_CLASSES |= {"qnli": _NLI, "rte": _NLI}


def place_of(name: str, split: str) -> tuple[str, str]:
    """What others call a task and one of its splits."""
    if split == "diagnostic":
        return "ax", "test"
    if (name, split) == ("mnli", "dev"):
        split = "dev_matched"
    return CONFIGS[name], split.replace("dev", "validation")


class GlueRowsTask(GlueTask):
    """A task of GLUE, from rows."""

    @abstractmethod
    def rows(
        self, split: str
    ) -> tuple[Sequence[str], Iterable[tuple[str, dict[str, Any]]]]:
        """(names of the classes, if known; where each row stands, and the row)."""

    def examples(self, split: str) -> list[InputExample]:
        """All rows in order; in training both orders of pairs without one."""
        names, rows = self.rows(split)
        found = []
        for number, (where, row) in enumerate(rows):
            example = self._of_row(split, number, where, row, names)
            if example:
                found.append(example)
        return self.in_both_orders(found) if split == "train" else found

    def _of_row(self, split, number, where, row, names) -> InputExample | None:
        texts, label = [], self.unknown_label()
        for column in self.glue.columns[-1]:
            text = row.get(column)
            text = text.decode("utf-8") if isinstance(text, bytes) else text
            if not isinstance(text, str):
                what = f"column {column!r} is {shown(text)}, not a text"
                return self.bad(split, where, what)
            texts.append(text)
        if split in self.glue.submission:
            # Only there the ids are GLUE's; those of MRPC's other sets have gaps.
            number = row.get("idx", number)
            if not isinstance(number, int | np.integer):
                what = f"column 'idx' is {shown(number)}, not a whole number"
                return self.bad(split, where, what)
            number = int(number)
        else:
            label = self._label(row.get("label"), names or _CLASSES.get(self.name, ()))
        if wrong := self.wrong_label(label):
            return self.bad(split, where, f"column 'label': {wrong}")
        return InputExample(number, texts[0], (*texts, None)[1], label)

    def _label(self, value: Any, names: Sequence[str]) -> str:
        """As GLUE's files have it: its name, or the number of a class or a score."""
        if not isinstance(value, int | float | np.number):
            return str(value)
        if not self.labels:
            return str(rounded(value))
        is_known = set(names) == set(self.labels) and 0 <= value < len(names)
        return names[int(value)] if is_known else f"{value:g}"


class ParquetGlueTask(GlueRowsTask):
    """A task of GLUE in Hugging Face's Parquet files."""

    def path(self, split: str) -> Path:
        """The file of a split, in the folder of the task or of their name for it."""
        theirs, name = place_of(self.name, split)
        names = [theirs] if split == "diagnostic" else [self.name, theirs]
        folders = [Path(self.config.raw_data_dir(name)) for name in names]
        paths = [folder / parquet_name(folder, name) for folder in folders]
        return next((path for path in paths if path.is_file()), paths[0])

    def rows(self, split):
        """As they stand in the file."""
        path = str(self.required(split))
        table = tables.Rows(path)
        rows = ((f"{path}, row {number}", row) for number, row in enumerate(table))
        return table.classes.get("label", ()), rows


def glue_task(name: str, config, tokenizer) -> GlueTask:
    """The task in the files that its directory holds: GLUE's own, else Parquet."""
    own, parquet = (t(name, config, tokenizer) for t in (GlueTask, ParquetGlueTask))
    places = itertools.product(("train", "dev", *own.glue.submission), (own, parquet))
    return next((task for split, task in places if task.path(split).is_file()), own)
