# SPDX-License-Identifier: Apache-2.0
"""What glue.py and against_random.py share: flags, a fine-tuning run for each task."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags
from checkout import ROOT

from electra_tf import cli
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.finetune import initial_weights
from electra_tf.finetune.task_names import originals_with_data
from electra_tf.interop.sources import FoundModel
from electra_tf.processes import Job, run_jobs

DATA_DIR = cli.define_path("data_dir", None, "Vocabulary, data of tasks and models.")
MODEL_NAME = flags.DEFINE_string("model_name", None, "The pre-trained model.")
_HPARAMS = flags.DEFINE_string(
    "hparams", "{}", "JSON text or file: hparams of fine-tuning, for all tasks."
)
TRIALS = flags.DEFINE_integer(
    "trials", 10, "Fine-tuning runs of each task; the paper has 10.", lower_bound=1
)
_TASKS = flags.DEFINE_list("tasks", [], "Default: those that have data.")
_WORKERS = flags.DEFINE_integer("workers", 1, "Tasks at a time.", lower_bound=1)
flags.mark_flags_as_required(["data_dir", "model_name"])

# What these commands set themselves.
_OURS = ("task_names", "num_trials", "model_dir", "results_txt", "do_train", "do_eval")
# In the place of a score that is no number, such as a correlation with a constant.
UNDEFINED = "-"


class TaskRun(NamedTuple):
    """The trials of one task; `hparams` are those that not every run has."""

    name: str
    task: str
    hparams: Mapping[str, Any]

    def _hparams(self) -> dict[str, Any]:
        own = {"task_names": [self.task], "num_trials": TRIALS.value}
        return {"keep_all_models": False, **self.hparams, **own}

    def results(self) -> Path:
        """The JSON file that run_finetuning.py writes."""
        place = DATA_DIR.value, MODEL_NAME.value
        return Path(FinetuningConfig.results_of(*place, self._hparams()))

    def statistics(self) -> dict[str, dict[str, Any]]:
        """Of the finished run: metric -> median, mean, std, max, trials."""
        content = json.loads(self.results().read_text(encoding="utf-8"))
        return content["statistics"][self.task]

    def job(self) -> Job:
        """The command that makes it; what is finished it does not repeat."""
        command = [
            *(sys.executable, str(ROOT / "run_finetuning.py")),
            *("--data-dir", DATA_DIR.value, "--model-name", MODEL_NAME.value),
            *("--hparams", json.dumps(self._hparams())),
        ]
        log = self.results().with_name(f"{self.task}.log")
        return Job(self.name, [command], log)


def given_hparams() -> dict[str, Any]:
    """--hparams; `UserError` for one that each run has of its own."""
    hparams = FinetuningConfig.explicit(read_hparams(_HPARAMS.value), None)
    if ours := [name for name in _OURS if name in hparams]:
        raise UserError(f"--hparams: {ours[0]} is this command's to set; leave it out.")
    return hparams


def originals(hparams: Mapping[str, Any]) -> list[str]:
    """The original's tasks that have data where the hparams say."""
    places = {k: hparams[k] for k in ("data_source", "tfds_data_dir") if k in hparams}
    place = DATA_DIR.value, MODEL_NAME.value
    return originals_with_data(FinetuningConfig.from_hparams(*place, places))


def chosen_tasks(there: Sequence[str], origin: str) -> list[str]:
    """--tasks, each once; by default all that are there.

    Raises `UserError` for one that is not, saying where it would have to come from.
    """
    for task in _TASKS.value:
        if task not in there:
            raise UserError(
                f"--tasks: {task!r} has no data in "
                f"{Path(DATA_DIR.value) / 'finetuning_data'} (or where data_source "
                f"says), or is not of {origin}.\n"
                f"There are: {', '.join(there)}."
            )
    return list(dict.fromkeys(_TASKS.value or there))


def initial_model(hparams: Mapping[str, Any], console: Console) -> FoundModel | None:
    """The model that runs start from, or None for random weights."""
    place = DATA_DIR.value, MODEL_NAME.value
    start = FinetuningConfig.weights_of(*place, dict(hparams))
    return None if start is None else initial_weights.find(start, console.log)


def make(runs: Sequence[TaskRun], console: Console) -> tuple[int, set[str]]:
    """Makes what is not made: the exit code, and the names of those that are finished.

    One that fails does not keep the others from being made.
    """
    finished: set[str] = set()
    code = run_jobs(
        *([run.job() for run in runs], _WORKERS.value, console),
        keep_going=True,
        on_end=lambda job: finished.add(job.name),
    )
    return code, finished
