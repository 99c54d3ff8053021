# SPDX-License-Identifier: Apache-2.0
"""What a run tells: log and progress lines, metrics.jsonl, TensorBoard, results.

metrics.jsonl has one JSON object per step, each step once: at a restart the file is cut
back to the checkpoint that the run continues from. Values that are not finite are null.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from electra_tf.run_directory import atomic_write, cannot_write

# Metrics on the progress line: name -> how it is called there.
_SHOWN = {
    "loss": "loss",
    "masked_lm_loss": "gen",
    "disc_loss": "disc",
    "disc_accuracy": "acc",
}

# Without a terminal a line appears at least this often, however slow the steps are.
_QUIET_SECONDS = 60.0


def duration(seconds: float) -> str:
    """Seconds as [[days, ]hours:]minutes:seconds."""
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        unit = "day" if days == 1 else "days"
        return f"{days} {unit}, {hours}:{minutes:02d}:{seconds:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{seconds:02d}"
    return f"{minutes}:{seconds:02d}"


class Console:
    """Log lines and, on a terminal, one line that is rewritten in place.

    Args:
      stream: where to write; stdout by default.
      silent: write nothing (the workers that are not the chief).
    """

    def __init__(self, stream: TextIO | None = None, silent: bool = False):
        self._stream = stream or sys.stdout
        self._silent = silent
        self._width = 0  # of the line that is being rewritten
        self.is_terminal = self._stream.isatty()

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return os.get_terminal_size(self._stream.fileno()).columns or 80

    def log(self, message: str = "") -> None:
        """Writes a line that stays."""
        if not self._silent:
            self._stream.write(f"{self._erased()}{message}\n")
            self._stream.flush()

    def heading(self, text: str) -> None:
        """Writes a heading between rules, as the original does."""
        self.log("=" * 80)
        self.log(text)
        self.log("=" * 80)

    def update(self, message: str) -> None:
        """Rewrites the terminal's last line; longer lines are cut to its width."""
        if self._silent:
            return
        message = message[: self.width - 1]
        self._stream.write(self._erased() + message)
        self._stream.flush()
        self._width = len(message)

    def _erased(self) -> str:
        erase = "\r" + " " * self._width + "\r" if self._width else ""
        self._width = 0
        return erase


class Progress:
    """The progress line, in the original's form:

    1200/10000 = 12.0%, SPS: 3.2, seq/s: 102, ELAP: 6:15, ETA: 45:50 - loss: 12.3 ...

    Args:
      total: steps of the whole run.
      start: steps made before this process; speed is measured from here.
      batch_size: sequences per step.
      every: steps between two lines where there is no terminal.
    """

    def __init__(
        self, console: Console, total: int, start: int, batch_size: int, every: int
    ):
        self._console = console
        self._total = total
        self._batch_size = batch_size
        self._every = every
        self._begin = self._shown_at = time.monotonic()
        self._marks = [(start, self._begin)]  # steps and times of recent loops
        self._shown_step = start
        self._is_first = True

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows where the run is; `step` steps are done."""
        now = time.monotonic()
        if self._is_first:
            # The first loop builds the graph, which says nothing about speed.
            self._marks = [(step, now)]
        else:
            self._marks = [*self._marks[-200:], (step, now)]
        line = self.line(step, metrics, now)
        if self._console.is_terminal:
            if len(line) >= self._console.width:
                line = self.line(step, metrics, now, short=True)
            self._console.update(line)
        elif (
            self._is_first
            or step == self._total
            or step // self._every > self._shown_step // self._every
            or now - self._shown_at > _QUIET_SECONDS
        ):
            self._console.log(line)
            self._shown_step, self._shown_at = step, now
        self._is_first = False

    def line(
        self, step: int, metrics: Mapping[str, float], now: float, short: bool = False
    ) -> str:
        """The text of the progress line; `short` fits into 80 columns."""
        first, since = self._marks[0]
        speed = (step - first) / (now - since) if now > since else 0.0
        parts = [f"{step}/{self._total}"]
        if not short:
            parts[0] += f" = {100 * step / self._total:.1f}%"
        if speed:
            rate = f"{speed * self._batch_size:.0f}"
            left = duration((self._total - step) / speed)
            if short:
                parts += [f"{rate} seq/s", f"ETA {left}"]
            else:
                elapsed = duration(now - self._begin)
                parts += [f"SPS: {speed:.1f}", f"seq/s: {rate}"]
                parts += [f"ELAP: {elapsed}", f"ETA: {left}"]
        digits, colon = (3, "") if short else (4, ":")
        shown = [
            f"{label}{colon} {metrics[name]:#.{digits}g}"
            for name, label in _SHOWN.items()
            if name in metrics
        ]
        return ", ".join(parts) + (f" - {' '.join(shown)}" if shown else "")

    def close(self) -> None:
        """Leaves the last progress line standing."""
        if self._console.is_terminal and self._console._width:
            self._console._width = 0
            self._console.log()


class MetricsFile:
    """metrics.jsonl: a line per step.

    Args:
      path: the file; made when missing.
      step: the steps that the run has behind it; later lines are cut off.

    Raises `UserError` (73) when it cannot be written.
    """

    def __init__(self, path: str | os.PathLike, step: int):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b")
            _cut_after(self._file, step)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write(self, rows: list[dict[str, float]]) -> None:
        """Appends rows; each has a "step"."""
        text = "".join(json.dumps(_finite(row)) + "\n" for row in rows)
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def sync(self) -> None:
        """Makes what was written durable."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        # What a full disk kept from being written was reported then, and is not
        # promised; the file is closed all the same.
        with contextlib.suppress(OSError):
            self._file.close()


def _finite(row: Mapping[str, float]) -> dict[str, float | None]:
    return {k: v if math.isfinite(v) else None for k, v in row.items()}


def _cut_after(file, step: int) -> None:
    """Cuts a metrics file after the line of `step`, looking from its end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = _line_start(file, end)
        file.seek(start)
        line = file.read(end - start)
        try:
            if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                break
        except (ValueError, KeyError, TypeError):
            pass  # A torn or damaged line goes.
        end = start
    file.truncate(end)
    file.seek(end)


def _line_start(file, end: int, block: int = 4096) -> int:
    """Offset of the line that ends at `end`."""
    position = end - 1  # the line's own newline does not count
    while position > 0:
        size = min(block, position)
        file.seek(position - size)
        newline = file.read(size).rfind(b"\n")
        if newline >= 0:
            return position - size + newline + 1
        position -= size
    return 0


def read_metrics(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file; a torn last line is left out."""
    with open(path, "rb") as f:
        for line in f:
            try:
                yield json.loads(line)
            except ValueError:
                continue


class TensorBoardEvents:
    """An event file that TensorBoard reads: generator and discriminator apart.

    Written as the TFRecord of events that it is, without `tf.summary`: that would need
    the tensorboard package and 0.1 ms per value. A restart announces from which step on
    earlier files no longer hold, so curves show each step once.

    Args:
      directory: of the event files; each start of a run adds one.
      step: the steps that the run has behind it.
    """

    def __init__(self, directory: str | os.PathLike, step: int):
        import tensorflow as tf

        self._tf = tf.compat.v1
        self._directory = Path(directory)
        name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._writer = tf.io.TFRecordWriter(str(self._directory / name))
            self._write(file_version="brain.Event:2")
            start = self._tf.SessionLog(status=self._tf.SessionLog.START)
            self._write(step=step + 1, session_log=start)
            self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            raise cannot_write(self._directory, error) from error

    def _write(self, **fields) -> None:
        event = self._tf.Event(wall_time=time.time(), **fields)
        try:
            self._writer.write(event.SerializeToString())
        except self._tf.errors.OpError as error:
            raise cannot_write(self._directory, error) from error

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a step."""
        values = [
            self._tf.Summary.Value(tag=tag(name), simple_value=value)
            for name, value in metrics.items()
        ]
        self._write(step=step, summary=self._tf.Summary(value=values))

    def flush(self) -> None:
        """Lets TensorBoard see what was written."""
        import tensorflow as tf

        try:
            self._writer.flush()
        except tf.errors.OpError as error:
            raise cannot_write(self._directory, error) from error

    def close(self) -> None:
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError):  # as in MetricsFile.close
            self._writer.close()


def tag(name: str) -> str:
    """The TensorBoard tag of a metric, such as discriminator/accuracy."""
    for prefix, group in (
        ("disc_", "discriminator"),
        ("masked_lm_", "generator"),
        ("sampled_masked_lm_", "generator/sampled"),
    ):
        if name.startswith(prefix):
            short = name.removeprefix(prefix)
            return f"{group}_{short}" if "/" in group else f"{group}/{short}"
    return f"training/{name}"


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
        is_chief: bool = True,
    ):
        self._progress = Progress(console, total, start, batch_size, every)
        self._files = None
        if is_chief:
            self._files = (
                MetricsFile(Path(directory) / "metrics.jsonl", start),
                TensorBoardEvents(Path(directory) / "tensorboard", start),
            )

    def add(self, first_step: int, metrics: Mapping[str, Any]) -> None:
        """Adds the steps from `first_step` >= 1 on; arrays with a value per step."""
        rows = [
            {"step": first_step + i} | {k: float(v[i]) for k, v in metrics.items()}
            for i in range(len(metrics["loss"]))
        ]
        rows = [_shorter(row) for row in rows]
        if self._files:
            jsonl, events = self._files
            now = round(time.time(), 3)
            jsonl.write([row | {"time": now} for row in rows])
            for row in rows:
                events.write(row["step"], {k: v for k, v in row.items() if k != "step"})
            events.flush()
        self._progress.update(rows[-1]["step"], rows[-1])

    def sync(self) -> None:
        """Makes the metrics durable; before a checkpoint, which promises them."""
        if self._files:
            self._files[0].sync()

    def close(self) -> None:
        self._progress.close()
        for file in self._files or ():
            file.close()


def _shorter(row: dict[str, float]) -> dict[str, float]:
    """Seven digits say all that a float32 holds."""
    return {k: v if k == "step" else float(f"{v:.7g}") for k, v in row.items()}


def write_results(
    txt_path: str | os.PathLike,
    metrics: Mapping[str, float],
    step: int,
    **provenance: Any,
) -> None:
    """Writes evaluation results as text (`name = value`, sorted) and beside it as JSON.

    Raises `UserError` (73) when they cannot be written.
    """
    txt_path = Path(txt_path)
    try:
        txt_path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(txt_path, error) from error
    values = {**metrics, "global_step": step}
    text = "".join(f"{name} = {values[name]}\n" for name in sorted(values))
    atomic_write(txt_path, text)
    content = {"global_step": step, "metrics": _finite(metrics), **provenance}
    atomic_write(txt_path.with_suffix(".json"), json.dumps(content, indent=2) + "\n")
