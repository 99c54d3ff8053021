# SPDX-License-Identifier: Apache-2.0
"""Loss curves of a run as a picture, from its metrics.jsonl."""

from __future__ import annotations

import io
import os

import numpy as np

from electra_tf.storage.files import atomic_write
from electra_tf.train.metrics_file import read_metrics

# More points than this cannot be told apart in the picture.
_MAX_POINTS = 2000
_GENERATOR, _DISCRIMINATOR, _GREY = "#c0582b", "#2b6cb0", "#5f6b7a"

# Title of a panel -> its curves: metric, label, colour, line style.
_PANELS = {
    "Generator loss": [("masked_lm_loss", "masked LM loss", _GENERATOR, "-")],
    "Discriminator loss": [("disc_loss", "replaced-token loss", _DISCRIMINATOR, "-")],
    "Accuracy": [
        ("disc_accuracy", "discriminator", _DISCRIMINATOR, "-"),
        ("disc_precision", "precision on replaced", _DISCRIMINATOR, "--"),
        ("disc_recall", "recall of replaced", _DISCRIMINATOR, ":"),
        ("masked_lm_accuracy", "generator", _GENERATOR, "-"),
    ],
    "Learning rate": [("learning_rate", "learning rate", _GREY, "-")],
}


def plot_curves(
    metrics_path: str | os.PathLike, png_path: str | os.PathLike, title: str
) -> None:
    """Draws losses, accuracies and learning rate over the steps into a PNG.

    The faint line is each step (averaged where there are more steps than pixels), the
    strong one a moving average. Does nothing for a run without steps.
    """
    steps, columns = _read(metrics_path)
    if not len(steps):
        return
    # The Agg canvas draws without a display and leaves pyplot's global state alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=13)
    panels = {
        name: [curve for curve in curves if curve[0] in columns]
        for name, curves in _PANELS.items()
    }
    panels = {name: curves for name, curves in panels.items() if curves}
    rows = (len(panels) + 1) // 2
    for number, (name, curves) in enumerate(panels.items(), start=1):
        _draw(figure.add_subplot(rows, 2, number), name, steps, columns, curves)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    atomic_write(png_path, picture.getvalue())


def _draw(axes, name, steps, columns, curves) -> None:
    span = max(1, len(steps) // 40)
    marker = "o" if len(steps) == 1 else None  # a line of one point shows nothing
    for metric, label, colour, style in curves:
        values = columns[metric]
        if metric == "learning_rate":
            axes.plot(steps, values, color=colour, linewidth=1.6)
            continue
        if len(curves) == 1 and span > 1:
            axes.plot(steps, values, color=colour, linewidth=0.6, alpha=0.3)
        smoothed = smooth(values, span)
        axes.plot(
            steps,
            smoothed,
            style,
            color=colour,
            linewidth=1.6,
            marker=marker,
            label=label,
        )
    axes.set_title(name, fontsize=11, loc="left")
    axes.set_xlabel("step", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.grid(color="#d9dde3", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if name == "Accuracy":
        axes.set_ylim(0, 1.02)
    if name == "Learning rate":
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 3))
    if len(curves) > 1:
        axes.legend(fontsize=8, frameon=False, loc="best")


def _read(path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Steps [n] and metrics [n], averaged over neighbours down to _MAX_POINTS."""
    names = {curve[0] for curves in _PANELS.values() for curve in curves}
    steps, lists = [], {name: [] for name in names}
    for row in read_metrics(path):
        steps.append(row["step"])
        for name, values in lists.items():
            value = row.get(name)
            values.append(np.nan if value is None else value)
    columns = {name: np.array(values, float) for name, values in lists.items()}
    columns = {k: v for k, v in columns.items() if np.isfinite(v).any()}
    parts = np.array_split(np.array(steps, float), min(len(steps), _MAX_POINTS) or 1)
    means = {
        name: np.array([_mean(part) for part in np.array_split(values, len(parts))])
        for name, values in columns.items()
    }
    return np.array([part.mean() for part in parts if len(part)]), means


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
