# SPDX-License-Identifier: Apache-2.0
"""What a metric is, and what a run writes of its metrics.

A metric is defined once; training, evaluation, the report, model cards and
docs/metrics.md all read the definition.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from electra_tf.console import Console, Progress
from electra_tf.errors import JSON_ERRORS, UserError
from electra_tf.paths import json_beside
from electra_tf.storage.files import atomic_write, cannot_write

# What evaluations and samples while training brought: files beside metrics.jsonl.
EVALUATIONS = "evaluations.jsonl"
SAMPLES = "samples.jsonl"

Sums = Mapping[str, np.ndarray]


class Ratio(NamedTuple):
    """One sum over another, 0 where that is 0; or a sum by itself."""

    numerator: str
    denominator: str | None = None

    def __call__(self, sums: Sums) -> np.ndarray:
        values = np.asarray(sums[self.numerator], np.float64)
        if self.denominator is None:
            return values
        count = np.asarray(sums[self.denominator], np.float64)
        return np.where(count, values / np.where(count, count, 1.0), 0.0)


class Curve(NamedTuple):
    """How a metric is drawn: the panel's title, the line's label, colour and style."""

    panel: str
    label: str
    colour: str = "#5f6b7a"
    style: str = "-"


class Metric(NamedTuple):
    """The definition of a metric.

    Attributes:
      name: its key in metrics.jsonl and in results.
      label: a short description, for docs/metrics.md, reports and model cards.
      healthy: what to expect of a run that learns, for docs/metrics.md.
      evaluation: from the sums over an evaluation; None if it is of training only.
      training: from the sums of single training steps, arrays; None likewise.
      short: what the progress line calls it; "" if it is not shown there.
      tag: in TensorBoard; "": training/<name>.
      curve: how it is drawn; None if it is not.
    """

    name: str
    label: str
    healthy: str = ""
    evaluation: Callable[[Sums], float] | None = None
    training: Callable[[Sums], np.ndarray] | None = None
    short: str = ""
    tag: str = ""
    curve: Curve | None = None


# What every training step reports, whatever is trained (`step.TrainingStep`).
STEP_METRICS = (
    Metric(
        "learning_rate", "learning rate", curve=Curve("Learning rate", "learning rate")
    ),
    Metric("global_norm", "norm of all gradients before clipping"),
    Metric("loss_scale", "loss scale of `mixed_float16`"),
    Metric("finite", "0 for a step that was left out: not finite", healthy="1"),
)


def step_metrics(
    rows: np.ndarray,
    columns: Sequence[str],
    training_metrics: Callable[[Sums], Mapping[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    """The metrics of training steps from what the steps computed.

    Args:
      rows: float32 [steps, columns or more].
      columns: loss, the sums of `training_metrics`, learning_rate, global_norm, and
        loss_scale where there is one (`step.TrainingStep.columns`).

    Returns: metric -> float64 [steps]; "finite" is 0.0 where the step was left out.
    """
    values = dict(zip(columns, rows.astype(np.float64).T, strict=False))
    own = {m.name: values.pop(m.name) for m in STEP_METRICS if m.name in values}
    metrics = {"loss": values.pop("loss"), **training_metrics(values), **own}
    finite = np.isfinite(own["global_norm"]) & np.isfinite(metrics["loss"])
    return metrics | {"finite": finite.astype(np.float64)}


def overflowed(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of steps that are not finite, those whose gradients a lower loss scale makes so.

    No scale helps a loss that is not finite, nor gradients that are not at scale 1.

    Args:
      metrics: name -> values of steps; of float16 `loss_scale` is among them.
    """
    scale = metrics.get("loss_scale", np.zeros_like(metrics["loss"]))
    return np.isfinite(metrics["loss"]) & (scale > 1.0)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Makes a `UserError` (73) of a failed write."""
    import tensorflow as tf

    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise cannot_write(path, error) from error


class MetricsFile:
    """metrics.jsonl: one JSON object per step, each step once.

    Args:
      path: the file; made when missing.
      step: the steps that the run has behind it; later lines are cut off,
        so that a restart continues from its checkpoint.

    Raises `UserError` (73) when it cannot be written.
    """

    def __init__(self, path: str | os.PathLike, step: int):
        self.path = Path(path)
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b")
            _cut_after(self._file, step)

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Appends rows; each has a "step"."""
        text = "".join(json.dumps(finite(row)) + "\n" for row in rows)
        with _writing(self.path):
            self._file.write(text.encode())
            self._file.flush()

    def has(self, step: int) -> bool:
        """Whether there is a row of that step."""
        return any(row["step"] == step for row in read_metrics(self.path))

    def sync(self) -> None:
        """Makes what was written durable."""
        with _writing(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        # What a full disk kept from being written was reported then, and is not
        # promised; the file is closed all the same.
        with contextlib.suppress(UserError), _writing(self.path):
            self._file.close()


def finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics for JSON: null where they are not finite."""
    wrong = {k for k, v in row.items() if isinstance(v, float) and not math.isfinite(v)}
    return {k: None if k in wrong else v for k, v in row.items()}


def _cut_after(file, step: int) -> None:
    """Cuts a metrics file after the line of `step`, looking from its end."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while end:
            start = content.rfind(b"\n", 0, end - 1) + 1
            line = content[start:end]
            try:
                if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                    break
            except JSON_ERRORS:
                pass  # A torn or damaged line goes.
            end = start
    file.truncate(end)
    file.seek(end)


def read_metrics(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file; other lines are left out."""
    with open(path, "rb") as f:
        for line in f:
            try:
                row = json.loads(line)
            except JSON_ERRORS:
                continue  # torn or damaged
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row


class TensorBoardEvents:
    """An event file that TensorBoard reads.

    Written as the TFRecord of events that it is, without `tf.summary`: that would need
    the tensorboard package and 0.1 ms per value. A restart announces from which step on
    earlier files no longer hold, so curves show each step once.

    Args:
      directory: of the event files; each start of a run adds one.
      step: the steps that the run has behind it.
      tags: metric -> its tag; for others it is training/<name>.
    """

    def __init__(
        self, directory: str | os.PathLike, step: int, tags: Mapping[str, str]
    ):
        import tensorflow as tf

        self._tags = tags
        self._tf = tf.compat.v1
        self._directory = Path(directory)
        name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        with _writing(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._writer = tf.io.TFRecordWriter(str(self._directory / name))
            self._write(file_version="brain.Event:2")
            start = self._tf.SessionLog(status=self._tf.SessionLog.START)
            self._write(step=step + 1, session_log=start)
            self._writer.flush()

    def _write(self, **fields) -> None:
        event = self._tf.Event(wall_time=time.time(), **fields)
        with _writing(self._directory):
            self._writer.write(event.SerializeToString())

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a step."""
        values = [
            self._tf.Summary.Value(
                tag=self._tags.get(name) or f"training/{name}", simple_value=value
            )
            for name, value in metrics.items()
        ]
        self._write(step=step, summary=self._tf.Summary(value=values))

    def flush(self) -> None:
        """Lets TensorBoard see what was written."""
        with _writing(self._directory):
            self._writer.flush()

    def close(self) -> None:
        with contextlib.suppress(UserError), _writing(self._directory):
            self._writer.close()


class Journal:
    """Rows in a file of a run, and events of TensorBoard.

    Args:
      directory: of the run.
      name: of the file.
      events: the name of TensorBoard's run; "" for the curves of the training.
      step: the steps that the run has behind it; what is later is cut off.
      tags: as TensorBoardEvents takes them.
      is_chief: whether to write at all.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        name: str,
        events: str,
        *,
        step: int,
        tags: Mapping[str, str],
        is_chief: bool,
    ):
        self.is_open = is_chief
        if is_chief:
            self._rows = MetricsFile(Path(directory, name), step)
            folder = Path(directory, "tensorboard", events)
            self._events = TensorBoardEvents(folder, step, tags)

    def has(self, step: int) -> bool:
        """Whether there is a row of that step, as far as this worker knows."""
        return self.is_open and self._rows.has(step)

    def add(
        self, rows: list[dict[str, Any]], show: Callable[[TensorBoardEvents], None]
    ) -> None:
        """Adds rows, which have a "step", and what `show` writes for TensorBoard."""
        if self.is_open:
            self._rows.write(rows)
            show(self._events)
            self._events.flush()

    def sync(self) -> None:
        """Makes the rows durable."""
        if self.is_open:
            self._rows.sync()

    def close(self) -> None:
        if self.is_open:
            self._rows.close()
            self._events.close()


def cut_after(directory: str | os.PathLike, step: int) -> None:
    """Cuts what evaluations and samples of a run brought later than `step`.

    Also if the run makes no others: those weights were discarded.
    """
    for name in (EVALUATIONS, SAMPLES):
        path = Path(directory) / name
        if path.is_file():
            MetricsFile(path, step).close()


class Report:
    """Writes what each step brought to metrics.jsonl, TensorBoard and the console."""

    def __init__(
        self,
        directory: str | Path,
        console: Console,
        *,
        start: int,
        total: int,
        batch_size: int,
        every: int,
        metrics: Sequence[Metric],
        is_chief: bool = True,
    ):
        shown = {metric.name: metric.short for metric in metrics if metric.short}
        self._progress = Progress(console, total, start, batch_size, every, shown)
        self._every, self._is_terminal = every, console.is_terminal
        tags = {metric.name: metric.tag for metric in metrics}
        self._journal = Journal(
            directory, "metrics.jsonl", "", step=start, tags=tags, is_chief=is_chief
        )
        # Makes the metrics durable; before a checkpoint, which promises them.
        self.sync = self._journal.sync

    def add(self, first_step: int, metrics: Mapping[str, Any]) -> None:
        """Adds the steps from `first_step` >= 1 on; arrays with a value per step."""
        # Seven digits say all that a float32 holds.
        values = [
            {name: float(f"{column[i]:.7g}") for name, column in metrics.items()}
            for i in range(len(metrics["loss"]))
        ]
        numbered = list(enumerate(values, first_step))
        now = round(time.time(), 3)
        rows = [{"step": step, **row, "time": now} for step, row in numbered]

        def show(events: TensorBoardEvents) -> None:
            for step, row in numbered:
                events.write(step, row)

        self._journal.add(rows, show)
        step, row = numbered[-1]
        if not self._is_terminal:  # A file gets lines of whole multiples.
            whole = (pair for pair in reversed(numbered) if pair[0] % self._every == 0)
            step, row = next(whole, (step, row))
        self._progress.update(step, row)

    def close(self) -> None:
        self._progress.close()
        self._journal.close()


def write_results(
    txt_path: str | os.PathLike,
    metrics: Mapping[str, float],
    step: int | None,
    **provenance: Any,
) -> None:
    """Writes evaluation results as text (`name = value`, sorted) and beside it as JSON.

    Args:
      step: of the model; None if unknown.

    Raises `UserError` (73) when they cannot be written.
    """
    known = {} if step is None else {"global_step": step}
    values = {**metrics, **known}
    text = "".join(f"{name} = {values[name]}\n" for name in sorted(values))
    atomic_write(txt_path, text)
    content = {**known, "metrics": finite(metrics), **provenance}
    atomic_write(json_beside(txt_path), json.dumps(content, indent=2) + "\n")
