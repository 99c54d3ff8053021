#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ELECTRA paper's score of a pre-trained model: fine-tunes it on GLUE's tasks.

  python experiments/glue.py --data-dir $DATA_DIR --model-name electra_small_owt

One task after the other, --trials runs each; a task's score is the median of its trials
on the dev set, the paper's number the mean over the eight tasks. GLUE's files are in
$DATA_DIR/finetuning_data/<task>; what is finished is not repeated. The learning rate is
the paper's for the model's size unless --hparams has one.
"""

import os
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
from electra_tf.finetune import initial_weights
from electra_tf.storage.files import atomic_write

flags.adopt_module_key_flags(finetuned)


def main(argv: list[str]) -> int:
    """Fine-tunes, prints and writes the table; returns the exit code."""
    del argv
    console, hparams = Console(), finetuned.given_hparams()
    data_dir = finetuned.DATA_DIR.value
    there = scales.glue_tasks(finetuned.originals(hparams), Path(data_dir))
    tasks = finetuned.chosen_tasks(there, "GLUE")
    rate, note = learning_rate(hparams, shape_of_model(hparams, console))
    hparams = {**hparams, **rate}
    runs = [finetuned.TaskRun(task, task, hparams) for task in tasks]
    code, finished = finetuned.make(runs, console)
    if finished:
        lines = table({r.task: r.statistics() for r in runs if r.name in finished})
        lines += ["", note]
        path = runs[0].results().with_name("glue.md")
        atomic_write(path, "\n".join(lines) + "\n")
        for line in [*lines, f"Written to {path}"]:
            console.log(line)
    return code


def shape_of_model(hparams: Mapping[str, Any], console: Console) -> Mapping[str, Any]:
    """The hparams of the shape: what the model says, or those of random weights."""
    model = finetuned.initial_model(hparams, console)
    if model is None:
        return hparams
    usual = os.path.join(finetuned.DATA_DIR.value, "vocab.txt")
    return initial_weights.hparams_of(model, hparams, usual, console.log)


def learning_rate(
    hparams: Mapping[str, Any], shape: Mapping[str, Any]
) -> tuple[dict[str, float], str]:
    """(the hparam, if it is to be set, what the table says of it)."""
    if "learning_rate" in hparams:
        return {}, f"Learning rate {hparams['learning_rate']:g}, of --hparams."
    rate, size = scales.paper_rate(shape), shape.get("model_size", "small")
    if rate is None:
        return {}, f"Learning rate: run_finetuning.py's; the paper has no such {size}."
    return {"learning_rate": rate}, f"Learning rate {rate:g}, the paper's for {size}."


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
