# SPDX-License-Identifier: Apache-2.0
"""One HTML page about a pre-training run: curves, evaluation, passages, settings."""

from __future__ import annotations

import base64
import html
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.inference import rendering
from electra_tf.interop import readers
from electra_tf.pretrain import history
from electra_tf.pretrain.metrics import ALL_METRICS
from electra_tf.storage.files import line_writer
from electra_tf.storage.manifest import read_json
from electra_tf.train.curves import plot_curves
from electra_tf.train.reporting import SAMPLES, read_metrics

if TYPE_CHECKING:  # It loads TensorFlow.
    from electra_tf.inference.pretrained_model import TokenPrediction

# Steps from which a sample is shown, spread over the training.
_MAX_SAMPLES = 5

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #d9e2ec; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .2rem .9rem .2rem 0; text-align: left; vertical-align: top; }
td:nth-child(2) { text-align: right; }
td:nth-child(3) { color: #52606d; }
.comparison td { text-align: right; color: inherit; }
details td:nth-child(2) { text-align: left; font-family: ui-monospace, monospace; }
img { max-width: 100%; }
.summary { color: #52606d; margin-top: 0; }
"""


def page(title: str, parts: Sequence[str]) -> str:
    """A whole HTML document; `parts` are fragments."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title>"
        f"<style>{_STYLE}{rendering.STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>"
    )


def check_run(model_dir: Path) -> None:
    """Raises `UserError` for a directory that is not one of a run."""
    if not readers.is_run(model_dir) or not (model_dir / "config.json").is_file():
        raise UserError(
            f"report is on a run, and {model_dir} is none.\nName the "
            "directory of a run, not a checkpoint or an exported model."
        )


def config_of(model_dir: Path) -> dict[str, Any]:
    """The settings of a run of pre-training, as they stand in its config.json.

    Raises `UserError`: 65 where there is no JSON object, 2 naming the setting that
    cannot be one.
    """
    path = model_dir / "config.json"
    content = read_json(path)
    if "task_names" in content:
        raise UserError(
            f"report is on a run of pre-training, and {model_dir} is fine-tuned."
        )
    PretrainingConfig.checked(content, str(path))
    return content


def write_report(
    model_dir: Path,
    passages: Sequence[tuple[str, Sequence[TokenPrediction]]],
    output: str | os.PathLike,
) -> None:
    """Writes the page of the run in `model_dir`.

    Args:
      passages: texts and the predictions on their corrupted tokens.
      output: the HTML file; it needs no other files.

    Raises `UserError` (73) when it cannot be written.
    """
    config = config_of(model_dir)
    parts = [f"<h1>Pre-training of {html.escape(model_dir.name)}</h1>"]
    results = results_of(model_dir)
    if passages:
        total = [rendering.score(tokens) for _, tokens in passages]
        replaced, caught = sum(s.replaced for s in total), sum(s.caught for s in total)
        parts += [
            "<h2>What the discriminator caught</h2>",
            f'<p class="summary">The generator replaced {replaced} tokens '
            f"(drawn at temperature {config.get('temperature', 1.0):g}); {caught} of "
            f"them are among the {replaced} that look most replaced to the "
            "discriminator.</p>",
            rendering.html_legend(is_corrupted=True),
            *(rendering.to_html(text, tokens) for text, tokens in passages),
        ]
    parts += _samples(model_dir)
    if results:
        parts += ["<h2>Evaluation</h2>", _metrics_table(results)]
    picture = _curves(model_dir, history.switches(config))
    if picture:
        parts += ["<h2>Training</h2>", picture]
    rows = "".join(
        f"<tr><td>{html.escape(key)}</td><td>{html.escape(json.dumps(value))}</td></tr>"
        for key, value in sorted(config.items())
    )
    parts += [
        "<h2>Settings</h2>",
        f"<details><summary>config.json</summary><table>{rows}</table></details>",
    ]
    with line_writer(output) as write:
        write(page(f"Pre-training of {model_dir.name}", parts))


def _samples(model_dir: Path) -> list[str]:
    """A passage as the discriminator saw it at some steps of the training."""
    path = model_dir / SAMPLES
    rows = list(read_metrics(path)) if path.is_file() else []
    if not rows:
        return []
    count = min(len(rows), _MAX_SAMPLES)
    shown = [rows[(len(rows) - 1) * i // max(1, count - 1)] for i in range(count)]
    parts = ["<h2>While it learned</h2>", rendering.html_legend(is_corrupted=True)]
    for row in shown:
        parts.append(f'<p class="summary">Step {row["step"]:,}</p>')
        text, tokens = rendering.of_sample(row["passages"][0])
        parts.append(rendering.to_html(text, tokens))
    return parts


def results_of(model_dir: Path) -> dict[str, Any]:
    """The evaluation of a run, as it was written; empty if there is none.

    Raises `UserError` (65) for a file that is not JSON.
    """
    path = model_dir / "results" / "unsup_results.json"
    if not path.is_file():
        return {}
    return read_json(path)


def data_of(results: dict[str, Any]) -> str:
    """Which data an evaluation is of: metrics of text that was learnt say little."""
    known = results.get("is_training_data")
    if known is None:
        return "the data that the run evaluates on"
    if known:
        return "the data that it was trained on"
    return "the data that eval_tfrecords names besides"


def _metrics_table(results: dict) -> str:
    rows = []
    for metric in ALL_METRICS:
        if metric.name in results["metrics"]:
            number = results["metrics"][metric.name]
            value = "not a number" if number is None else f"{number:.4f}"
            rows.append(
                f"<tr><td>{metric.name}</td><td>{value}</td><td>{metric.label}</td></tr>"
            )
    step = results.get("global_step", "")
    made_by = f"Checkpoint of step {step}, on" if step else "On"
    caption = f'<p class="summary">{made_by} {data_of(results)}.</p>'
    return f"{caption}<table>{''.join(rows)}</table>"


def _curves(model_dir: Path, switches: list[int]) -> str:
    """The loss curves as an image inside the page."""
    metrics = model_dir / "metrics.jsonl"
    if not metrics.is_file():
        return ""
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "curves.png"
        plot_curves(metrics, picture, "", ALL_METRICS, switches)
        if not picture.exists():
            return ""
        return image("loss curves", picture.read_bytes())


def image(name: str, png: bytes) -> str:
    """A picture inside a page."""
    data = base64.b64encode(png).decode()
    return f'<img alt="{name}" src="data:image/png;base64,{data}">'
