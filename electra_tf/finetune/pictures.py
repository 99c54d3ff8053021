# SPDX-License-Identifier: Apache-2.0
"""Learning curves and confusion matrices of a trial as PNG files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.results import Statistics, TrialResult
from electra_tf.finetune.trial import read_evaluations
from electra_tf.storage.files import atomic_write
from electra_tf.train.curves import dress, new_figure, png_of, smooth
from electra_tf.train.reporting import read_metrics

_WITH_NAMES, _WITH_NUMBERS = 60, 15  # classes, at most
_METRICS = "metrics.jsonl"


def write(
    config: FinetuningConfig, result: TrialResult, log: Callable[[str], None]
) -> None:
    """Draws the matrix of each data set that has one, and the curves.

    Args:
      log: gets where they are.
    """
    folder = Path(config.beside_results("pictures", result.trial))
    for name, details in result.details.items():
        if found := details.get("confusion"):
            safe = name.replace(os.sep, ".")
            draw_confusion(found, folder / f"confusion_{safe}.png", name)
    trial = Path(config.trial_dir(result.trial))
    title = f"{config.model_name}: {', '.join(config.task_names)}, trial {result.trial}"
    draw_curves(trial, folder / "learning_curves.png", title)
    if folder.is_dir():
        log(f"Pictures of trial {result.trial}: {folder}")


def draw_confusion(found: Mapping[str, Any], path: Path, title: str) -> None:
    """A confusion matrix; colours are shares of the right class, numbers examples.

    Args:
      found: "labels" and "matrix", right classes by predicted ones.
    """
    labels, matrix = found["labels"], np.asarray(found["matrix"], float)
    count = len(labels)
    side = 2.5 + min(0.55 * count, 12)
    figure = new_figure((side + 1.2, side))
    axes = figure.add_subplot()
    totals = np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    picture = axes.imshow(matrix / totals, cmap="Blues", vmin=0, vmax=1)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel("predicted", fontsize=9)
    axes.set_ylabel("right", fontsize=9)
    if count <= _WITH_NAMES:
        names = [str(label)[:24] for label in labels]
        axes.set_xticks(range(count), names, rotation=45, ha="right", fontsize=8)
        axes.set_yticks(range(count), names, fontsize=8)
    if count <= _WITH_NUMBERS:
        for row, column in np.ndindex(count, count):
            value, style = matrix[row, column], {"ha": "center", "va": "center"}
            colour = "white" if value > 0.5 * totals[row, 0] else "#1c2733"
            axes.text(column, row, f"{value:,.0f}", fontsize=8, color=colour, **style)
    bar = figure.colorbar(picture, ax=axes, fraction=0.046)
    bar.set_label("share of the right class", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    atomic_write(path, png_of(figure))


def draw_curves(trial: Path, path: Path, title: str) -> None:
    """Training losses, and the metrics of evaluations in training, over the steps.

    Draws nothing where a trial has kept neither.

    Args:
      trial: its directory.
    """
    panels = [("Training loss", _losses(trial)), *_scores(trial).items()]
    panels = [(name, curves) for name, curves in panels if curves]
    if not panels:
        return
    rows = math.ceil(len(panels) / 2)
    figure = new_figure((11 if len(panels) > 1 else 6, 3.4 * rows))
    figure.suptitle(title, fontsize=12)
    for number, (name, curves) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, min(2, len(panels)), number)
        for label, (steps, values) in sorted(curves.items()):
            marker = "o" if len(steps) <= 40 else None
            axes.plot(steps, values, label=label, marker=marker, ms=3, linewidth=1.6)
        # A single curve has no legend.
        dress(axes, name if len(curves) > 1 else f"{name}: {', '.join(curves)}")
        if len(curves) > 1:
            axes.legend(fontsize=8, frameon=False)
    atomic_write(path, png_of(figure))


def draw_sweep(
    scores: Mapping[str, Mapping[int, Statistics]], path: Path, title: str
) -> None:
    """Medians and deviations of dev scores over the steps of pre-training.

    Args:
      scores: "data set: metric" -> step -> statistics; losses are not drawn.
    """
    figure = new_figure((8, 5))
    axes = figure.add_subplot()
    for name, by_step in scores.items():
        if not name.endswith((": loss", ": mse")):
            medians = [value.median for value in by_step.values()]
            spread = [value.std or 0.0 for value in by_step.values()]
            axes.errorbar(
                [*by_step], medians, spread, marker="o", capsize=3, label=name
            )
    dress(axes, title, "pre-training step")
    axes.set_ylabel("dev score, median of the trials", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    atomic_write(path, png_of(figure))


Curves = dict[str, tuple[Sequence[float], Sequence[float]]]  # name -> steps, values


def _losses(trial: Path) -> Curves:
    """Of each task in training, a moving average."""
    paths = (trial / "training" / _METRICS, trial / _METRICS)
    path = next((p for p in paths if p.is_file()), None)
    found: dict[str, dict[int, float]] = {}
    for row in read_metrics(path) if path else ():
        for name, value in row.items():
            if name.endswith("_loss") and isinstance(value, int | float):
                found.setdefault(name.removesuffix("_loss"), {})[row["step"]] = value
    return {
        name: ([*rows], smooth(np.array([*rows.values()]), 1 + len(rows) // 40))
        for name, rows in found.items()
    }


def _scores(trial: Path) -> dict[str, Curves]:
    """Panel -> of each metric of a data set."""
    found: dict[str, Any] = {}
    scores = (
        (row["step"], name, metric, value)
        for row in read_evaluations(trial)
        for name, metrics in row["scores"].items()
        for metric, value in metrics.items()
        if metric != "mse"  # the loss of a regression, and not in percent
    )
    for step, name, metric, value in scores:
        is_loss = metric == "loss"
        panel = found.setdefault("Dev loss" if is_loss else f"Dev set of {name}", {})
        steps, values = panel.setdefault(name if is_loss else metric, ([], []))
        steps.append(step)
        values.append(math.nan if value is None else value)
    return found
