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
from typing import Any

import scales
from absl import flags
from jobs import Commands, run_commands
from report import markdown, mean_with_error, standard_error
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

# For an undefined score, such as a correlation with a constant.
UNDEFINED = "-"
PRETRAINED, RANDOM = "pre-trained", "random weights"


def originals() -> list[str]:
    """The original's tasks that have data."""
    place = _DATA_DIR.value, _MODEL_NAME.value
    return originals_with_data(FinetuningConfig.from_hparams(*place, {}))


def chosen_tasks(there: Sequence[str]) -> list[str]:
    """--tasks, each once; by default all that are there."""
    tasks = list(dict.fromkeys(_TASKS.value or there))
    if unknown := sorted({*tasks} - {*there}) or ["any"] * (not tasks):
        raise UserError(
            f"--tasks: {Path(_DATA_DIR.value) / 'finetuning_data'} has no data of "
            f"{unknown[0]}.\nThere are: {', '.join(there) or 'none'}."
        )
    return tasks


def initial_model(
    hparams: Mapping[str, Any], console: Console
) -> CheckpointInfo | None:
    """The model that runs start from, or None for random weights."""
    place = _DATA_DIR.value, _MODEL_NAME.value
    start = FinetuningConfig.weights_of(*place, dict(hparams))
    return None if start is None else readers.find(start, console.log)


def make(
    runs: Mapping[tuple[str, str], Mapping[str, Any]], trials: int, console: Console
) -> tuple[int, dict[tuple[str, str], dict[str, list[float | None]]], Path]:
    """Makes what is not made.

    One that fails does not keep the others from being made.

    Args:
      runs: (task, which weights) -> hparams.

    Returns: the exit code; of finished runs metric -> scores of the trials; the folder
      of the first run's results.
    """
    jobs, keys, results = [], {}, {}
    place = _DATA_DIR.value, _MODEL_NAME.value
    for (task, weights), hparams in runs.items():
        own = {"task_names": [task], "num_trials": trials}
        own |= {"do_train": True, "do_eval": True}
        whole = {"keep_all_models": False, **hparams, **own}
        name = f"{task}, {weights}"
        keys[name] = task, weights
        results[name] = Path(FinetuningConfig.results_of(*place, whole))
        command = scales.run_of("run_finetuning.py", *place, whole)
        log = results[name].with_name(f"{task}.log")
        jobs.append(Commands(name, [command], log))
    found = {}

    def finished(job: Commands) -> None:
        content = json.loads(results[job.name].read_text(encoding="utf-8"))
        task, weights = keys[job.name]
        rows = [trial["scores"][task] for trial in content["trials"]]
        scores = {metric: [row[metric] for row in rows] for metric in rows[0]}
        found[task, weights] = scores

    code = run_commands(
        *(jobs, _WORKERS.value, console), keep_going=True, on_end=finished
    )
    in_order = {key: found[key] for key in runs if key in found}
    return code, in_order, next(iter(results.values())).parent


def write(lines: Sequence[str], path: Path, console: Console) -> None:
    """Writes and logs a page."""
    atomic_write(path, "\n".join(lines) + "\n")
    for line in [*lines, f"Written to {path}"]:
        console.log(line)


def glue(hparams: dict[str, Any], console: Console) -> int:
    """Fine-tunes on GLUE; returns the exit code."""
    tasks = chosen_tasks(scales.glue_tasks(originals(), Path(_DATA_DIR.value)))
    model, shape = initial_model(hparams, console), hparams
    if model is not None:
        usual = os.path.join(_DATA_DIR.value, "vocab.txt")
        shape = hparams_of(model, hparams, usual, console.log)
    note = "Learning rate: run_finetuning.py's; the paper has no model of this shape."
    if rate := hparams.get("learning_rate") or scales.paper_rate(shape):
        note, hparams = f"Learning rate {rate:g}.", hparams | {"learning_rate": rate}
    runs = dict.fromkeys(((task, PRETRAINED) for task in tasks), hparams)
    code, found, folder = make(runs, _TRIALS.value or 10, console)
    if found:
        write([*glue_table(found), "", note], folder / "glue.md", console)
    return code


def defined(scores: Sequence[float | None]) -> list[float]:
    """Scores but for undefined ones."""
    return [score for score in scores if score is not None]


def glue_table(
    found: Mapping[tuple[str, str], Mapping[str, Sequence[float | None]]],
) -> list[str]:
    """Markdown: each task's median, and the mean over the tasks that have one."""
    rows, medians = [], {}
    for (task, _), metrics in found.items():
        metric, median = GLUE[task], UNDEFINED
        if scores := defined(metrics[metric]):
            medians[task] = statistics.median(scores)
            median = f"{medians[task]:.2f}"
        rows.append([task, metric, median, str(len(scores))])
    mean = f"{statistics.fmean(medians.values()):.2f}" if medians else UNDEFINED
    name = f"mean of {', '.join(medians) or 'nothing'}; not the paper's"
    if medians.keys() == GLUE.keys():
        name = "GLUE"
    lines = markdown(["task", "metric", "median", "trials"], rows)
    return [*lines, f"| **{name}** | | **{mean}** | |"]


def against_random(hparams: dict[str, Any], console: Console) -> int:
    """Fine-tunes the model and random weights; returns the exit code."""
    data_dir, model_name = _DATA_DIR.value, _MODEL_NAME.value
    tasks = chosen_tasks(sorted({*originals(), *hparams.get("tasks", [])}))
    model = initial_model(hparams, console)
    if model is None:
        raise UserError(
            "--hparams: init_checkpoint is null, which are random weights.\nLeave it "
            "out, or name a pre-trained model."
        )
    random = untrained(model, hparams, os.path.join(data_dir, "vocab.txt"), console)
    own = os.path.join(run_directory(data_dir, model_name), "random_weights")
    runs = {}
    for task in tasks:
        features = os.path.join(own, f"{task}_features")
        places = {"model_dir": f"{own}/{task}", "preprocessed_data_dir": features}
        runs |= {(task, PRETRAINED): hparams, (task, RANDOM): random | places}
    code, found, folder = make(runs, _TRIALS.value or 5, console)
    if found:
        write(random_table(found), folder / "against_random.md", console)
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
    found: Mapping[tuple[str, str], Mapping[str, Sequence[float | None]]],
) -> list[str]:
    """Markdown: mean and standard error of both, their difference."""
    head = ["task", "metric", PRETRAINED, RANDOM, "difference", "in standard errors"]
    rows = []
    for task in [task for task, weights in found if weights == RANDOM]:
        for metric, scores in found.get((task, PRETRAINED), {}).items():
            if metric == "loss":  # of which less is better
                continue
            sides = [defined(scores), defined(found[task, RANDOM][metric])]
            cells = [mean_with_error(s) or UNDEFINED for s in sides]
            cells += [UNDEFINED, ""]
            if all(sides):
                ours, others = map(statistics.fmean, sides)
                errors = [standard_error(s) for s in sides]
                both = math.hypot(*errors) if None not in errors else 0.0
                distance = f"{(ours - others) / both:+.1f}" if both else ""
                cells[2:] = [f"{ours - others:+.2f}", distance]
            rows.append([task, metric, *cells])
    return markdown(head, rows)


_COMMANDS = {"glue": glue, "against_random": against_random}


def main(argv: list[str]) -> int:
    """Fine-tunes, prints and writes the table; returns the exit code."""
    hparams = FinetuningConfig.explicit(read_hparams(_HPARAMS.value), None)
    return _COMMANDS[argv[1]](hparams, Console())


if __name__ == "__main__":
    names = [flag.name for flag in flags.FLAGS.get_key_flags_for_module(sys.argv[0])]
    cli.run(main, dict.fromkeys(_COMMANDS, " ".join(names)))
