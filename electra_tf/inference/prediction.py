# SPDX-License-Identifier: Apache-2.0
"""What model lies at a path, and what it predicts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from electra_tf.console import Console, duration
from electra_tf.errors import UserError
from electra_tf.finetune import registry
from electra_tf.finetune.inputs import Input
from electra_tf.finetune.results import CONFIG, hparams_in
from electra_tf.inference import huggingface_heads, pretrained_model, saved_model
from electra_tf.inference.model import Model
from electra_tf.inference.predictor import Predictor, TaskPredictor, read_trial
from electra_tf.paths import local_of
from electra_tf.storage.files import line_writer
from electra_tf.storage.manifest import MANIFEST, read_json, saved_model_in
from electra_tf.storage.remote_run import bring_model
from electra_tf.text.records import json_line


def load(
    path: str | os.PathLike, task: str | None = None, data_dir: str | None = None
) -> Any:
    """Loads a model: a fine-tuned one, which predicts, or a pre-trained one.

    Args:
      path: the directory of a fine-tuned trial, whose newest (or best, where that was
        kept) weights are taken; an exported SavedModel of a task or of a part of a
        pre-trained model; a directory of Hugging Face with the head of a task; or what
        `inference.pretrained_model.load` takes.
      task: of a trial with several; of an export the one that it is of.
      data_dir: where the vocabulary of a trial is that lies elsewhere.

    Returns a `Model`.

    Raises `UserError` if the path holds none, or if its files do not fit each other.
    """
    found = _find(Path(local_of(os.fspath(path))), task, data_dir)
    if task is not None and not isinstance(found, Predictor):
        raise UserError(f"{path} is not fine-tuned: it has no task {task!r}.")
    return found or pretrained_model.load(path)


def load_predictor(
    path: str, task: str | None = None, data_dir: str | None = None
) -> Predictor:
    """The fine-tuned model at a path; see `load`.

    Raises `UserError` for anything else, naming the fine-tuned models of a run.
    """
    found = _find(Path(path), task, data_dir)
    if isinstance(found, Predictor):
        return found
    trials = Path(path).glob(f"finetuning_models/*/{CONFIG}")
    names = sorted({str(trial.parent) for trial in trials} | set(_exported_below(path)))
    advice = "Give the directory of a trial, finetuning_models/<tasks>_model_1."
    if names:
        advice = f"Its fine-tuned models: {', '.join(names)}."
    raise UserError(
        f"{path} is not a fine-tuned model: a trial of run_finetuning.py, a SavedModel "
        f"of a task, or a model of Hugging Face with the head of one.\n{advice}"
    )


def _exported_below(path: str) -> Iterator[str]:
    """The tasks in the --output-dir of an export, which has a folder for each part."""
    for depth in ("*", "*/*"):  # A SavedModel has a version between.
        for manifest in Path(path).glob(f"{depth}/{MANIFEST}"):
            if "task" in read_json(manifest):
                yield str(Path(path, manifest.relative_to(path).parts[0]))


def _find(folder: Path, name: str | None, data_dir: str | None) -> Model | None:
    """The fine-tuned model or the SavedModel in a folder, if it holds one."""
    bring_model(folder)
    if names := hparams_in(folder).get("task_names"):
        if name is None and len(names) > 1:
            raise UserError(
                f"{folder} has several tasks: {', '.join(names)}.\n"
                "Name one: --task, or task= of electra_tf.load."
            )
        return _trial(folder, name, data_dir)
    if saved := saved_model_in(folder):
        _check_task(saved, "task", name)
        return saved_model.read(saved)
    if found := huggingface_heads.read(folder):
        _check_task(folder, "what", name)
    return found


def _check_task(folder: Path, key: str, name: str | None) -> None:
    """Refuses an export that is of another task than the one that is meant.

    Args:
      key: of the manifest, which says its task.
    """
    path = folder / MANIFEST
    said = read_json(path).get(key) if path.is_file() else None
    if name not in (None, said):
        theirs = f"is of the task {said!r}" if said else "does not say what task it has"
        raise UserError(
            f"--task {name}: {folder} {theirs}.\nLeave --task out, or give the model "
            "of that task."
        )


def _trial(folder: Path, name: str | None, data_dir: str | None) -> TaskPredictor:
    found = read_trial(folder, name, data_dir=data_dir)
    tasks = registry.make_tasks(found.config, found.vocab, folder, reads_data=False)
    number = found.config.task_names.index(name) if name else 0
    return TaskPredictor(found, tasks[number], number)


def write(
    predictor: Predictor, inputs: Iterable[Input], output: str | None, console: Console
) -> None:
    """Writes a prediction for each input, in order, as JSON lines.

    Args:
      output: a file, which appears when it is complete; None: standard output.

    Raises `UserError`: 73 when it cannot be written, 75 while another process does.
    """
    begin, line = time.monotonic(), "0 texts"
    with line_writer(output) as write_line:
        for count, row in enumerate(predictor.rows(inputs), 1):
            write_line(json_line(row))
            seconds = time.monotonic() - begin
            texts = f"{count:,} text{'s'[: count != 1]}"
            line = f"{texts}, {count / seconds:,.0f} texts/s, {duration(seconds)}"
            console.tick(line)
    console.log(line)
