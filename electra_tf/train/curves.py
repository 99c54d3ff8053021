# SPDX-License-Identifier: Apache-2.0
"""Loss curves of a run as a picture, from its metrics.jsonl."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

import numpy as np

from electra_tf.storage.files import atomic_write
from electra_tf.train.reporting import EVALUATIONS, STEP_METRICS, Metric, read_metrics

# More points than this cannot be told apart in the picture.
_MAX_POINTS = 2000
# Told apart without colour vision, too (Okabe and Ito).
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def new_figure(size: tuple[float, float]):
    """An empty figure, of inches; drawn without a display or pyplot's global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=size, dpi=120, layout="constrained")


def png_of(figure) -> bytes:
    """The picture that a figure is."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def plot_curves(
    metrics_path: str | os.PathLike,
    png_path: str | os.PathLike,
    title: str,
    metrics: Sequence[Metric],
    switches: Sequence[int] = (),
) -> int:
    """Draws metrics over the steps into a PNG, in the panels that they name.

    Returns: how many of the steps up to the last one the file does not have.

    The faint line is each step (averaged where there are more steps than pixels), the
    strong one a moving average; rings are evaluations, where the run has some, and
    upright lines the `switches` from a phase to the next. Draws nothing for a run
    without steps.
    """
    drawn = [metric for metric in (*metrics, *STEP_METRICS) if metric.curve]
    steps, missing, columns = _read(metrics_path, {metric.name for metric in drawn})
    if not len(steps):
        return 0
    figure = new_figure((11, 7))
    figure.suptitle(title, fontsize=13)
    panels: dict[str, list[Metric]] = {}
    for metric in drawn:
        if metric.name in columns:
            panels.setdefault(metric.curve.panel, []).append(metric)
    rows = (len(panels) + 1) // 2
    evaluated, found = _evaluations(metrics_path, set(columns))
    for number, (name, own) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, 2, number)
        _draw(axes, name, steps, columns, own)
        for step in (step for step in switches if step < steps[-1]):
            axes.axvline(step, color="#8a94a3", linewidth=0.8, linestyle=":")
        for metric in (metric for metric in own if metric.name in found):
            ring = {"color": metric.curve.colour, "fillstyle": "none"}
            axes.plot(evaluated, found[metric.name], "o", markersize=5, **ring)
    atomic_write(png_path, png_of(figure))
    return missing


def _draw(axes, name, steps, columns, metrics) -> None:
    span = max(1, len(steps) // 40)
    marker = "o" if len(steps) == 1 else None  # a line of one point shows nothing
    for metric in metrics:
        values = columns[metric.name]
        _, label, colour, style = metric.curve
        if metric.name == "learning_rate":
            axes.plot(steps, values, color=colour, linewidth=1.6)
            continue
        if len(metrics) == 1 and span > 1:
            axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.3)
        smoothed = smooth(values, span)
        look = {"color": colour, "linewidth": 1.6, "marker": marker, "label": label}
        axes.plot(steps, smoothed, style, **look)
    dress(axes, name)
    if name == "Accuracy":
        axes.set_ylim(0, 1.02)
    if name == "Learning rate":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    if len(metrics) > 1:
        axes.legend(fontsize=8, frameon=False, loc="best")


def dress(axes, title: str, x_label: str = "step") -> None:
    """Title, label and grid of a panel."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x_label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="#d9dde3", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _read(path, names: set[str]) -> tuple[np.ndarray, int, dict[str, np.ndarray]]:
    """Steps [n], how many are missing, and metrics [n].

    Averaged over neighbours down to _MAX_POINTS.
    """
    steps, lists = [], {name: [] for name in names}
    for row in read_metrics(path):
        steps.append(row["step"])
        for name, values in lists.items():
            values.append(row.get(name))  # None becomes nan
    columns = {name: np.array(values, float) for name, values in lists.items()}
    columns = {k: v for k, v in columns.items() if np.isfinite(v).any()}
    parts = np.array_split(np.array(steps, float), min(len(steps), _MAX_POINTS) or 1)
    means = {
        name: np.array([_mean(part) for part in np.array_split(values, len(parts))])
        for name, values in columns.items()
    }
    missing = max(steps, default=0) - len(set(steps))
    return np.array([part.mean() for part in parts if len(part)]), missing, means


def _evaluations(metrics_path, names) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps and metrics of the evaluations while training; empty if there are none."""
    path = os.path.join(os.path.dirname(metrics_path), EVALUATIONS)
    if not os.path.isfile(path):
        return np.zeros(0), {}
    return _read(path, names)[::2]


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else np.nan


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
