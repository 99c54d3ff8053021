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
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from electra_tf.inference import scoring
from electra_tf.inference.model import Model
from electra_tf.text.unicode_classes import is_unspaced

_FORM = '{"hypotheses": [{"text": "a cat", "score": -3.5}, ...]}'
# Ten a decade, from 0.01 to 10.
GRID = (0.0, *(float(f"{10 ** (k / 10):.2g}") for k in range(-20, 11)))


class NBestList(NamedTuple):
    """The hypotheses for one utterance, in the order of the file."""

    texts: list[str]
    scores: list[float]  # higher is better
    reference: str | None
    row: dict[str, Any]  # the line


class Errors(NamedTuple):
    """The errors of each hypothesis of each list."""

    unit: str  # "word"; "character" if the references are in scripts without blanks
    counts: list[list[int]]
    total: int  # units of the references


def read_nbest(path: str | None, encoding_errors: str = "strict") -> list[NBestList]:
    """Reads all lists of a file, in order; see `scoring.read_rows`."""
    return scoring.read_rows(path, encoding_errors, _list_of, _FORM)


def _list_of(row: dict[str, Any]) -> NBestList:
    """The list of a line; raises one of JSON_ERRORS for anything else."""
    texts, reference = [one["text"] for one in row["hypotheses"]], row.get("reference")
    scores = [1.0 * one["score"] for one in row["hypotheses"]]
    are_texts = all(isinstance(text, str) for text in [*texts, reference or ""])
    if not (texts and are_texts and all(map(math.isfinite, scores))):
        raise TypeError("a text, a finite score or all hypotheses are missing")
    return NBestList(texts, scores, reference, row)


def _by_list(lists: Sequence[NBestList], values: Iterable) -> list[list]:
    values = iter(values)
    return [list(itertools.islice(values, len(one.texts))) for one in lists]


def score_lists(lists, model: Model, method: str | None, overlap=0) -> list[list]:
    """Scores the hypotheses; warns on stderr about texts without known tokens."""
    scored = model.score((text for one in lists for text in one.texts), method, overlap)
    counts = (scoring.counts_of(one._asdict()) for one in scored)
    scoring.warn_of_empty(sum(map(collections.Counter, counts), collections.Counter()))
    return _by_list(lists, (one.score for one in scored))


def rank(one: NBestList, model: Sequence[float], weight: float):
    """(total, index) of the hypotheses, the best first; ties keep their order."""
    totals = (a + weight * b for a, b in zip(one.scores, model, strict=True))
    return sorted(((t, i) for i, t in enumerate(totals)), key=lambda pair: -pair[0])


def reranked(lists, model, weight: float) -> Iterator[dict[str, Any]]:
    """Yields the JSON object of each list, its hypotheses in their new order.

    Args:
      lists: of `read_nbest`.
      model: of `score_lists`.
    """
    for one, scores in zip(lists, model, strict=True):
        hypotheses = [
            one.row["hypotheses"][i]
            | {"model_score": round(scores[i], 6), "total": round(total, 6)}
            for total, i in rank(one, scores, weight)
        ]
        yield one.row | {"hypotheses": hypotheses}


def count_errors(lists: Sequence[NBestList]) -> Errors | None:
    """Units to substitute, delete or insert; None if a reference is missing."""
    references = [one.reference for one in lists]
    if None in references:
        return None
    by_character = is_unspaced("".join(references))

    def split(texts: Iterable[str]) -> tf.SparseTensor:
        units = [list("".join(t.split())) if by_character else t.split() for t in texts]
        # `tf.ragged.constant` of the lists takes time in the square of their number.
        flat = tf.constant([*itertools.chain(*units)], tf.string)
        lengths = tf.constant([*map(len, units)], tf.int64)
        return tf.RaggedTensor.from_row_lengths(flat, lengths).to_sparse()

    texts = split(text for one in lists for text in one.texts)
    truth = split(one.reference for one in lists for _ in one.texts)
    counts = tf.edit_distance(texts, truth, normalize=False).numpy().astype(int)
    unit = "character" if by_character else "word"
    return Errors(unit, _by_list(lists, counts.tolist()), len(split(references).values))


def errors_at(lists, model, errors: Errors, weight: float) -> int:
    """Errors of the best hypotheses at a weight."""
    rows = zip(lists, model, errors.counts, strict=True)
    return sum(counts[rank(one, scores, weight)[0][1]] for one, scores, counts in rows)


def tune(lists, model, errors: Errors) -> float:
    """The weight of GRID with the fewest errors, of several the smallest."""
    return min(GRID, key=functools.partial(errors_at, lists, model, errors))


def describe(lists, model, errors: Errors, weight: float) -> str:
    """The error rates before and after, and the lowest possible with these lists."""
    counts = [errors_at(lists, model, errors, at) for at in (0.0, weight)]
    counts += [sum(map(min, errors.counts))]
    before, after, least = (f"{n / max(1, errors.total):.2%} ({n})" for n in counts)
    line = f"{errors.unit.capitalize()} error rate, of {errors.total} {errors.unit}s: "
    line += f"{before} by given score, {after} reranked; "
    return f"{line}{least} with the best of each list."
