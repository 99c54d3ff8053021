# SPDX-License-Identifier: Apache-2.0
"""What a metric is: how it follows from sums, and what it means to people.

A metric is defined once; training, evaluation, the report, model cards and
docs/metrics.md all read the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

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
