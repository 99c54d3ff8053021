# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of README.md and docs/metrics.md.

  python docs/draw_pictures.py                        # detect.png
  python docs/draw_pictures.py HEALTHY COLLAPSED      # curves.png, of two runs

The runs are those of examples/tour.json, `"eval_every_steps": 100` and
`eval_tfrecords` of the unread novel; the second with `"learning_rate": 0.03`.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import electra_tf

ROOT = Path(__file__).resolve().parents[1]
# In each but the first a word is wrong; the last is missed.
TEXTS = (
    "She opened the door, and the old man came in.",
    "He put the letter in his was and went out.",
    "The two men walked along the road in the they.",
    "She opened the window and looked into the said.",
    "I do not know what you because.",
    "It was the first time that she had ever to him.",
)


def draw_detection() -> None:
    """What the discriminator of examples/novels_model says of each word."""
    model = electra_tf.load(str(ROOT / "examples" / "novels_model"))
    figure, axes = plt.subplots(figsize=(7.2, 2.3), dpi=200)
    axes.axis("off")
    colours = plt.get_cmap("OrRd")
    renderer = figure.canvas.get_renderer()
    for line, tokens in enumerate(model.detect(list(TEXTS))):
        x, y = 0.0, 1 - (line + 0.5) / len(TEXTS)
        for token in tokens:
            share = token.probability
            box = {"facecolor": colours(share * 0.8), "edgecolor": "none", "pad": 1.5}
            label = axes.text(x, y, token.text, fontsize=11, va="center", bbox=box)
            extent = label.get_window_extent(renderer)
            x = axes.transAxes.inverted().transform((extent.x1, 0))[0] + 0.012
            if share > 0.3:
                axes.text(x, y, f"{share:.2f}", fontsize=7, color="#8a2b0e", va="top")
                x += 0.045
    _save(figure, "detect.png")


def draw_curves(healthy: str, collapsed: str) -> None:
    """Four metrics of two runs; the AUC is of evaluations."""
    runs = {"healthy": (healthy, "#2b6cb0"), "collapsed": (collapsed, "#c0582b")}
    metrics = ("masked_lm_loss", "disc_loss", "disc_recall", "disc_auc_tokens")
    figure, axes = plt.subplots(1, 4, figsize=(10, 2.4), dpi=130, layout="tight")
    for label, (run, colour) in runs.items():
        for axis, metric in zip(axes, metrics, strict=True):
            evaluated = metric == "disc_auc_tokens"
            name = "evaluations.jsonl" if evaluated else "metrics.jsonl"
            rows = [json.loads(line) for line in (Path(run) / name).open()]
            steps = np.array([row["step"] for row in rows])
            values = np.array([row[metric] for row in rows])
            width = 1 if evaluated else 25  # each point is a mean of these steps
            count = len(values) // width * width
            means = values[:count].reshape(-1, width).mean(1)
            axis.plot(steps[width - 1 : count : width], means, colour, label=label)
            axis.set_title(metric, fontsize=9)
            axis.set_xlabel("step", fontsize=8)
            axis.tick_params(labelsize=7)
            axis.spines[["top", "right"]].set_visible(False)
    axes[2].set_ylim(bottom=-0.01)
    axes[3].set_ylim(0.45, 0.85)
    axes[0].legend(fontsize=8, frameon=False)
    _save(figure, "curves.png")


def _save(figure, name: str) -> None:
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / name, bbox_inches="tight", pad_inches=0.05)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        draw_curves(*sys.argv[1:])
    else:
        draw_detection()
