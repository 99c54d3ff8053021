# SPDX-License-Identifier: Apache-2.0
"""Table and picture of an experiment, and whether a measure can tell models apart."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # before an installed electra_tf

from electra_tf.storage.files import atomic_write  # noqa: E402
from electra_tf.train.reporting import PALETTE, dress, new_figure, png_of  # noqa: E402

# A measure is fit if its spread is below this part of what pre-training brings.
_FIT = 1 / 3


class Variant(NamedTuple):
    """What is compared.

    Attributes:
      hparams: of pre-training, beside the scale's recipe.
      budget: part of the recipe's FLOPs that it takes; 0: random weights.
      line: the line of the picture that it is on, for pictures of lines.
      x: its place there; None: its FLOPs.
      paper: the paper's score, where it gives one.
    """

    name: str
    hparams: dict[str, Any] = {}
    budget: float = 1.0
    line: str = ""
    x: float | None = None
    paper: float | None = None


RANDOM = Variant("Random weights", budget=0)


class Comparison(NamedTuple):
    """An experiment.

    Attributes:
      source: what of which paper it repeats.
      x_label: what the picture's lines go over; "": bars.
      tuning: to choose hparams by: scored on other data than results are.
      recipes: of the scales that it has of its own. Then pairs are measured, without
        random weights, which have half of them right.
    """

    name: str
    title: str
    source: str
    variants: Sequence[Variant]
    x_label: str = ""
    tuning: bool = False
    recipes: Mapping[str, str] = {}


class Row(NamedTuple):
    """What a variant reached: measure -> a score for each seed that is finished.

    All measures have the same seeds, in the same order.
    """

    variant: Variant
    steps: int
    flops: float
    scores: dict[str, list[float]]


def fitness(rows: Sequence[Row], measure: str) -> tuple[float, float, bool] | None:
    """Spread over seeds, what pre-training brings, whether models can be told apart.

    The spread is that of all variants that are pre-trained with the whole budget, or of
    random weights if theirs is larger; the difference that of the best variant and
    random weights. None if too few runs are finished.
    """
    trained = [r.scores[measure] for r in rows if r.variant.budget >= 1]
    trained = [scores for scores in trained if len(scores) > 1]
    random = [r.scores[measure] for r in rows if r.variant == RANDOM]
    if not trained or not random or len(random[0]) < 2:
        return None
    difference = max(map(statistics.fmean, trained)) - statistics.fmean(random[0])
    spread = max(_pooled(trained), statistics.stdev(random[0]))
    return spread, difference, spread < _FIT * difference


def _pooled(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation within groups."""
    squares = sum(statistics.variance(g) * (len(g) - 1) for g in groups)
    return math.sqrt(squares / sum(len(g) - 1 for g in groups))


def defined(
    found: Mapping[str, Mapping[str, float | None]], measures: Sequence[str]
) -> tuple[dict[str, list[float]], list[str]]:
    """The scores of a `Row`, and the runs that are left out of it.

    Args:
      found: run -> measure -> score, of finished runs; None: it is undefined,
        as a correlation with a constant is.
    """
    finished = {k: v for k, v in found.items() if set(measures) <= v.keys()}
    whole = [v for v in finished.values() if None not in v.values()]
    left_out = [k for k, v in finished.items() if None in v.values()]
    return {name: [v[name] for v in whole] for name in measures}, left_out


def write(
    stem: Path,
    comparison: Comparison,
    rows: Sequence[Row],
    metrics: Mapping[str, str],
    head: str,
) -> str:
    """Writes <stem>.md and <stem>.png; returns the table.

    Args:
      metrics: measure -> the metric that it is.
      head: a sentence with scale and budget.
    """
    notes, fit = [], []
    for name, metric in metrics.items():
        found = fitness(rows, name)
        if comparison.recipes:
            fit.append(name)
            continue
        if found is None:
            note = f"{name}: whether it can tell models apart takes two seeds of each."
            is_fit = True
        else:
            spread, difference, is_fit = found
            verdict = "can tell models apart."
            if not is_fit:
                verdict = "can not tell models apart and is not reported."
            note = (
                f"{name} ({metric}): spread over seeds {spread:.2f}, the best variant "
                f"against random weights {difference:+.2f}: it {verdict}"
            )
        notes.append(note)
        if is_fit:
            fit.append(name)
    lines = [f"## {comparison.title}", "", f"{comparison.source}. {head}."]
    lines += [
        "",
        *table(rows, fit, not comparison.recipes),
        "",
        *(f"- {note}" for note in notes),
    ]
    atomic_write(stem.with_suffix(".md"), "\n".join(lines) + "\n")
    drawn = stem.with_suffix(".png")
    if fit and any(scores for row in rows for scores in row.scores.values()):
        shown = {name: metrics[name] for name in fit if metrics[name] != "loss"}
        atomic_write(drawn, picture(comparison, rows, shown))
    else:
        drawn.unlink(missing_ok=True)  # of fewer runs, and no part of this table
    return "\n".join(lines)


def table(
    rows: Sequence[Row], measures: Sequence[str], has_mean: bool = True
) -> list[str]:
    """Markdown: mean and standard error over the seeds, beside the paper's score."""
    averages = ["mean"] if has_mean and len(measures) > 1 else []
    heads = ["", "FLOPs", "steps", "seeds", *measures, *averages, "paper"]
    lines = []
    for row in rows:
        own = [row.scores[name] for name in measures]
        if averages:
            own.append([statistics.fmean(s) for s in zip(*own, strict=True)])
        cells = [mean_with_error(scores) for scores in own]
        seeds = str(max(map(len, row.scores.values()), default=0))
        flops = f"{row.flops:.3g}" if row.flops else "0"
        paper = "" if row.variant.paper is None else f"{row.variant.paper:.1f}"
        lines.append([row.variant.name, flops, f"{row.steps:,}", seeds, *cells, paper])
    return markdown(heads, lines)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = (head, ["---"] * len(head), *rows)
    return [f"| {' | '.join(line)} |" for line in lines]


def mean_with_error(scores: Sequence[float]) -> str:
    """Mean and standard error of scores, as far as there are any."""
    if not scores:
        return ""
    error = standard_error(scores)
    mean = f"{statistics.fmean(scores):.2f}"
    return mean if error is None else f"{mean} ± {error:.2f}"


def standard_error(scores: Sequence[float]) -> float | None:
    """Of the mean; None for a single score."""
    if len(scores) < 2:
        return None
    return statistics.stdev(scores) / math.sqrt(len(scores))


def picture(
    comparison: Comparison, rows: Sequence[Row], measures: Mapping[str, str]
) -> bytes:
    """A PNG with a panel for each measure: points, or lines as the paper has them.

    Args:
      measures: measure -> the metric that it is.
    """
    count = len(measures)
    columns = min(count, 3)
    size = (1 + 4.5 * columns, 0.6 + 3.6 * math.ceil(count / columns))
    figure = new_figure(size)
    figure.suptitle(comparison.title, fontsize=12)
    has_lines = bool(comparison.x_label)
    draw = _draw_lines if has_lines else _draw_points
    for number, (name, metric) in enumerate(measures.items(), start=1):
        axes = figure.add_subplot(math.ceil(count / columns), columns, number)
        draw(axes, [row for row in rows if row.scores[name]], name)
        dress(axes, name, comparison.x_label if has_lines else metric)
        if has_lines:
            axes.set_ylabel(metric, fontsize=9)
    if has_lines:  # One for all panels, beside them: inside it would lie on curves.
        lines = axes.get_legend_handles_labels()
        figure.legend(*lines, loc="outside lower center", ncols=6, frameon=False)
    return png_of(figure)


def _draw_points(axes, rows: Sequence[Row], measure: str) -> None:
    # Points, since bars would have to begin at 0; without an error for one seed.
    for place, row in enumerate(rows):
        scores = row.scores[measure]
        colour = "#9aa3ad" if row.variant == RANDOM else PALETTE[0]
        look = {"fmt": "o", "color": colour, "capsize": 3}
        mean, error = statistics.fmean(scores), standard_error(scores)
        axes.errorbar(mean, place, xerr=error, **look)
    axes.set_yticks(range(len(rows)), [row.variant.name for row in rows])
    axes.invert_yaxis()
    axes.margins(0.1, 0.15)


def _place(row: Row) -> float:
    return row.flops if row.variant.x is None else row.variant.x


def _draw_lines(axes, rows: Sequence[Row], measure: str) -> None:
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row.variant.line, []).append(row)
    for number, (line, own) in enumerate(lines.items()):
        own = sorted(own, key=_place)
        means = [statistics.fmean(row.scores[measure]) for row in own]
        if own[0].variant == RANDOM:
            axes.axhline(means[0], color="#9aa3ad", linestyle=":", label=RANDOM.name)
            continue
        places = [_place(row) for row in own]
        errors = [standard_error(row.scores[measure]) or 0.0 for row in own]
        colour = PALETTE[number % len(PALETTE)]
        style = {"color": colour, "marker": "o", "capsize": 3, "label": line}
        axes.errorbar(places, means, errors, **style)
    if all(row.variant.x is None for row in rows):
        axes.set_xscale("log")
