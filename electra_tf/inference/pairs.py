# SPDX-License-Identifier: Apache-2.0
"""Minimal pairs: in how many of them has the good text the higher score?

Rows of BLiMP (Warstadt et al., TACL 2020), or of the same form:

    {"sentence_good": "Dogs bark.", "sentence_bad": "Dogs barks.", "UID": "agreement"}
    {"good": "Dogs bark.", "bad": "Dogs barks.", "set": "agreement"}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.console import Console
from electra_tf.inference.model import Model
from electra_tf.inference.scoring import read_rows

_KEYS = ("sentence_good", "sentence_bad", "UID"), ("good", "bad", "set")
_FORM = '{"sentence_good": "a text", "sentence_bad": "a text", "UID": "its set"}'
_DRAWS = 1000  # of the bootstrap
# Scores of one text in two batches differ by less.
_EQUAL = 1e-4


class Pair(NamedTuple):
    """Two texts that differ in what makes one of them wrong."""

    good: str
    bad: str
    set: str


def read_pairs(path: str | None, encoding_errors: str = "strict") -> list[Pair]:
    """Reads all pairs of a file, in order; see `scoring.read_rows`."""
    return read_rows(path, encoding_errors, _pair, _FORM)


def _pair(row: dict[str, Any]) -> Pair:
    found = (Pair(*map(row.get, keys)) for keys in _KEYS if row.keys() >= {*keys})
    pair = next(found, Pair("", "", ""))
    if not all(isinstance(value, str) and value.strip() for value in pair):
        raise TypeError("a text or the name of the set is missing")
    return pair


def compare(
    pairs: Sequence[Pair], model: Model, method: str | None, console: Console
) -> Iterator[float]:
    """Yields how right each pair's scores are: 1, or 0.5 if they are equal, or 0."""
    scored = model.score_texts([t for pair in pairs for t in pair[:2]], method)
    for number, (good, bad) in enumerate(zip(scored, scored, strict=True), 1):
        console.tick(f"{number:,} of {len(pairs):,} pairs")
        difference = good.score - bad.score
        yield 0.5 if abs(difference) < _EQUAL else float(difference > 0)


def summary(pairs: Sequence[Pair], right: Sequence[float]) -> dict[str, Any]:
    """The mean over sets, and each of them in the order of the file; in percent.

    Standard errors are by bootstrap: the pairs of each set are drawn again.
    """
    by_set: dict[str, list[float]] = {}
    for pair, value in zip(pairs, right, strict=True):
        by_set.setdefault(pair.set, []).append(100 * value)
    draw, sets, drawn = np.random.default_rng(0), {}, []
    for name, values in by_set.items():
        drawn.append(draw.choice(values, [_DRAWS, len(values)]).mean(axis=1))
        sets[name] = _row(len(values), np.mean(values), drawn[-1])
    mean = np.mean([np.mean(values) for values in by_set.values()])
    return _row(len(pairs), mean, np.mean(drawn, axis=0)) | {"sets": sets}


def _row(count: int, accuracy: Any, drawn: np.ndarray) -> dict[str, Any]:
    numbers = {"accuracy": accuracy, "standard_error": drawn.std(ddof=1)}
    return {"pairs": count} | {k: round(float(v), 3) for k, v in numbers.items()}
