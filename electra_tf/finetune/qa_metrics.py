# SPDX-License-Identifier: Apache-2.0
"""Exact match and F1 of answers, as the official scripts of SQuAD and MRQA count them.

The three differ where an answer is empty after normalisation, and in what they do with
questions without a prediction.
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Mapping
from typing import Any

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(gold: str, predicted: str) -> float:
    """1 where both are the same after normalisation."""
    return float(normalize(gold) == normalize(predicted))


def f1(gold: str, predicted: str, empty_counts: bool) -> float:
    """F1 of the words.

    Args:
      empty_counts: whether two empty answers are the same: in SQuAD 2.0, but neither in
        1.1 nor in MRQA.
    """
    theirs, ours = normalize(gold).split(), normalize(predicted).split()
    if empty_counts and not (theirs and ours):
        return float(theirs == ours)
    shared = sum((collections.Counter(theirs) & collections.Counter(ours)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def evaluate_v1(
    answers: Mapping[str, list[str]],
    predictions: Mapping[str, str],
    skip_unanswered: bool = False,
) -> dict[str, float]:
    """exact_match and f1 of SQuAD 1.1; with `skip_unanswered`, of MRQA.

    Args:
      answers: question -> right answers.
      predictions: question -> answer; one without counts as wrong, or is skipped.
    """
    totals = {"exact_match": 0.0, "f1": 0.0}
    count = 0
    for question, golds in answers.items():
        if question not in predictions:
            count += not skip_unanswered
            continue
        count += 1
        ours = predictions[question]
        totals["exact_match"] += max((exact(gold, ours) for gold in golds), default=0.0)
        totals["f1"] += max((f1(gold, ours, False) for gold in golds), default=0.0)
    return {name: 100.0 * total / max(count, 1) for name, total in totals.items()}


def evaluate_v2(
    answers: Mapping[str, list[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    threshold: float,
) -> dict[str, float]:
    """The official SQuAD 2.0 results.

    Args:
      answers: question -> right answers; none for one that cannot be answered.
      null_odds: question -> score of "cannot be answered".
      threshold: above it, a question counts as said to be unanswerable.
    """
    has_answer = {question: bool(golds) for question, golds in answers.items()}
    scores: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for question, golds in answers.items():
        if question in predictions:
            golds = [gold for gold in golds if normalize(gold)] or [""]
            ours = predictions[question]
            scores["exact"][question] = max(exact(gold, ours) for gold in golds)
            scores["f1"][question] = max(f1(gold, ours, True) for gold in golds)
    decided = {
        name: {
            question: float(not has_answer[question])
            if null_odds[question] > threshold
            else value
            for question, value in of_metric.items()
        }
        for name, of_metric in scores.items()
    }
    results: dict[str, float] = {}
    for prefix, wanted in (("", None), ("HasAns_", True), ("NoAns_", False)):
        chosen = [q for q in decided["f1"] if wanted in (None, has_answer[q])]
        if not chosen and wanted is not None:
            continue
        for name, of_metric in decided.items():
            total = sum(of_metric[q] for q in chosen)
            results[prefix + name] = 100.0 * total / max(len(chosen), 1)
        results[f"{prefix}total"] = float(len(chosen))
    for name, of_metric in scores.items():
        best, at = best_threshold(of_metric, predictions, null_odds, has_answer)
        results |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return dict(sorted(results.items()))


def best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, Any],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """The best score that a threshold on the null odds can give, and the threshold."""
    current = best = float(sum(not has for has in has_answer.values()))
    at = 0.0
    for question in sorted(null_odds, key=null_odds.get):
        if question not in scores:
            continue
        if has_answer[question]:
            current += scores[question]
        elif predictions[question]:
            current -= 1
        if current > best:
            best, at = current, null_odds[question]
    return 100.0 * best / max(len(scores), 1), float(at)
