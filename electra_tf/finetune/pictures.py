# SPDX-License-Identifier: Apache-2.0
"""The pictures of a trial: confusion matrices and learning curves."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.results import TrialResult
from electra_tf.storage.files import atomic_write
from electra_tf.train.curves import dress, new_figure, png_of, smooth
from electra_tf.train.reporting import EVALUATIONS, read_metrics

_WITH_NAMES, _WITH_NUMBERS = 60, 15  # classes, at most
_METRICS = "metrics.jsonl"


def write_pictures(
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
    from sklearn.metrics import ConfusionMatrixDisplay

    matrix, count = np.asarray(found["matrix"]), len(found["labels"])
    side = 2.5 + min(0.55 * count, 12)
    axes = new_figure((side + 1.2, side)).add_subplot()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    names = [str(label)[:24] for label in found["labels"]]
    picture = ConfusionMatrixDisplay(shares, display_labels=names).plot(
        include_values=count <= _WITH_NUMBERS, cmap="Blues", xticks_rotation=45, ax=axes
    )
    if count <= _WITH_NUMBERS:
        for text, number in zip(picture.text_.flat, matrix.flat, strict=True):
            text.set_text(f"{number:,}")
    picture.im_.set_clim(0, 1)
    axes.set(title=title, xlabel="predicted", ylabel="right")
    if count > _WITH_NAMES:
        axes.set(xticks=[], yticks=[])
    atomic_write(path, png_of(axes.figure))


def draw_curves(trial: Path, path: Path, title: str) -> None:
    """Training losses, and the metrics of evaluations in training, over the steps.

    Draws nothing for a trial without either.

    Args:
      trial: its directory.
    """
    panels: dict[str, dict[str, tuple[list, list]]] = {}

    def add(panel: str, name: str, step: int, value: float | None) -> None:
        steps, values = panels.setdefault(panel, {}).setdefault(name, ([], []))
        steps.append(step)
        values.append(math.nan if value is None else value)

    found = [*read_metrics(trial / "training" / _METRICS)]
    for row in found or read_metrics(trial / _METRICS):
        for name in (name for name in row if name.endswith("_loss")):
            add("Training loss", name.removesuffix("_loss"), row["step"], row[name])
    for _, values in panels.get("Training loss", {}).values():
        values[:] = smooth(np.array(values), 1 + len(values) // 40)
    for row in read_metrics(trial / EVALUATIONS):
        for name, metrics in row["scores"].items():
            for metric, value in metrics.items():
                if metric == "loss":
                    add("Dev loss", name, row["step"], value)
                elif metric != "mse":  # a loss, and not in percent
                    add(f"Dev set of {name}", metric, row["step"], value)
    if panels:
        _draw(panels, path, title)


def _draw(
    panels: Mapping[str, dict[str, tuple[list, list]]], path: Path, title: str
) -> None:
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / 2)
    figure = new_figure((2 + 4.5 * columns, 3.4 * rows))
    figure.suptitle(title, fontsize=12)
    for number, (name, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, number)
        for label, (steps, values) in sorted(curves.items()):
            marker = "o" if len(steps) <= 40 else None
            axes.plot(steps, values, label=label, marker=marker, markersize=3)
        dress(axes, name, "step")
        axes.legend(fontsize=8, frameon=False)
    atomic_write(path, png_of(figure))
