# SPDX-License-Identifier: Apache-2.0
"""What model lies at a path, and what it predicts; written to a file that survives."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from electra_tf.console import Console, duration
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune import task_names
from electra_tf.finetune.inputs import Asked
from electra_tf.finetune.trial_folder import CONFIG, hparams_in
from electra_tf.inference import (
    corpus_run,
    finetuned_model,
    huggingface_heads,
    pretrained_model,
)
from electra_tf.inference.predictor import Predictor, TaskPredictor
from electra_tf.inference.saved_model_predictor import SavedModelPredictor
from electra_tf.paths import local_of
from electra_tf.storage.files import (
    PARTIAL,
    atomic_write,
    cannot_write,
    is_stream,
    keep_others_out,
    line_writer,
)
from electra_tf.storage.manifest import MANIFEST, read_json, saved_model_in
from electra_tf.storage.remote_run import bring_model
from electra_tf.text.json_lines import json_line

# Without a terminal, the progress is said at least this often.
_QUIET_SECONDS = 30.0


def load(
    path: str | os.PathLike, task: str | None = None, data_dir: str | None = None
) -> Predictor | pretrained_model.PretrainedModel:
    """Loads a model: a fine-tuned one, which predicts, or a pre-trained one.

    Args:
      path: the directory of a fine-tuned trial, whose newest (or best, where that was
        kept) weights are taken; an exported SavedModel of a task; a directory of
        Hugging Face with the head of one; or what
        `inference.pretrained_model.load` takes.
      task: of a trial with several; of an export the one that it is of.
      data_dir: where the vocabulary of a trial is that lies elsewhere.

    Raises `UserError` if there is no model, or if its files do not fit each other.
    """
    found = _predictor(Path(local_of(os.fspath(path))), task, data_dir)
    if not found and task is not None:
        raise UserError(f"{path} is no fine-tuned model: it has no task {task!r}.")
    return found or pretrained_model.load(path)


def load_predictor(
    path: str, task: str | None = None, data_dir: str | None = None
) -> Predictor:
    """The fine-tuned model at a path; see `load`.

    Raises `UserError` for anything else, naming the fine-tuned models of a run.
    """
    found = _predictor(Path(path), task, data_dir)
    if found:
        return found
    trials = Path(path).glob(f"finetuning_models/*/{CONFIG}")
    names = sorted({str(trial.parent) for trial in trials} | set(_exported_below(path)))
    advice = "Give the directory of a trial, finetuning_models/<tasks>_model_1."
    if names:
        advice = f"Its fine-tuned models: {', '.join(names)}."
    raise UserError(
        f"{path} is no fine-tuned model: no trial of run_finetuning.py, no SavedModel "
        f"of a task, no model of Hugging Face with the head of one.\n{advice}"
    )


def _exported_below(path: str) -> Iterator[str]:
    """The tasks in the --output-dir of an export, which has a folder for each part."""
    for depth in ("*", "*/*"):  # A SavedModel has a version between.
        for manifest in Path(path).glob(f"{depth}/{MANIFEST}"):
            if "task" in read_json(manifest):
                yield str(Path(path, manifest.relative_to(path).parts[0]))


def _predictor(
    folder: Path, name: str | None, data_dir: str | None
) -> Predictor | None:
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
        return SavedModelPredictor(saved)
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
    found = finetuned_model.read(folder, name, data_dir=data_dir)
    tasks = task_names.make_tasks(found.config, found.vocab, folder, reads_data=False)
    number = found.config.task_names.index(name) if name else 0
    return TaskPredictor(found, tasks[number], number)


def write(
    predictor: Predictor,
    asked: Iterable[Asked],
    output: str | None,
    resume: bool,
    console: Console,
) -> None:
    """Writes a prediction for each input, in order, as JSON lines.

    They gather in `<output>.partial` and become the output when all are there.

    Args:
      output: None: standard output; a pipe is written to as that is.
      resume: go on behind what an interrupted call has written.

    Raises `UserError`: 2 where that was of another input or model, 65 where it is
    damaged, 73 when it cannot be written, 75 while another process writes it.
    """
    progress = _Progress(console)
    if output is None or is_stream(output):
        with line_writer(output) as write_line:
            for row in progress.of(predictor.rows(asked)):
                write_line(json_line(row))
        progress.close()
        return
    output, asked = os.path.realpath(output), iter(asked)
    facts = facts_of(predictor)
    if resume and os.path.isfile(output) and not os.path.exists(output + PARTIAL):
        _check_whole(output, facts, asked)
        console.log(f"{output} is whole; there is nothing to do.")
        return
    try:
        with _Unfinished(output, facts, resume, console) as file:
            if skipped := file.skip(asked):
                console.log(f"Going on behind {skipped:,} predictions.")
            for row in progress.of(predictor.rows(asked)):
                file.write(row)
    except OSError as error:
        raise cannot_write(output, error) from error
    progress.close()
    console.log(f"Written to {output}: {file.count:,} predictions.")


def facts_of(predictor: Predictor) -> dict[str, Any]:
    """What predictions are of: the model's path and hash, the task and its settings."""
    return corpus_run.model_facts(
        predictor.origin, task=predictor.name, **predictor.facts
    )


def _facts_path(path: str) -> str:
    """Beside predictions, whose they are."""
    return f"{path}.model.json"


def _check_model(path: str, facts: dict[str, Any]) -> None:
    """Refuses to take predictions of another model, or of an unknown one, for ours."""
    said = _facts_path(path)
    if not os.path.exists(said):
        raise UserError(
            f"{path} is there without {said}, which says what model it is of.\n"
            "Remove it to begin anew, or name another --output."
        )
    known = read_json(Path(said))
    # A model may be moved.
    other = [k for k in facts if k != "path" and known.get(k) != facts[k]]
    if other:
        was, now = (
            f"{of.get('path')} ({other[0]} {of.get(other[0])!s:.40})"
            for of in (known, facts)
        )
        raise UserError(
            f"{path} was made with the model {was}, not with {now}.\n"
            "Remove it to begin anew, or name another --output."
        )


def _same_inputs(
    file: Iterable[bytes], path: str, asked: Iterator[Asked]
) -> Iterator[int]:
    """Yields the bytes of each prediction that is whole, which is of what was asked."""
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        one = next(asked, None)
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
            same = one and one.given.items() <= row.items()
        except (ValueError, AttributeError):
            raise UserError(
                f"{where}: no prediction.\nRemove the file to begin anew.",
                EXIT_DAMAGED,
            ) from None
        if not same:
            of = one.where if one else "the input, which ends before"
            raise UserError(
                f"{where} is of another input than {of}.\nGive the input that it "
                "was made from, or remove it to begin anew."
            )
        yield len(line)


def _check_whole(output: str, facts: dict[str, Any], asked: Iterator[Asked]) -> None:
    """Refuses a finished file that is not what would be written now."""
    _check_model(output, facts)
    with open(output, "rb") as file:
        count = sum(1 for _ in _same_inputs(file, output, asked))
    if more := next(asked, None):
        raise UserError(
            f"{output} is whole with {count:,} predictions, and the input has more: "
            f"{more.where}.\nGive the input that it was made from, or remove it to "
            "begin anew."
        )


class _Unfinished:
    """The predictions so far, and beside them whose they are.

    No other process writes them until the block ends.
    """

    def __init__(
        self, output: str, facts: dict[str, Any], resume: bool, console: Console
    ):
        self.count, self._facts, self._console = 0, facts, console
        self._output, self._path = output, output + PARTIAL
        os.makedirs(os.path.dirname(output), exist_ok=True)
        with contextlib.ExitStack() as on_error:
            self._file = on_error.enter_context(open(self._path, "a+b"))
            keep_others_out(self._file, self._path)
            if os.path.getsize(self._path):
                self._check_begun(resume)
            else:
                on_error.callback(os.unlink, self._path)
            self._say_model(self._path)
            on_error.pop_all()

    def _check_begun(self, resume: bool) -> None:
        if not resume:
            raise UserError(
                f"{self._path} holds the predictions of a call that was interrupted."
                "\n--resume goes on behind them; remove it to begin anew."
            )
        _check_model(self._path, self._facts)

    def _say_model(self, path: str) -> None:
        atomic_write(_facts_path(path), json.dumps(self._facts, indent=1) + "\n")

    def skip(self, asked: Iterator[Asked]) -> int:
        """Reads over what is predicted already, and cuts a line that is not whole."""
        whole = self._file.seek(0)
        for size in _same_inputs(self._file, self._path, asked):
            self.count += 1
            whole += size
        self._file.seek(whole)
        self._file.truncate()
        return self.count

    def write(self, row: dict[str, Any]) -> None:
        """Adds a prediction."""
        self._file.write(f"{json_line(row)}\n".encode())
        self.count += 1

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())
            if error is None:
                self._say_model(self._output)
                os.replace(self._path, self._output)
            elif self.count:
                kept = f"{self.count:,} predictions are kept in {self._path}"
                self._console.log(f"{kept}; --resume goes on behind them.")
                return
            elif os.path.getsize(self._path):
                return
            else:
                os.unlink(self._path)
            os.unlink(_facts_path(self._path))


class _Progress:
    """A line with the number of texts and how many there are a second."""

    def __init__(self, console: Console):
        self._console, self._count = console, 0
        self._begin = self._shown = time.monotonic()

    def of(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The same rows, counted."""
        for row in rows:
            yield row
            self._count += 1
            now = time.monotonic()
            if self._console.is_terminal and now > self._shown + 0.2:
                self._console.update(self._line(now))
                self._shown = now
            elif now > self._shown + _QUIET_SECONDS:
                self._console.log(self._line(now))
                self._shown = now

    def close(self) -> None:
        """Says how it was."""
        self._console.log(self._line(time.monotonic()))

    def _line(self, now: float) -> str:
        seconds = now - self._begin
        speed = self._count / max(seconds, 1e-9)
        texts = f"{self._count:,} text{'s'[: self._count != 1]}"
        return f"{texts}, {speed:,.0f} texts/s, {duration(seconds)}"
