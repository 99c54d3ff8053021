#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does a pre-training pay? Fine-tunes its model and random weights on the same tasks.

  python experiments/against_random.py --data-dir $DATA_DIR --model-name m --workers 2

--trials runs of each task for both, with the same seeds (order of the data, heads,
dropout); the random weights have the model's shape and are drawn anew for each trial.
The table has means on the dev sets with their standard errors. A task's files are in
$DATA_DIR/finetuning_data/<task>; what is finished is not repeated.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import finetuned
from absl import flags
from finetuned import UNDEFINED, TaskRun

from electra_tf import cli
from electra_tf.config.run import run_directory
from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.finetune import initial_weights
from electra_tf.interop.sources import FoundModel
from electra_tf.storage.files import atomic_write

# Metric -> median, mean, std and so on of the trials.
Statistics = Mapping[str, Mapping[str, Any]]
PRETRAINED, RANDOM = "pre-trained", "random weights"

flags.adopt_module_key_flags(finetuned)
flags.set_default(finetuned.TRIALS, 5)


def main(argv: list[str]) -> int:
    """Fine-tunes, prints and writes the table; returns the exit code."""
    del argv
    console, hparams = Console(), finetuned.given_hparams()
    data_dir, model_name = finetuned.DATA_DIR.value, finetuned.MODEL_NAME.value
    folder = Path(data_dir) / "finetuning_data"
    there = sorted({*finetuned.originals(hparams), *hparams.get("tasks", [])})
    tasks = finetuned.chosen_tasks(there, '"tasks"')
    if not tasks:
        raise UserError(
            f"{folder} has no data of a task; docs/fine_tuning.md has more."
        )
    model = finetuned.initial_model(hparams, console)
    if model is None:
        raise UserError(
            "--hparams: init_checkpoint is null, which are random weights.\nLeave it "
            "out, or name a pre-trained model."
        )
    random = untrained(model, hparams, os.path.join(data_dir, "vocab.txt"), console)
    own = Path(run_directory(data_dir, model_name)) / "random_weights"
    runs = {}
    for task in tasks:
        places = {
            "model_dir": str(own / task),
            "preprocessed_data_dir": str(own / f"{task}_features"),
        }
        name = f"{task}, {RANDOM}"
        runs[task, PRETRAINED] = TaskRun(f"{task}, {PRETRAINED}", task, hparams)
        runs[task, RANDOM] = TaskRun(name, task, random | places)
    code, finished = finetuned.make(list(runs.values()), console)
    found = {key: r.statistics() for key, r in runs.items() if r.name in finished}
    if found:
        lines = table(found)
        path = runs[tasks[0], PRETRAINED].results().with_name("against_random.md")
        atomic_write(path, "\n".join(lines) + "\n")
        for line in [*lines, f"Written to {path}"]:
            console.log(line)
    return code


def untrained(
    model: FoundModel, hparams: Mapping[str, Any], vocab_file: str, console: Console
) -> dict[str, Any]:
    """The hparams of random weights of a model's shape, drawn as its own once were."""
    theirs = model.settings.hparams.get("model_hparam_overrides", {})
    drawn = {k: theirs[k] for k in ("initializer_range",) if k in theirs}
    overrides = drawn | hparams.get("model_hparam_overrides", {})
    given = {**hparams, "model_hparam_overrides": overrides}
    shape = initial_weights.hparams_of(model, given, vocab_file, console.log)
    return given | shape | {"init_checkpoint": None}


def table(
    found: Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]],
) -> list[str]:
    """Markdown: mean and standard error of both, their difference.

    Args:
      found: (task, which of the two) -> statistics.
    """
    head = ["task", "metric", PRETRAINED, RANDOM, "difference", "in standard errors"]
    rows = [head, ["---"] * len(head)]
    for (task, which), metrics in found.items():
        other = found.get((task, RANDOM))
        if which == RANDOM or other is None:
            continue
        for metric, value in metrics.items():
            if metric == "loss":  # of which less is better
                continue
            rows.append([task, metric, *_compared(value, other[metric])])
    return [f"| {' | '.join(row)} |" for row in rows]


def _compared(ours: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Both means with their errors, their difference, and that in standard errors."""
    sides = ours, others
    errors = [standard_error(side) for side in sides]
    cells = [
        UNDEFINED
        if side["mean"] is None
        else f"{side['mean']:.2f}" + ("" if error is None else f" ± {error:.2f}")
        for side, error in zip(sides, errors, strict=True)
    ]
    if UNDEFINED in cells:
        return [*cells, UNDEFINED, ""]
    difference = ours["mean"] - others["mean"]
    both = math.hypot(*errors) if None not in errors else 0.0
    return [*cells, f"{difference:+.2f}", f"{difference / both:+.1f}" if both else ""]


def standard_error(value: Mapping[str, Any]) -> float | None:
    """Of the mean; None for a single trial."""
    return None if value["std"] is None else value["std"] / math.sqrt(value["trials"])


if __name__ == "__main__":
    cli.run(main)
