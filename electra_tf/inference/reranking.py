# SPDX-License-Identifier: Apache-2.0
"""Ranks n-best lists again, by given score + weight x the score of a language model.

Both scores are sums of natural logarithms, so this is a product of two models, one of
them raised to the power of the weight.  With weight 0 the given scores decide.

N-best lists are the output of a speech recogniser or translator: JSON lines, one list
a line, higher scores are better; "reference" may be left out, other keys are kept:

    {"id": "utt1", "hypotheses": [{"text": "a cat", "score": -3.5}, ...],
     "reference": "the cat"}
"""

from __future__ import annotations

import collections
import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError
from electra_tf.inference import scoring
from electra_tf.inference.model import Model
from electra_tf.text import corpus


class Hypothesis(NamedTuple):
    """A text with its score (higher is better) and its JSON object."""

    text: str
    score: float
    row: dict[str, Any]


class NBestList(NamedTuple):
    """The hypotheses for one utterance, in the order of the file."""

    id: str
    hypotheses: list[Hypothesis]
    reference: str | None
    row: dict[str, Any]


def read_nbest(
    path: str | os.PathLike | None, encoding_errors: str = "strict"
) -> list[NBestList]:
    """Reads all lists of a file, in order.

    Args:
      path: JSON lines; None: standard input.
      encoding_errors: see `corpus.read_lines`.

    Raises `UserError` naming file and line: a missing or repeated id, empty lists,
    scores that are not finite numbers.
    """
    name = corpus.STANDARD_INPUT if path is None else str(path)
    lists: dict[str, NBestList] = {}
    for number, line in enumerate(corpus.read_lines(path, encoding_errors), 1):
        if not line.strip():
            continue
        try:
            one = _list_of(json.loads(line))
            if one.id in lists:
                raise ValueError(f"id {one.id!r} again")
        except JSON_ERRORS as error:
            raise UserError(
                f"{name}, line {number}: not a list of the form "
                f'{{"id": ..., "hypotheses": [...]}} ({error}).\n'
                'A hypothesis has "text" and a finite "score".',
                EXIT_DAMAGED,
            ) from None
        lists[one.id] = one
    if not lists:
        raise UserError(f"{name} holds no lists.")
    return list(lists.values())


def _list_of(row: dict[str, Any]) -> NBestList:
    """The list of a line; raises one of JSON_ERRORS for anything else."""
    hypotheses = [Hypothesis(h["text"], 1.0 * h["score"], h) for h in row["hypotheses"]]
    texts = [row.get("reference") or "", *(one.text for one in hypotheses)]
    if not (row["id"] != "" and hypotheses and all(isinstance(t, str) for t in texts)):
        raise TypeError("an id, a text or all hypotheses are missing")
    if not all(math.isfinite(one.score) for one in hypotheses):
        raise TypeError("a score is not finite")
    return NBestList(str(row["id"]), hypotheses, row.get("reference"), row)


class Ranked(NamedTuple):
    """A hypothesis with its index in the given list and both scores."""

    index: int
    text: str
    given: float
    model: float
    total: float


class Tuned(NamedTuple):
    """The best weight and the range of weights that give the same errors."""

    weight: float
    low: float
    high: float  # may be infinite
    errors: int


def rank(one: NBestList, model: Sequence[float], weight: float) -> list[Ranked]:
    """The hypotheses of a list, the best first; ties keep their order.

    Raises `UserError` if a score is not finite.
    """
    rows = [
        Ranked(i, item.text, item.score, score, item.score + weight * score)
        for i, (item, score) in enumerate(zip(one.hypotheses, model, strict=True))
    ]
    for row in rows:
        if not math.isfinite(row.total):
            raise UserError(
                f"{row.given:g} + {weight:g} x {row.model:g} is not a finite number, "
                f"for {row.text[:60]!r}."
            )
    return sorted(rows, key=lambda row: -row.total)


def reranked(
    lists: Sequence[NBestList], model: Sequence[Sequence[float]], weight: float
) -> Iterator[dict[str, Any]]:
    """Yields the JSON object of each list, its hypotheses in their new order."""
    for one, scores in zip(lists, model, strict=True):
        hypotheses = [
            one.hypotheses[row.index].row
            | {"text": row.text, "score": row.given}
            | {"model_score": round(row.model, 6), "total": round(row.total, 6)}
            for row in rank(one, scores, weight)
        ]
        yield {"id": one.id} | one.row | {"hypotheses": hypotheses}


def word_errors(reference: str, hypothesis: str) -> int:
    """Words to substitute, delete or insert to turn a hypothesis into its reference."""
    words = hypothesis.split()
    distances = list(range(len(words) + 1))  # from the reference so far to words[:j]
    for i, word in enumerate(reference.split(), 1):
        before, distances[0] = distances[0], i
        for j, other in enumerate(words, 1):
            substituted = before + (word != other)
            before = distances[j]
            distances[j] = min(substituted, before + 1, distances[j - 1] + 1)
    return distances[-1]


def errors_of(lists: Sequence[NBestList], is_needed: bool) -> list[list[int]] | None:
    """Word errors of each hypothesis of each list; None if a reference is missing.

    Raises `UserError` naming such a list if the errors are needed.
    """
    missing = [one.id for one in lists if one.reference is None]
    if missing and is_needed:
        raise UserError(
            f"word errors cannot be counted: {missing[0]!r}, of {len(missing)}, has no "
            '"reference".'
        )
    if missing:
        return None
    return [
        [word_errors(one.reference, hypothesis.text) for hypothesis in one.hypotheses]
        for one in lists
    ]


def chosen_errors(
    lists: Sequence[NBestList],
    model: Sequence[Sequence[float]],
    errors: Sequence[Sequence[int]],
    weight: float,
) -> int:
    """Word errors of the best hypotheses at a weight."""
    rows = zip(lists, model, errors, strict=True)
    return sum(counts[rank(one, given, weight)[0].index] for one, given, counts in rows)


def describe(
    lists: Sequence[NBestList],
    model: Sequence[Sequence[float]],
    errors: Sequence[Sequence[int]] | None,
    weight: float,
    tuned: Tuned | None,
) -> Iterator[str]:
    """The number of lists, the weight, and the word error rates if known.

    Rates are those before, after, and the lowest possible with these lists.
    """
    single = sum(len(one.hypotheses) == 1 for one in lists)
    line = f"Lists: {len(lists)}, with one hypothesis only: {single}; "
    line += f"weight {weight:.6g}"
    if tuned:
        bounds = f"{tuned.low:.6g} to {tuned.high:.6g}"
        line += f", found: the errors are the same from {bounds}"
    yield f"{line}."
    if not errors:
        return
    words = sum(len(one.reference.split()) for one in lists)
    counts = [chosen_errors(lists, model, errors, at) for at in (0.0, weight)]
    counts.append(sum(map(min, errors)))
    before, after, least = (f"{count / max(1, words):.2%}" for count in counts)
    yield (
        f"Word error rate: {before} by given score, {after} reranked; {least} with the "
        f"best of each list ({', '.join(map(str, counts))} of {words} words)."
    )


def tune(
    lists: Sequence[NBestList],
    model: Sequence[Sequence[float]],
    errors: Sequence[Sequence[int]],
) -> Tuned:
    """The weight, at least 0, with the fewest word errors: exactly, without a grid.

    A hypothesis' total is a line in the weight, so the best one changes only where two
    lines cross; between crossings the errors are constant (Och 2003, section 4).  Of
    equal ranges the widest wins, and the weight is its middle, which depends least on
    these lists.  In an unbounded range it is twice the lower bound, at least 1.
    """
    total, changes = 0, []  # (weight, change of the errors)
    for one, scores, counts in zip(lists, model, errors, strict=True):
        given = [hypothesis.score for hypothesis in one.hypotheses]
        line = best_lines(given, scores)
        total += counts[line[0][1]]
        for (_, before), (weight, after) in itertools.pairwise(line):
            changes.append((weight, counts[after] - counts[before]))
    ranges, low = [], 0.0  # (low, high, errors)
    for weight, group in itertools.groupby(sorted(changes), lambda c: c[0]):
        change = sum(difference for _, difference in group)
        if change and weight > 0:
            ranges.append((low, weight, total))
            low = weight
        total += change
    ranges.append((low, math.inf, total))
    low, high, fewest = min(ranges, key=lambda r: (r[2], r[0] - r[1]))
    weight = (low + high) / 2 if high < math.inf else max(1.0, 2 * low)
    return Tuned(weight, low, high, fewest)


def best_lines(
    given: Sequence[float], model: Sequence[float]
) -> list[tuple[float, int]]:
    """The best hypothesis from each weight on: [(0, i), (weight, j), ...]."""
    best = max(range(len(given)), key=lambda i: (given[i], model[i]))
    found, weight = [(0.0, best)], 0.0
    while True:
        crossings = [
            (max(weight, (given[best] - given[i]) / (model[i] - model[best])), i)
            for i in range(len(given))
            if model[i] > model[best]
        ]
        if not crossings:
            return found
        # If several lines cross at one weight, the steepest is the best after it.
        weight, best = min(crossings, key=lambda c: (c[0], -model[c[1]]))
        found.append((weight, best))


def score_lists(
    lists: Sequence[NBestList], model: Model, method: str | None, overlap: int = 0
) -> list[list[float]]:
    """Scores the hypotheses; warns on stderr about texts without known tokens."""
    texts = (hypothesis.text for one in lists for hypothesis in one.hypotheses)
    scored = model.score(texts, method, overlap)
    counts: collections.Counter[str] = collections.Counter()
    for one in scored:
        counts.update(scoring.counts_of(one.num_tokens, one.num_unknown))
    scoring.warn_of_empty(counts)
    scores = (one.score for one in scored)
    return [list(itertools.islice(scores, len(one.hypotheses))) for one in lists]
