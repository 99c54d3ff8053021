# SPDX-License-Identifier: Apache-2.0
"""The scores on the dev sets while a trial trains, and which step was the best."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_tf.finetune.results import finite
from electra_tf.finetune.task import Task
from electra_tf.storage.files import atomic_write

_FILE = "evaluations.jsonl"


def read(directory: str | os.PathLike) -> list[dict[str, Any]]:
    """What was scored in the trial of a directory."""
    path = Path(directory) / _FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else ()
    return [json.loads(line) for line in lines]


class Evaluations:
    """What was scored in a trial, a line per evaluation; a resumed trial goes on.

    Args:
      directory: the trial's.
      step: that the trial is at; what comes later is made again.
    """

    def __init__(self, directory: str | os.PathLike, step: int):
        self._path = Path(directory) / _FILE
        self.rows = [row for row in read(directory) if row["step"] <= step]

    def is_better(self, score: float, scores: Mapping[str, Any]) -> bool:
        """Whether a score is higher than all before; see `best`."""
        row = finite({"score": score, "scores": scores})
        return not self.rows or _rank(row) > _rank(self.best())

    def add(self, step: int, score: float, scores: Mapping[str, Any]) -> None:
        """Keeps what was scored at a step."""
        row = {"step": step, "score": score, "scores": scores}
        self.rows.append(finite(row))
        text = "".join(json.dumps(row) + "\n" for row in self.rows)
        atomic_write(self._path, text)

    def has(self, step: int) -> bool:
        """Whether a step was scored."""
        return any(row["step"] == step for row in self.rows)

    def best(self) -> dict[str, Any]:
        """The evaluation with the highest score, the first of equals.

        Where no score is defined, such as a correlation with equal numbers, that with
        the lowest loss.
        """
        return max(self.rows, key=_rank)

    def is_over(self, patience: int) -> bool:
        """Whether as many evaluations as this have brought nothing better; 0: never."""
        if not patience or not self.rows:
            return False
        return len(self.rows) - 1 - self.rows.index(self.best()) >= patience


def _rank(row: Mapping[str, Any]) -> tuple[bool, float]:
    if row["score"] is not None:
        return True, row["score"]
    losses = [found.get("loss") for found in row["scores"].values()]
    return False, -sum(math.inf if loss is None else loss for loss in losses)


def main_score(
    tasks: Sequence[Task], scores: Mapping[str, Mapping[str, float]]
) -> float:
    """The mean of the tasks' main metrics on their (first) dev sets."""
    of_tasks = (scores[task.name] for task in tasks)
    return statistics.fmean(
        found[task.main_metric or next(iter(found))]
        for task, found in zip(tasks, of_tasks, strict=True)
    )
