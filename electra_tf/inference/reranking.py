# SPDX-License-Identifier: Apache-2.0
"""Ranks n-best lists again, by given score + weight x the score of a language model.

Both scores are sums of natural logarithms, so this is a product of two models, one of
them raised to the power of the weight.  Weight 0 is the order of the given scores.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from electra_tf.errors import UserError
from electra_tf.inference import scoring
from electra_tf.inference.nbest import NBestList
from electra_tf.text.json_lines import json_line


class Ranked(NamedTuple):
    """A hypothesis with its place in the given list and both scores."""

    index: int
    text: str
    given: float
    model: float
    total: float


class WordErrors(NamedTuple):
    """Word errors of one hypothesis for each of some references."""

    errors: int
    words: int  # of the references

    @property
    def rate(self) -> float:
        """Errors per word of the references; infinite if these have none."""
        if self.words == 0:
            return math.inf if self.errors else 0.0
        return self.errors / self.words


class Tuned(NamedTuple):
    """The best weight and the range of weights that give the same errors."""

    weight: float
    low: float
    high: float  # may be infinite
    errors: WordErrors


def rank(
    given: Sequence[float], model: Sequence[float], weight: float, texts: Sequence[str]
) -> list[Ranked]:
    """The hypotheses of a list, the best first; ties keep their order.

    Raises `UserError` if a score is not finite: an order would be an accident.
    """
    rows = [
        Ranked(i, text, g, m, g + weight * m)
        for i, (text, g, m) in enumerate(zip(texts, given, model, strict=True))
    ]
    if not all(math.isfinite(row.total) for row in rows):
        total = next(row for row in rows if not math.isfinite(row.total))
        raise UserError(
            f"{total.given:g} + {weight:g} x {total.model:g} is not a finite "
            f"number, for {total.text[:60]!r}."
        )
    return sorted(rows, key=lambda row: -row.total)


def rank_list(one: NBestList, model: Sequence[float], weight: float) -> list[Ranked]:
    """The hypotheses of an n-best list, the best first; see `rank`."""
    given = [hypothesis.score for hypothesis in one.hypotheses]
    texts = [hypothesis.text for hypothesis in one.hypotheses]
    return rank(given, model, weight, texts)


def lines(
    lists: Sequence[NBestList],
    model: Sequence[Sequence[float]],
    weight: float,
    best_only: bool,
) -> Iterator[str]:
    """Each list in its new order as JSON, or its id and best text."""
    for one, scores in zip(lists, model, strict=True):
        ranked = rank_list(one, scores, weight)
        if best_only:
            best = f"{one.id} {' '.join(ranked[0].text.split())}".rstrip()
            yield best.encode("utf-8", "replace").decode()  # half a character
        else:
            yield json_line(to_json(one, ranked))


def to_json(one: NBestList, ranked: Sequence[Ranked]) -> dict[str, Any]:
    """A list in its new order, in the form that it is read in."""
    hypotheses = [
        one.hypotheses[row.index].row
        | {"text": row.text, "score": row.given}
        | {"model_score": round(row.model, 6), "total": round(row.total, 6)}
        for row in ranked
    ]
    whole = {"id": one.id} | one.row | {"hypotheses": hypotheses}
    if one.reference is not None:
        whole["reference"] = one.reference
    return whole


def word_errors(reference: str, hypothesis: str) -> int:
    """Words to substitute, delete or insert to make a reference of a hypothesis."""
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
    """Word errors of each hypothesis of each list; None where a reference is missing.

    Raises `UserError` naming a list without reference if the errors are needed.
    Otherwise a line on stderr counts these lists, unless they all are.
    """
    missing = [one.id for one in lists if one.reference is None]
    if missing and is_needed:
        raise UserError(
            f"{missing[0]!r} has no reference"
            f"{f', nor have {len(missing) - 1} others' if missing[1:] else ''}: "
            "word errors cannot be counted.\nGive --references, or a "
            '"reference" with every list.'
        )
    if missing:
        if len(missing) < len(lists):
            count = len(missing)
            print(
                f"No word error rate; lists without a reference: {count}.",
                file=sys.stderr,
            )
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
) -> WordErrors:
    """Word errors of the best hypotheses at a weight."""
    total = 0
    for one, scores, counts in zip(lists, model, errors, strict=True):
        total += counts[rank_list(one, scores, weight)[0].index]
    return WordErrors(total, _num_words(lists))


def describe_lists(
    lists: Sequence[NBestList], weight: float, tuned: Tuned | None
) -> str:
    """How many lists there are, and the weight; of one that was found, its range."""
    single = sum(len(one.hypotheses) == 1 for one in lists)
    found = ""
    if tuned:
        found = (
            f", found: the errors are the same from {tuned.low:.6g} to {tuned.high:.6g}"
        )
    return (
        f"Lists: {len(lists)}, with one hypothesis only: {single}; "
        f"weight {weight:.6g}{found}."
    )


def describe_errors(
    lists: Sequence[NBestList],
    model: Sequence[Sequence[float]],
    errors: Sequence[Sequence[int]],
    weight: float,
) -> str:
    """Word error rates before and after, and the least that these lists allow."""
    before = chosen_errors(lists, model, errors, 0.0)
    after = chosen_errors(lists, model, errors, weight)
    least = WordErrors(sum(map(min, errors)), before.words)
    return (
        f"Word error rate: {before.rate:.2%} by given score, {after.rate:.2%} "
        f"reranked; {least.rate:.2%} with the best of each list "
        f"({before.errors}, {after.errors}, {least.errors} of {before.words} words)."
    )


def _num_words(lists: Sequence[NBestList]) -> int:
    return sum(len(one.reference.split()) for one in lists)


def tune(
    lists: Sequence[NBestList],
    model: Sequence[Sequence[float]],
    errors: Sequence[Sequence[int]],
) -> Tuned:
    """The weight, at least 0, with the fewest word errors: exactly, without a grid.

    A hypothesis' total is a line in the weight, so the best one changes only where two
    lines cross; between crossings the errors are constant (Och 2003, section 4).  Of
    equal ranges the widest wins, and its middle is the weight: what depends least on
    the list at hand.  In a range without end it is twice its beginning, at least 1.
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
    return Tuned(weight, low, high, WordErrors(fewest, _num_words(lists)))


def best_lines(
    given: Sequence[float], model: Sequence[float]
) -> list[tuple[float, int]]:
    """Which hypothesis is best from which weight on: [(0, i), (weight, j), ...]."""
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
        # Of lines that cross at one weight the steepest is the best after it.
        weight, best = min(crossings, key=lambda c: (c[0], -model[c[1]]))
        found.append((weight, best))


def score_lists(
    lists: Sequence[NBestList], scorer: scoring.TextScorer, overlap: int = 0
) -> list[list[float]]:
    """A model's scores of the hypotheses; says on stderr which of them say nothing."""
    texts = (hypothesis.text for one in lists for hypothesis in one.hypotheses)
    scored = list(scorer.score_texts(texts, overlap))
    empty = sum(not one.num_tokens for one in scored)
    scoring.warn_of_nothing(empty, sum(one.says_nothing for one in scored) - empty)
    scores = (one.score for one in scored)
    return [list(itertools.islice(scores, len(one.hypotheses))) for one in lists]
