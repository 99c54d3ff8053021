#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ELECTRA paper's score of a pre-trained model: fine-tunes it on GLUE's tasks.

  python experiments/glue.py --data-dir $DATA_DIR --model-name electra_small_owt

One task after the other, --trials runs each; a task's score is the median of its trials
on the dev set, the paper's number the mean over the eight tasks. GLUE's files are in
$DATA_DIR/finetuning_data/<task>; what is finished is not repeated.
"""

import json
import statistics
import sys
from pathlib import Path

import scales
from absl import flags
from checkout import ROOT
from scales import GLUE

from electra_tf import cli
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.finetune import initial_weights
from electra_tf.processes import Job, run_jobs
from electra_tf.storage.files import atomic_write

_DATA_DIR = cli.define_path("data_dir", None, "Vocabulary, GLUE's files and models.")
_MODEL_NAME = flags.DEFINE_string("model_name", None, "The pre-trained model.")
_HPARAMS = flags.DEFINE_string(
    "hparams", "{}", "JSON text or file: hparams of fine-tuning, for all tasks."
)
_TRIALS = flags.DEFINE_integer(
    "trials", 10, "Fine-tuning runs of each task; the paper has 10.", lower_bound=1
)
_TASKS = flags.DEFINE_list("tasks", [], "Default: those of the eight that have data.")
_WORKERS = flags.DEFINE_integer("workers", 1, "Tasks at a time.", lower_bound=1)
flags.mark_flags_as_required(["data_dir", "model_name"])

# What this command sets itself.
_OURS = ("task_names", "num_trials", "model_dir", "results_txt")


def main(argv: list[str]) -> int:
    """Fine-tunes, prints and writes the table; returns the exit code."""
    del argv
    console, data_dir = Console(), Path(_DATA_DIR.value)
    hparams = read_hparams(_HPARAMS.value)
    if ours := [name for name in _OURS if name in hparams]:
        raise UserError(f"--hparams: {ours[0]} is this command's to set; leave it out.")
    there = scales.glue_tasks(data_dir)
    tasks = _TASKS.value or there
    for task in tasks:
        if task not in there:
            raise UserError(
                f"--tasks: {task!r} has no data in {data_dir / 'finetuning_data'}, or "
                f"is not of GLUE.\nThere are: {', '.join(there)}."
            )
    hparams |= {"num_trials": _TRIALS.value}
    start = FinetuningConfig.weights_of(str(data_dir), _MODEL_NAME.value, hparams)
    if start is not None:
        initial_weights.find(start, console.log)
    results, jobs, done = {}, [], set()
    for task in tasks:
        own = {"keep_all_models": False, **hparams, "task_names": [task]}
        config = FinetuningConfig.from_hparams(str(data_dir), _MODEL_NAME.value, own)
        results[task] = Path(config.results_json)
        command = [
            *(sys.executable, str(ROOT / "run_finetuning.py")),
            *("--data-dir", str(data_dir), "--model-name", _MODEL_NAME.value),
            *("--hparams", json.dumps(own)),
        ]
        jobs.append(Job(task, [command], results[task].with_name(f"glue_{task}.log")))

    code = run_jobs(
        *(jobs, _WORKERS.value, console),
        keep_going=True,
        on_end=lambda job: done.add(job.name),
    )
    if done:
        lines = table({task: results[task] for task in tasks if task in done})
        path = results[tasks[0]].with_name("glue.md")
        atomic_write(path, "\n".join(lines) + "\n")
        for line in [*lines, f"Written to {path}"]:
            console.log(line)
    return code


def table(results: dict[str, Path]) -> list[str]:
    """Markdown: each task's median, and the mean over the tasks.

    Args:
      results: task -> the JSON file that run_finetuning.py writes.
    """
    lines = ["| task | metric | median | trials |", "|---|---|---|---|"]
    medians = {}
    for task, path in results.items():
        found = json.loads(path.read_text(encoding="utf-8"))["statistics"][task]
        value = found[GLUE[task]]
        medians[task] = value["median"]
        cells = [task, GLUE[task], f"{value['median']:.2f}", str(value["trials"])]
        lines.append(f"| {' | '.join(cells)} |")
    mean = statistics.fmean(medians.values())
    whole = medians.keys() == GLUE.keys()
    name = "GLUE" if whole else f"mean of {len(medians)} tasks, not the paper's"
    return [*lines, f"| **{name}** | | **{mean:.2f}** | |"]


if __name__ == "__main__":
    cli.run(main)
