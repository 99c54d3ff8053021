# SPDX-License-Identifier: Apache-2.0
"""One HTML page about several pre-training runs: what differs, and what came of it."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from electra_tf.config.hparams import PLACE, values_in_roles
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.inference import html_report
from electra_tf.pretrain.metrics import ALL_METRICS
from electra_tf.storage.files import line_writer
from electra_tf.train import curves


def write_comparison(
    names: Sequence[str], model_dirs: Sequence[Path], output: str | os.PathLike
) -> None:
    """Writes the page of the runs in `model_dirs`, which needs no other files.

    Args:
      names: what the runs are called there.

    Raises `UserError`: 2 for a directory that holds no run, 73 when it cannot be
    written.
    """
    configs = [_config(path) for path in model_dirs]
    title = f"Comparison of {', '.join(names)}"
    parts = [f"<h1>{html.escape(title)}</h1>", "<h2>Settings that differ</h2>"]
    parts.append(_table(names, _differences(configs)))
    results = [html_report.results_of(path) for path in model_dirs]
    if any(results):
        parts += ["<h2>Evaluation</h2>", _table(names, _metrics(results))]
    metrics = {
        name: path / "metrics.jsonl"
        for name, path in zip(names, model_dirs, strict=True)
    }
    picture = curves.comparison(metrics, ALL_METRICS)
    if picture:
        parts += ["<h2>Training</h2>", html_report.image("training curves", picture)]
    with line_writer(output) as write:
        write(html_report.page(title, parts))


def _config(model_dir: Path) -> dict[str, Any]:
    if not (model_dir / "config.json").is_file():
        raise UserError(
            f"{model_dir} holds no run of pre-training: it has no config.json.\nCheck "
            "--data-dir and the names in --model-name."
        )
    return html_report.config_of(model_dir)


def _differences(configs: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """(hparam, its value in each run) wherever runs differ in more than a place."""
    places = values_in_roles(PretrainingConfig(), PLACE)
    names = sorted(set().union(*configs) - set(places))
    rows = [(name, [json.dumps(c.get(name)) for c in configs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _metrics(results: Sequence[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    rows = [("global_step", [str(found.get("global_step", "")) for found in results])]
    for metric in ALL_METRICS:
        values = [found.get("metrics", {}).get(metric.name) for found in results]
        if any(value is not None for value in values):
            cells = ["" if value is None else f"{value:.4f}" for value in values]
            rows.append((metric.name, cells))
    return rows


def _table(names: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> str:
    if not rows:
        return '<p class="summary">None.</p>'
    lines = [("", list(names)), *rows]
    body = "".join(
        f"<tr><th>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(value)}</td>" for value in values)
        + "</tr>"
        for name, values in lines
    )
    return f'<table class="comparison">{body}</table>'
