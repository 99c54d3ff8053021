# SPDX-License-Identifier: Apache-2.0
"""Definitions of metrics, the files that a run writes them to, and their curves.

Each metric is defined once; training, evaluation, reports, model cards and
docs/metrics.md use that definition.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import mmap
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from electra_tf.console import Console, Progress
from electra_tf.errors import JSON_ERRORS, UserError
from electra_tf.paths import json_beside
from electra_tf.storage.files import atomic_write, cannot_write, open_own
from electra_tf.storage.manifest import read_json_if_there

# Evaluations during training, in the folder of metrics.jsonl.
EVALUATIONS = "evaluations.jsonl"

Sums = Mapping[str, np.ndarray]


class Ratio(NamedTuple):
    """The ratio of two sums, 0 if the denominator is 0; or one sum."""

    numerator: str
    denominator: str | None = None

    def __call__(self, sums: Sums) -> np.ndarray:
        values = np.asarray(sums[self.numerator], np.float64)
        if self.denominator is None:
            return values
        count = np.asarray(sums[self.denominator], np.float64)
        return np.where(count, values / np.where(count, count, 1.0), 0.0)


class Curve(NamedTuple):
    """How a metric is plotted: panel title, and the line's label, colour and style."""

    panel: str
    label: str
    colour: str = "#5f6b7a"
    style: str = "-"


class Metric(NamedTuple):
    """The definition of a metric.

    Attributes:
      name: its key in metrics.jsonl and in results.
      label: a short description, for docs/metrics.md, reports and model cards.
      healthy: the expected value in a healthy run, for docs/metrics.md.
      evaluation: computes it from the sums over an evaluation, a NamedTuple of their
        names; None if it has none.
      training: the same for arrays, from the sums of training steps.
      short: its label in the progress line; "" if it is not shown there.
      curve: how it is plotted; None if it is not.
    """

    name: str
    label: str
    healthy: str = ""
    evaluation: Callable[[Sums], float] | None = None
    training: Callable[[Sums], np.ndarray] | None = None
    short: str = ""
    curve: Curve | None = None


# Metrics of every training step (`step.TrainingStep`).
STEP_METRICS = (
    Metric(
        "learning_rate", "learning rate", curve=Curve("Learning rate", "learning rate")
    ),
    Metric("global_norm", "norm of all gradients before clipping"),
    Metric("loss_scale", "loss scale of `mixed_float16`"),
    Metric("finite", "0 for a skipped step: loss or gradients not finite", healthy="1"),
)


def read_sums(metrics: Sequence[Metric], by: str) -> set[str]:
    """The names of the sums that "training" or "evaluation" of metrics read."""
    formulas: Iterable[Any] = (getattr(metric, by) for metric in metrics)
    return {name for names in filter(None, formulas) for name in names if name}


def evaluation_metrics(metrics: Sequence[Metric], sums: Sums) -> dict[str, float]:
    """The values of metrics, from the sums over any number of batches."""
    return {m.name: float(m.evaluation(sums)) for m in metrics if m.evaluation}


def step_metrics(
    rows: np.ndarray, columns: Sequence[str], metrics: Sequence[Metric]
) -> dict[str, np.ndarray]:
    """Converts the output of training steps to metrics.

    Args:
      rows: float32 [steps, columns or more].
      columns: loss, the sums that `metrics` read, learning_rate, global_norm, and
        loss_scale where there is one (`step.TrainingStep.columns`).

    Returns: metric -> float64 [steps]; "finite" is 0.0 for skipped steps.
    """
    values = dict(zip(columns, rows.astype(np.float64).T, strict=False))
    last = {m.name: values.pop(m.name) for m in STEP_METRICS if m.name in values}
    own = {m.name: m.training(values) for m in metrics if m.training}
    found = {"loss": values["loss"], **own, **last}
    finite = np.isfinite(last["global_norm"]) & np.isfinite(found["loss"])
    return found | {"finite": finite.astype(np.float64)}


def overflowed(metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which steps with gradients that are not finite a lower loss scale can fix.

    It cannot if the loss is not finite, or if the scale is 1 already.

    Args:
      metrics: name -> values of steps; with `loss_scale` under mixed_float16.
    """
    scale = metrics.get("loss_scale", np.zeros_like(metrics["loss"]))
    return np.isfinite(metrics["loss"]) & (scale > 1.0)


@dataclasses.dataclass
class Journal:
    """A file of a run, one JSON object per step, and TensorBoard events.

    A restart cuts off later rows and tells TensorBoard to ignore later events, so both
    have each step once. Event files are written directly as TFRecords: `tf.summary`
    would need the tensorboard package and 0.1 ms per value.

    Args:
      directory: of the run.
      name: of the file.
      events: TensorBoard's name of the events; "" for the training curves.
      step: the last completed step.
      is_chief: only the chief writes.

    Raises `UserError` (73) on failed writes.
    """

    directory: str | os.PathLike
    name: str
    events: str
    step: int
    is_chief: bool

    def __post_init__(self):
        self.path = Path(self.directory, self.name)
        if not self.is_chief:
            return
        import tensorflow as tf

        self._errors = OSError, tf.errors.OpError
        with self._writing():
            folder = Path(self.directory, "tensorboard", self.events)
            folder.mkdir(parents=True, exist_ok=True)
            self._rows = _open_after(self.path, self.step)
            file = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
            self._events = tf.io.TFRecordWriter(str(folder / file))
            self._add_event(file_version="brain.Event:2")
            self._add_event(step=self.step + 1, session_log={"status": "START"})
            self._events.flush()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            raise cannot_write(self.path, error) from error

    def has(self, step: int) -> bool:
        """Whether the file has a row for the step; False except on the chief."""
        rows = read_metrics(self.path) if self.is_chief else ()
        return any(row["step"] == step for row in rows)

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Adds rows with a "step"; their numbers go to TensorBoard."""
        if not self.is_chief:
            return
        lines = "".join(json.dumps(finite(row)) + "\n" for row in rows)
        with self._writing():
            self._rows.write(lines.encode())
            self._rows.flush()
            for row in rows:
                values = [
                    {"tag": f"training/{k}", "simple_value": v}
                    for k, v in row.items()
                    if k not in ("step", "time")
                ]
                self._add_event(step=row["step"], summary={"value": values})
            self._events.flush()

    def _add_event(self, **fields) -> None:
        # Its only name in TensorFlow's API is one of tf.compat.v1.
        from tensorflow.core.util import event_pb2

        event = event_pb2.Event(wall_time=time.time(), **fields)  # ty: ignore
        self._events.write(event.SerializeToString())

    def sync(self) -> None:
        """Makes the rows durable."""
        if self.is_chief:
            with self._writing():
                os.fsync(self._rows.fileno())

    def close(self) -> None:
        if self.is_chief:
            # A full disk was reported by the failed write, and closing would repeat it.
            for file in (self._rows, self._events):
                with contextlib.suppress(UserError), self._writing():
                    file.close()


def finite(value: Any) -> Any:
    """As JSON has it: null for a number that is not finite, objects of named tuples."""
    value = value._asdict() if hasattr(value, "_asdict") else value
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open_after(path: Path, step: int) -> BinaryIO:
    """Opens a metrics file for appending after the row of `step`; cuts off the rest."""
    file = open_own(path, "a+b")
    end = file.seek(0, os.SEEK_END)
    if not end:
        return file
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while end:
            start = content.rfind(b"\n", 0, end - 1) + 1
            line = content[start:end]
            try:
                if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                    break
            except JSON_ERRORS:
                pass  # Torn or damaged lines are cut off.
            end = start
    file.truncate(end)
    file.seek(end)
    return file


def cut_after(directory: str | os.PathLike, step: int) -> None:
    """Removes the evaluations of steps that the run will repeat."""
    path = Path(directory, EVALUATIONS)
    if path.is_file():
        _open_after(path, step).close()


def read_metrics(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """Yields the rows of a metrics file, if there is one; skips damaged lines."""
    with open(path if os.path.isfile(path) else os.devnull, "rb") as f:
        for line in f:
            try:
                row = json.loads(line)
            except JSON_ERRORS:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row


class Report:
    """Writes the metrics of each step to metrics.jsonl, TensorBoard and the console."""

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
        self._journal = Journal(directory, "metrics.jsonl", "", start, is_chief)
        # Called before each checkpoint, which must not be newer than its metrics.
        self.sync = self._journal.sync

    def add(self, first_step: int, metrics: Mapping[str, Any]) -> None:
        """Adds the steps from `first_step` >= 1 on; arrays with a value per step."""
        now = round(time.time(), 3)
        rows = []
        for i in range(len(metrics["loss"])):
            # float32 has about seven significant digits.
            row = {name: float(f"{column[i]:.7g}") for name, column in metrics.items()}
            rows.append({"step": first_step + i, **row, "time": now})
        self._journal.add(rows)
        shown = rows[-1]
        if not self._is_terminal:  # A file gets lines at multiples of `every`.
            due = (row for row in reversed(rows) if row["step"] % self._every == 0)
            shown = next(due, shown)
        self._progress.update(shown["step"], shown)

    def close(self) -> None:
        self._progress.close()
        self._journal.close()


def write_results(
    txt_path: str | os.PathLike,
    metrics: Mapping[str, float],
    step: int | None,
    **provenance: Any,
) -> str:
    """Writes evaluation results as JSON and as text (`name = value`), which it returns.

    Args:
      step: of the model; None if unknown.

    Raises `UserError` (73) on failed writes.
    """
    known = {} if step is None else {"global_step": step}
    values = {**metrics, **known}
    text = "".join(f"{name} = {values[name]}\n" for name in sorted(values))
    atomic_write(txt_path, text)
    content = {**known, "metrics": finite(metrics), **provenance}
    atomic_write(json_beside(txt_path), json.dumps(content, indent=2) + "\n")
    return text


def results_of(model_dir: Path) -> dict[str, Any]:
    """The stored evaluation of a run; empty if there is none.

    Raises `UserError` (65) for a file that is not JSON.
    """
    return read_json_if_there(model_dir / "results" / "unsup_results.json")


def data_of(results: dict[str, Any]) -> str:
    """Names the data of an evaluation, as training data give better metrics."""
    return {
        None: "the run's evaluation data",
        True: "its training data",
        False: "the data of eval_tfrecords",
    }[results.get("is_training_data")]


# Loss curves.

# The picture cannot show more points.
_MAX_POINTS = 2000
# Distinguishable with colour vision deficiencies (Okabe and Ito).
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def new_figure(size: tuple[float, float]):
    """An empty figure of `size` inches; needs no display and no pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=120, layout="constrained")


def png_of(figure) -> bytes:
    """The figure as a PNG file."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def curves_of(
    metrics_path: str | os.PathLike,
    title: str,
    metrics: Sequence[Metric],
    switches: Sequence[int] = (),
) -> bytes:
    """Metrics over the steps as a PNG, in the panels that they name.

    The faint line is each step (averaged if there are more steps than pixels), the
    strong one a moving average. Rings are evaluations, and vertical lines are at
    `switches`, the steps between two phases. Empty for a run without steps.
    """
    metrics = [metric for metric in (*metrics, *STEP_METRICS) if metric.curve]
    steps, columns = _read(metrics_path, {m.name for m in metrics})
    if not len(steps):
        return b""
    path = os.path.join(os.path.dirname(metrics_path), EVALUATIONS)
    evaluated, rings = _read(path, columns.keys())
    panels: dict[str, list[Metric]] = {}
    for metric in metrics:
        if metric.name in columns:
            panels.setdefault(metric.curve.panel, []).append(metric)
    figure = new_figure((11, 7))
    figure.suptitle(title, fontsize=13)
    for number, (panel, shown) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot((len(panels) + 1) // 2, 2, number)
        for metric in shown:
            _draw(axes, steps, columns[metric.name], metric, is_only=len(shown) == 1)
            if metric.name in rings:
                ring = {"color": metric.curve.colour, "fillstyle": "none"}
                axes.plot(evaluated, rings[metric.name], "o", markersize=5, **ring)
        dress(axes, panel)
        if panel == "Accuracy":
            axes.set_ylim(0, 1.02)
        if panel == "Learning rate":
            axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
        if len(shown) > 1:
            # Beside the panel: inside it would lie on curves.
            place = {"loc": "upper left", "bbox_to_anchor": (1, 1)}
            axes.legend(fontsize=8, frameon=False, **place)
        for step in (step for step in switches if step < steps[-1]):
            axes.axvline(step, color="#8a94a3", linewidth=0.8, linestyle=":")
    return png_of(figure)


def _draw(axes, steps, values, metric, is_only: bool) -> None:
    _, label, colour, style = metric.curve
    span = max(1, len(steps) // 40)
    if metric.name == "learning_rate":
        axes.plot(steps, values, color=colour, linewidth=1.6)
        return
    if is_only and span > 1:
        axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.3)
    marker = "o" if len(steps) == 1 else None  # A line through one point is invisible.
    look = {"color": colour, "linewidth": 1.6, "marker": marker, "label": label}
    axes.plot(steps, smooth(values, span), style, **look)


def dress(axes, title: str, x_label: str = "step") -> None:
    """Adds the title, label and grid of a panel."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x_label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="#d9dde3", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _read(
    path: str | os.PathLike, names: Collection[str]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps [n] and metrics [n].

    Neighbours are averaged if there are more than _MAX_POINTS steps.
    """
    rows = read_metrics(path)
    table = [np.array([row["step"], *map(row.get, names)], float) for row in rows]
    steps, *values = np.array(table).reshape(-1, 1 + len(names)).T
    columns = {n: v for n, v in zip(names, values, strict=True) if np.isfinite(v).any()}
    starts = np.arange(0, len(steps), -(-len(steps) // _MAX_POINTS) or 1)

    def averages(values: np.ndarray) -> np.ndarray:
        known = np.isfinite(values)
        sums = np.add.reduceat(np.where(known, values, 0.0), starts)
        counts = np.add.reduceat(known.astype(float), starts)
        return np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)

    if not len(steps):
        return steps, {}
    return averages(steps), {n: averages(c) for n, c in columns.items()}


def smooth(values: np.ndarray, span: int) -> np.ndarray:
    """Centred moving average over `span` values, shorter at the ends; nan is skipped.

    `span` is at most the number of values.
    """
    known = np.isfinite(values)
    kernel = np.ones(span)
    sums = np.convolve(np.where(known, values, 0.0), kernel, mode="same")
    counts = np.convolve(known.astype(float), kernel, mode="same")
    averages = np.full_like(sums, np.nan)
    np.divide(sums, counts, out=averages, where=counts > 0.5)
    return averages
