# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a pre-training run."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_tf.config.objectives import translated
from electra_tf.config.pretraining import PretrainingConfig, switches
from electra_tf.errors import UserError
from electra_tf.inference import detection
from electra_tf.inference.detection import Html, fill
from electra_tf.pretrain.metrics import ALL_METRICS, plotted
from electra_tf.storage.files import line_writer
from electra_tf.storage.manifest import read_json_if_there
from electra_tf.train.reporting import curves_of, data_of, results_of

if TYPE_CHECKING:  # It loads TensorFlow.
    from electra_tf.inference.model import TokenPrediction


def config_of(model_dir: Path) -> dict[str, Any]:
    """The config.json of a pre-training run.

    Raises `UserError`: 2 for other directories, 65 for a damaged file.
    """
    path = model_dir / "config.json"
    content = read_json_if_there(path)
    if not content or "task_names" in content:
        raise UserError(
            f"{model_dir} is not the directory of a pre-training run, which report "
            "needs."
        )
    PretrainingConfig.checked(translated(content), str(path))
    return content


def write_report(
    model_dir: Path,
    passages: Sequence[tuple[str, Sequence[TokenPrediction]]],
    output: str | os.PathLike,
) -> None:
    """Writes the report of the run in `model_dir`.

    Args:
      passages: texts and the predictions on their corrupted tokens.
      output: the HTML file, which needs no other files.

    Raises `UserError` (73) if it cannot be written.
    """
    config = config_of(model_dir)
    title = f"Pre-training of {model_dir.name}"
    parts = [fill("<h1>{title}</h1>", title=title)]
    results = results_of(model_dir)
    if passages:
        scores = [detection.score(tokens) for _, tokens in passages]
        replaced, caught = map(sum, zip(*scores, strict=True))
        parts += [
            fill(
                "<h2>What the discriminator caught</h2>\n"
                '<p class="summary">The generator replaced {replaced} tokens (drawn at '
                "temperature {temperature}); {caught} of them are among the {replaced} "
                "that look most replaced to the discriminator.</p>",
                temperature=f"{config.get('temperature', 1.0):g}",
                replaced=replaced,
                caught=caught,
            ),
            detection.html_legend(is_corrupted=True),
            *(detection.to_html(text, tokens) for text, tokens in passages),
        ]
    if results:
        parts.append(_metrics_table(results))
    parts += _curves(model_dir, config)
    rows = [(key, [json.dumps(value)]) for key, value in sorted(config.items())]
    settings = "<details><summary>config.json</summary>{table}</details>"
    parts.append(fill(f"<h2>Settings</h2>{settings}", table=_table(rows)))
    with line_writer(output) as write:
        write(detection.page(title, parts))


def _metrics_table(results: dict) -> Html:
    rows = []
    for metric in ALL_METRICS:
        if metric.name in results["metrics"]:
            number = results["metrics"][metric.name]
            value = "not a number" if number is None else f"{number:.4f}"
            rows.append((metric.name, [value, metric.label]))
    step = results.get("global_step")
    made_by = f"Checkpoint of step {step}, on" if step else "On"
    return fill(
        '<h2>Evaluation</h2><p class="summary">{made_by} {data}.</p>{table}',
        made_by=made_by,
        data=data_of(results),
        table=_table(rows),
    )


def _curves(model_dir: Path, config: dict[str, Any]) -> list[Html]:
    """The loss curves as an image inside the page; [] without metrics."""
    rows, usual = model_dir / "metrics.jsonl", PretrainingConfig
    if not rows.is_file():
        return []
    names = (config.get(key, getattr(usual, key)) for key in ("objective", "generator"))
    if not (picture := curves_of(rows, "", plotted(*names), switches(config))):
        return []
    data = base64.b64encode(picture).decode()
    image = '<img alt="loss curves" src="data:image/png;base64,{data}">'
    return [fill(f"<h2>Training</h2>{image}", data=data)]


def _table(rows: Sequence[tuple[str, Sequence[str]]]) -> Html:
    """Rows with their titles."""
    lines = []
    for title, values in rows:
        cells = [fill("<td>{value}</td>", value=value) for value in values]
        lines.append(fill("<tr><th>{title}</th>{cells}</tr>", title=title, cells=cells))
    return fill("<table>{lines}</table>", lines=lines)
