#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a pre-trained model is worth: fine-tunes it, --trials runs of each task.

  python experiments/finetuned.py glue --data-dir $DATA_DIR --model-name m
  python experiments/finetuned.py against_random --data-dir $DATA_DIR --model-name m

glue prints the ELECTRA paper's score: the mean over GLUE's eight tasks of the medians
on their dev sets, at the paper's learning rate for the model's size unless --hparams
has one. against_random fine-tunes random weights of the model's shape as well, drawn
anew for each trial, with the same seeds (order of the data, heads, dropout), and prints
the means on the dev sets with their standard errors. Tasks' files are in
$DATA_DIR/finetuning_data/<task>; what is finished is not repeated.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import scales
from absl import flags
from report import markdown, with_error
from scales import GLUE

from electra_tf import cli
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.run import run_directory
from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.finetune.registry import originals_with_data
from electra_tf.finetune.run import hparams_of
from electra_tf.interop import readers
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.processes import Commands, run_commands
from electra_tf.storage.files import atomic_write

_DATA_DIR = cli.define_path("data_dir", None, "Vocabulary, data of tasks and models.")
_MODEL_NAME = flags.DEFINE_string("model_name", None, "The pre-trained model.")
_HPARAMS = flags.DEFINE_string(
    "hparams", "{}", "JSON text or file: hparams of fine-tuning, for all tasks."
)
_TRIALS = flags.DEFINE_integer(
    "trials",
    None,
    "Fine-tuning runs of each task. Default: 10, as the paper has; against_random: 5.",
    lower_bound=1,
)
_TASKS = flags.DEFINE_list("tasks", [], "Default: those that have data.")
_WORKERS = flags.DEFINE_integer("workers", 1, "Tasks at a time.", lower_bound=1)
flags.mark_flags_as_required(["data_dir", "model_name"])

# What these commands set themselves.
_OURS = ("task_names", "num_trials", "model_dir", "results_txt", "do_train", "do_eval")
# For an undefined score, such as a correlation with a constant.
UNDEFINED = "-"
PRETRAINED, RANDOM = "pre-trained", "random weights"


class TaskRun(NamedTuple):
    """The trials of one task; `hparams` are those that not every run has."""

    name: str
    task: str
    hparams: Mapping[str, Any]
    trials: int

    def _hparams(self) -> dict[str, Any]:
        own = {"task_names": [self.task], "num_trials": self.trials}
        return {"keep_all_models": False, **self.hparams, **own}

    def results(self) -> Path:
        """The JSON file that run_finetuning.py writes."""
        place = _DATA_DIR.value, _MODEL_NAME.value
        return Path(FinetuningConfig.results_of(*place, self._hparams()))

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Of the finished run: metric -> median, mean, std, max, trials."""
        content = json.loads(self.results().read_text(encoding="utf-8"))
        return content["statistics"][self.task]

    def job(self) -> Commands:
        """The command that makes it; what is finished it does not repeat."""
        place = _DATA_DIR.value, _MODEL_NAME.value
        command = scales.run_of("run_finetuning.py", *place, self._hparams())
        log = self.results().with_name(f"{self.task}.log")
        return Commands(self.name, [command], log)


def given_hparams() -> dict[str, Any]:
    """--hparams; `UserError` for one that each run has of its own."""
    hparams = FinetuningConfig.explicit(read_hparams(_HPARAMS.value), None)
    if ours := [name for name in _OURS if name in hparams]:
        raise UserError(f"--hparams: {ours[0]} is this command's to set; leave it out.")
    return hparams


def originals(hparams: Mapping[str, Any]) -> list[str]:
    """The original's tasks that have data where the hparams say."""
    places = {k: hparams[k] for k in ("data_source", "tfds_data_dir") if k in hparams}
    place = _DATA_DIR.value, _MODEL_NAME.value
    return originals_with_data(FinetuningConfig.from_hparams(*place, places))


def chosen_tasks(there: Sequence[str]) -> list[str]:
    """--tasks, each once; by default all that are there."""
    for task in _TASKS.value or [None] * (not there):
        if task not in there:
            raise UserError(
                f"--tasks: {Path(_DATA_DIR.value) / 'finetuning_data'} has no data of "
                f"{task or 'any'}.\nThere are: {', '.join(there) or 'none'}."
            )
    return list(dict.fromkeys(_TASKS.value or there))


def initial_model(
    hparams: Mapping[str, Any], console: Console
) -> CheckpointInfo | None:
    """The model that runs start from, or None for random weights."""
    place = _DATA_DIR.value, _MODEL_NAME.value
    start = FinetuningConfig.weights_of(*place, dict(hparams))
    return None if start is None else readers.find(start, console.log)


def make(
    runs: Sequence[TaskRun], console: Console
) -> tuple[int, dict[str, dict[str, dict[str, Any]]]]:
    """Makes what is not made: the exit code, and the finished runs' statistics by name.

    One that fails does not keep the others from being made.
    """
    finished: set[str] = set()
    code = run_commands(
        *([run.job() for run in runs], _WORKERS.value, console),
        keep_going=True,
        on_end=lambda job: finished.add(job.name),
    )
    return code, {r.name: r.statistics() for r in runs if r.name in finished}


def write(lines: Sequence[str], path: Path, console: Console) -> None:
    """Writes and logs a page."""
    atomic_write(path, "\n".join(lines) + "\n")
    for line in [*lines, f"Written to {path}"]:
        console.log(line)


def glue(hparams: dict[str, Any], console: Console) -> int:
    """Fine-tunes on GLUE; returns the exit code."""
    there = scales.glue_tasks(originals(hparams), Path(_DATA_DIR.value))
    tasks = chosen_tasks(there)
    rate, note = learning_rate(hparams, shape_of_model(hparams, console))
    runs = [
        TaskRun(task, task, {**hparams, **rate}, _TRIALS.value or 10) for task in tasks
    ]
    code, found = make(runs, console)
    if found:
        path = runs[0].results().with_name("glue.md")
        write([*glue_table(found), "", note], path, console)
    return code


def shape_of_model(hparams: Mapping[str, Any], console: Console) -> Mapping[str, Any]:
    """The hparams of the shape: what the model says, or those of random weights."""
    model = initial_model(hparams, console)
    if model is None:
        return hparams
    usual = os.path.join(_DATA_DIR.value, "vocab.txt")
    return hparams_of(model, hparams, usual, console.log)


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


def glue_table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[str]:
    """Markdown: each task's median, and the mean over the tasks that have one.

    Args:
      found: task -> metric -> statistics of the trials.
    """
    rows, medians = [], {}
    for task, metrics in found.items():
        value = metrics[GLUE[task]]
        median = UNDEFINED
        if value["median"] is not None:
            medians[task] = value["median"]
            median = f"{value['median']:.2f}"
        rows.append([task, GLUE[task], median, str(value["trials"])])
    mean = f"{statistics.fmean(medians.values()):.2f}" if medians else UNDEFINED
    whole = medians.keys() == GLUE.keys()
    names = ", ".join(medians) or "nothing"
    name = "GLUE" if whole else f"mean of {names}; not the paper's"
    lines = markdown(["task", "metric", "median", "trials"], rows)
    return [*lines, f"| **{name}** | | **{mean}** | |"]


def against_random(hparams: dict[str, Any], console: Console) -> int:
    """Fine-tunes the model and random weights; returns the exit code."""
    data_dir, model_name = _DATA_DIR.value, _MODEL_NAME.value
    there = sorted({*originals(hparams), *hparams.get("tasks", [])})
    tasks = chosen_tasks(there)
    model = initial_model(hparams, console)
    if model is None:
        raise UserError(
            "--hparams: init_checkpoint is null, which are random weights.\nLeave it "
            "out, or name a pre-trained model."
        )
    random = untrained(model, hparams, os.path.join(data_dir, "vocab.txt"), console)
    own = Path(run_directory(data_dir, model_name)) / "random_weights"
    runs, trials = {}, _TRIALS.value or 5
    for task in tasks:
        places = {
            "model_dir": str(own / task),
            "preprocessed_data_dir": str(own / f"{task}_features"),
        }
        for which, its in ((PRETRAINED, hparams), (RANDOM, random | places)):
            runs[task, which] = TaskRun(f"{task}, {which}", task, its, trials)
    code, found = make(list(runs.values()), console)
    if found:
        found = {key: found[run.name] for key, run in runs.items() if run.name in found}
        path = runs[tasks[0], PRETRAINED].results().with_name("against_random.md")
        write(random_table(found), path, console)
    return code


def untrained(
    model: CheckpointInfo, hparams: Mapping[str, Any], vocab_file: str, console: Console
) -> dict[str, Any]:
    """The hparams of random weights of a model's shape, drawn as its own once were."""
    drawn = {k: v for k, v in model.known.items() if k == "initializer_range"}
    overrides = drawn | hparams.get("model_hparam_overrides", {})
    given = {**hparams, "model_hparam_overrides": overrides}
    shape = hparams_of(model, given, vocab_file, console.log)
    return given | shape | {"init_checkpoint": None}


def random_table(
    found: Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]],
) -> list[str]:
    """Markdown: mean and standard error of both, their difference.

    Args:
      found: (task, which of the two) -> statistics.
    """
    head = ["task", "metric", PRETRAINED, RANDOM, "difference", "in standard errors"]
    rows = []
    for (task, which), metrics in found.items():
        other = found.get((task, RANDOM))
        if which == RANDOM or other is None:
            continue
        for metric, value in metrics.items():
            if metric == "loss":  # of which less is better
                continue
            rows.append([task, metric, *_compared(value, other[metric])])
    return markdown(head, rows)


def _compared(ours: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """Both means with their errors, their difference, and that in standard errors."""
    sides = ours, others
    errors = [standard_error(side) for side in sides]
    cells = [
        UNDEFINED if side["mean"] is None else with_error(side["mean"], error)
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


_COMMANDS = {"glue": glue, "against_random": against_random}


def main(argv: list[str]) -> int:
    """Fine-tunes, prints and writes the table; returns the exit code."""
    return _COMMANDS[argv[1]](given_hparams(), Console())


if __name__ == "__main__":
    names = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
    cli.run(main, dict.fromkeys(_COMMANDS, " ".join(names)))
