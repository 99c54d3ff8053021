# SPDX-License-Identifier: Apache-2.0
"""What a run writes down: the metrics of each step, results."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra_tf.console import Console, Progress
from electra_tf.storage.files import atomic_write, cannot_write
from electra_tf.train.metrics import Metric
from electra_tf.train.metrics_file import MetricsFile, finite
from electra_tf.train.tensorboard_events import TensorBoardEvents


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
        self._files = None
        if is_chief:
            self._files = (
                MetricsFile(Path(directory) / "metrics.jsonl", start),
                TensorBoardEvents(
                    Path(directory) / "tensorboard",
                    start,
                    {metric.name: metric.tag for metric in metrics},
                ),
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
    content = {"global_step": step, "metrics": finite(metrics), **provenance}
    atomic_write(txt_path.with_suffix(".json"), json.dumps(content, indent=2) + "\n")
