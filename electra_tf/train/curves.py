# SPDX-License-Identifier: Apache-2.0
"""Loss curves of a run as a picture, from its metrics.jsonl."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Sequence

import numpy as np

from electra_tf.storage.files import atomic_write
from electra_tf.train.reporting import EVALUATIONS, STEP_METRICS, Metric, read_metrics

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


def plot_curves(
    metrics_path: str | os.PathLike,
    png_path: str | os.PathLike,
    title: str,
    metrics: Sequence[Metric],
    switches: Sequence[int] = (),
) -> None:
    """Plots metrics over the steps into a PNG, in the panels that they name.

    The faint line is each step (averaged if there are more steps than pixels), the
    strong one a moving average. Rings are evaluations, and vertical lines are at
    `switches`, the steps between two phases. A run without steps gets no picture.
    """
    metrics = [metric for metric in (*metrics, *STEP_METRICS) if metric.curve]
    steps, columns = _read(metrics_path, {m.name for m in metrics})
    if not len(steps):
        return
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
    atomic_write(png_path, png_of(figure))


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
