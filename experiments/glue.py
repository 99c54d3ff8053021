#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ELECTRA paper's score of a pre-trained model: fine-tunes it on GLUE's tasks.

  python experiments/glue.py --data-dir $DATA_DIR --model-name electra_small_owt

One task after the other, --trials runs each; a task's score is the median of its trials
on the dev set, the paper's number the mean over the eight tasks. GLUE's files are in
$DATA_DIR/finetuning_data/<task>; what is finished is not repeated.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import finetuned
import scales
from absl import flags
from finetuned import UNDEFINED
from scales import GLUE

from electra_tf import cli
from electra_tf.console import Console
from electra_tf.storage.files import atomic_write

flags.adopt_module_key_flags(finetuned)


def main(argv: list[str]) -> int:
    """Fine-tunes, prints and writes the table; returns the exit code."""
    del argv
    console, hparams = Console(), finetuned.given_hparams()
    there = scales.glue_tasks(Path(finetuned.DATA_DIR.value))
    tasks = finetuned.chosen_tasks(there, "GLUE")
    finetuned.initial_model(hparams, console)
    runs = [finetuned.TaskRun(task, task, hparams) for task in tasks]
    code, finished = finetuned.make(runs, console)
    if finished:
        lines = table({r.task: r.statistics() for r in runs if r.name in finished})
        path = runs[0].results().with_name("glue.md")
        atomic_write(path, "\n".join(lines) + "\n")
        for line in [*lines, f"Written to {path}"]:
            console.log(line)
    return code


def table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Markdown: each task's median, and the mean over the tasks that have one.

    Args:
      found: task -> metric -> statistics of the trials.
    """
    lines = ["| task | metric | median | trials |", "|---|---|---|---|"]
    medians = {}
    for task, metrics in found.items():
        value = metrics[GLUE[task]]
        median = UNDEFINED
        if value["median"] is not None:
            medians[task] = value["median"]
            median = f"{value['median']:.2f}"
        cells = [task, GLUE[task], median, str(value["trials"])]
        lines.append(f"| {' | '.join(cells)} |")
    mean = f"{statistics.fmean(medians.values()):.2f}" if medians else UNDEFINED
    whole = medians.keys() == GLUE.keys()
    names = ", ".join(medians) or "nothing"
    name = "GLUE" if whole else f"mean of {names}; not the paper's"
    lines.append(f"| **{name}** | | **{mean}** | |")
    left_out = [task for task in found if task not in medians]
    if left_out:
        names = ", ".join(left_out)
        lines += ["", f"Without a defined score, and left out of the mean: {names}."]
    return lines


if __name__ == "__main__":
    cli.run(main)
