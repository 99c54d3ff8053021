# SPDX-License-Identifier: Apache-2.0
"""What a fine-tuned model is for, without the data that it was trained on.

Kept beside its checkpoints: the names of labels above all, whose order no weight tells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune.task import HeadSpec, Task

FILE = "tasks.json"


class TaskFacts(NamedTuple):
    """One task."""

    name: str
    kind: str  # of HeadSpec
    labels: tuple[str, ...] = ()
    num_texts: int = 1
    lowest: float = 0.0  # of a regression's numbers
    highest: float = 1.0
    has_impossible: bool = False  # of questions

    @property
    def head(self) -> HeadSpec:
        """What stands on the encoder."""
        return HeadSpec(self.kind, len(self.labels))


def facts_of(task: Task) -> TaskFacts:
    """What is to be known of a task."""
    found = TaskFacts(task.name, task.head.kind)
    return found._replace(
        labels=tuple(getattr(task, "labels", ())),
        num_texts=getattr(task, "num_texts", 1),
        lowest=getattr(task, "lowest", 0.0),
        highest=getattr(task, "highest", 1.0),
        has_impossible=getattr(task, "is_v2", False),
    )


def write(directory: str | os.PathLike, tasks: Sequence[Task]) -> None:
    """Writes the facts of all tasks of a run into its directory."""
    from electra_tf.storage.files import atomic_write

    facts = [facts_of(task)._asdict() for task in tasks]
    atomic_write(Path(directory) / FILE, json.dumps(facts, indent=1) + "\n")


def read(directory: str | os.PathLike) -> list[TaskFacts]:
    """What `write` wrote; raises `UserError` (65) for anything else."""
    path = Path(directory) / FILE
    try:
        found = [TaskFacts(**facts) for facts in json.loads(path.read_text("utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read: {error}.\nWithout it, the task's data say what "
            "is in it: remove it.",
            EXIT_DAMAGED,
        ) from None
    return [facts._replace(labels=tuple(facts.labels)) for facts in found]
