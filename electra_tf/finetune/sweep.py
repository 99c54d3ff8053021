# SPDX-License-Identifier: Apache-2.0
"""Scores of one pre-training run's checkpoints against their step, as JSON and picture.

Whether longer pre-training still pays is seen here, not in the pre-training loss.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.results import Statistics, finite
from electra_tf.finetune.task import SMOOTHED, Task
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.files import atomic_write
from electra_tf.storage.remote_run import bring_model
from electra_tf.train.curves import dress, new_figure, png_of

Scores = dict[str, dict[int, Statistics]]  # "task: metric" -> step -> statistics


def checkpoints_of(config: FinetuningConfig) -> list[tuple[int, str]]:
    """(step, prefix) of every checkpoint in the directory of init_checkpoint.

    Raises `UserError` when it is not a directory or holds none.
    """
    directory = config.init_checkpoint
    if directory is not None:
        bring_model(directory, all_steps=True)
    if directory is None or not os.path.isdir(directory):
        raise UserError(
            f"--sweep needs the directory of a pre-training run as init_checkpoint, "
            f"not {directory!r}."
        )
    found = Checkpoints(directory, read_only=True)
    # The weights of step 0 are random; init_checkpoint null gives such a run.
    steps = [step for step in found.steps() if step > 0]
    if not steps:
        raise UserError(f"{directory} holds no checkpoint; --sweep has nothing to do.")
    return [(step, found.prefix(step)) for step in steps]


def of_task(
    hparams: Mapping[str, Any], config: FinetuningConfig, name: str, task: Task
) -> dict[str, Any]:
    """The hparams of one task; of several, each has places of its own.

    The default places have the task's name in them, those that a user gives do not.
    What is for other tasks of the sweep is left out.

    Args:
      name: what `task` is called in task_names.
    """
    found = {**hparams, "task_names": [name]}
    weights = hparams.get("class_weights", {})
    found["class_weights"] = {k: v for k, v in weights.items() if k == task.name}
    if task.head.kind not in SMOOTHED:
        found.pop("label_smoothing", None)
    if config.write_test_outputs:
        found["write_test_outputs"] = bool(task.splits("test"))
    if len(config.task_names) > 1:
        for place in ("model_dir", "results_txt", "results_pkl"):
            if place in hparams:
                stem, ending = os.path.splitext(hparams[place])
                found[place] = f"{stem}_{name}{ending}"
    return found


def config_at(config: FinetuningConfig, step: int, prefix: str) -> FinetuningConfig:
    """The run that starts from one checkpoint, with places of its own."""
    results = Path(config.results_txt)
    return dataclasses.replace(
        config,
        init_checkpoint=prefix,
        model_dir=f"{config.model_dir}_from_{step}",
        results_txt=str(results.parent / "sweep" / f"{results.stem}_from_{step}.txt"),
    )


def json_path_of(config: FinetuningConfig) -> Path:
    """Where the numbers of a sweep go; another one's are of other tasks."""
    names = ",".join(config.task_names)
    return Path(config.results_txt).parent / "sweep" / f"{names}_sweep.json"


def write(scores: Scores, json_path: Path, title: str) -> Path:
    """Writes the numbers and the picture; returns the picture's path."""
    content = {
        name: {str(step): value._asdict() for step, value in by_step.items()}
        for name, by_step in scores.items()
    }
    text = json.dumps(finite(content), indent=2, allow_nan=False)
    atomic_write(json_path, text + "\n")
    picture = json_path.with_suffix(".png")
    atomic_write(picture, _plot(scores, title))
    return picture


def _plot(scores: Scores, title: str) -> bytes:
    figure = new_figure((8, 5))
    axes = figure.add_subplot()
    for name, by_step in scores.items():
        steps = sorted(by_step)
        medians = [by_step[step].median for step in steps]
        spread = [by_step[step].std or 0.0 for step in steps]
        axes.errorbar(steps, medians, spread, marker="o", capsize=3, label=name)
    dress(axes, title, "pre-training step")
    axes.set_ylabel("dev score, median of the trials", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return png_of(figure)


def table(scores: Scores) -> str:
    """Median scores, a line per checkpoint."""
    names = list(scores)
    steps = sorted({step for by_step in scores.values() for step in by_step})
    lines = ["  ".join(["step".rjust(9), *names])]
    for step in steps:
        cells = [str(step).rjust(9)]
        for name in names:
            value = scores[name].get(step)
            is_known = value and math.isfinite(value.median)
            cells.append((f"{value.median:.2f}" if is_known else "-").rjust(len(name)))
        lines.append("  ".join(cells))
    return "\n".join(lines)
