# SPDX-License-Identifier: Apache-2.0
"""From the outputs of windows to answers, and to their official scores.

Exact match and F1 are those of the scripts of SQuAD and MRQA, which differ where an
answer is empty after normalisation, and in questions without a prediction; by
characters those of CMRC 2018, which DRCD's users take as well.
"""

from __future__ import annotations

import collections
import difflib
import functools
import itertools
import math
import re
import string
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.task import Scorer
from electra_tf.text.tokenization import basic_tokenize
from electra_tf.text.unicode_classes import UNSPACED
from electra_tf.text.vocabulary import TokenizerConfig

# The answer where no span of a document is possible, as in the original.
NO_SPAN = "empty"


class Answer(NamedTuple):
    """A possible answer to one question."""

    text: str
    start_logit: float
    end_logit: float
    tokens: tuple[int, int] | None = None  # first and last one, of the document
    log_total: float = 0.0  # of the odds of all starts and ends of its window

    @property
    def score(self) -> float:
        """Of start and end together."""
        return self.start_logit + self.end_logit

    @property
    def probability(self) -> float:
        """Of start times end, in its window."""
        return math.exp(self.score - self.log_total)


class Window(NamedTuple):
    """A window on a document."""

    places: range  # the tokens of the document that it shows
    shift: int  # from a token's place in the document to that in the sequence


def best_indexes(scores: np.ndarray, count: int) -> list[int]:
    """The indices of the highest scores, the first of equals first."""
    return np.argsort(-np.asarray(scores), kind="stable")[:count].tolist()


def softmax(scores: Sequence[float]) -> np.ndarray:
    """Shares of scores, float64."""
    odds = np.exp(np.asarray(scores, np.float64) - max(scores, default=0.0))
    return odds / odds.sum()


def nbest(
    windows: Sequence[Window],
    outputs: Sequence[dict[str, Any]],
    text_of: Callable[[int, int], str],
    config: FinetuningConfig,
) -> list[Answer]:
    """The best different answers to a question, best first; at least one.

    Args:
      windows: the windows on its document.
      outputs: the head's outputs for each.
      text_of: a function from a span's first and last token to its text.
    """
    shown, spans = [window.places for window in windows], []
    for number, (window, output) in enumerate(zip(windows, outputs, strict=True)):
        for start, end, *scores in _spans(output, config):
            first, last = start - window.shift, end - window.shift
            if (
                first in window.places
                and last in window.places
                and 0 <= last - first < config.max_answer_length
                and is_max_context(shown, number, first)
            ):
                spans.append((first, last, *scores))
    spans.sort(key=lambda span: span[2] + span[3], reverse=True)
    found: dict[str, Answer] = {}
    for first, last, *logits, log_total in spans:
        if len(found) >= config.n_best_size:
            break
        text = text_of(first, last)
        if text not in found:
            found[text] = Answer(text, *logits, (first, last), log_total)
    return list(found.values()) or [Answer(NO_SPAN, 0.0, 0.0)]


def original_text(
    tokens: Sequence[str], words: Sequence[str], config: TokenizerConfig
) -> str:
    """The original's way: the part of the words that are the tokens of a span.

    Args:
      config: of the tokenizer, by whose rules the tokens are found in the words.
    """
    text = " ".join(tokens).replace(" ##", "").replace("##", "")
    return final_text(" ".join(text.split()), " ".join(words), *config)


def _spans(output: dict[str, Any], config: FinetuningConfig):
    """(start, end, their two scores, `Answer.log_total`), not all of them possible."""
    if config.joint_prediction:
        ends, end_scores = output["end_top_index"], output["end_top_log_probs"]
        for i, start in enumerate(output["start_top_index"]):
            score = float(output["start_top_log_probs"][i])
            for j, end in enumerate(ends[i]):
                yield int(start), int(end), score, float(end_scores[i][j]), 0.0
        return
    logits = output["start_logits"], output["end_logits"]
    log_total = float(sum(map(np.logaddexp.reduce, logits)))
    starts, last = (best_indexes(x, config.n_best_size) for x in logits)
    for start in starts:
        for end in last:
            scores = float(logits[0][start]), float(logits[1][end])
            yield start, end, *scores, log_total


def final_text(
    predicted: str, original: str, do_lower_case: bool, strip_accents: bool = True
) -> str:
    """The part of `original` that `predicted`, in normalised tokens, stands for.

    Normalising a text keeps the order of its characters: the place is found by
    counting those that are not spaces. Where that does not work out, all of `original`.
    """
    config = TokenizerConfig(do_lower_case, strip_accents)
    normal = " ".join(basic_tokenize(original, config))
    start = normal.find(predicted)
    if start < 0:
        return original
    theirs = [i for i, c in enumerate(original) if c != " "]
    ours = [i for i, c in enumerate(normal) if c != " "]
    if len(theirs) != len(ours):
        return original
    place = {i: number for number, i in enumerate(ours)}
    first, last = place.get(start), place.get(start + len(predicted) - 1)
    if first is None or last is None:
        return original
    return original[theirs[first] : theirs[last] + 1]


def is_max_context(windows: Sequence[range], index: int, place: int) -> bool:
    """Whether window `index` shows the most around token `place` of the document.

    Args:
      windows: the tokens in each.
    """
    around = {
        number: min(place - shown[0], shown[-1] - place) + 0.01 * len(shown)
        for number, shown in enumerate(windows)
        if place in shown
    }
    return len(windows) == 1 or bool(around) and max(around, key=around.get) == index


def improve_span(
    document: Sequence[Any], start: int, end: int, answer: Sequence[Any]
) -> tuple[int, int]:
    """The tokens within start..end that are exactly the answer's, else start, end."""
    answer, count = list(answer), len(answer)
    for first in range(start, end - count + 2):
        if answer and list(document[first : first + count]) == answer:
            return first, first + count - 1
    return start, end


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
CHARACTER_F1 = "f1 (characters)"
# The signs that CMRC's script removes, but for punctuation outside ASCII.
_SIGNS = "-:_*^/\\~`+=\uff5e"
_WORD = f"(?:(?!{UNSPACED})\\w)+"
_SEGMENTS = re.compile(rf"{UNSPACED}|{_WORD}(?:[.,]{_WORD})*|[^\w\s]")


def normalize(text: str, by: str = "words") -> str:
    """Lower case, without punctuation, articles and repeated white space.

    Args:
      by: for "characters" without CMRC's signs and all punctuation outside ASCII.
    """
    if by == "characters":
        return "".join(c for c in text.lower().strip() if not _is_sign(c))
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _is_sign(c: str) -> bool:
    return c in _SIGNS or not c.isascii() and unicodedata.category(c)[0] == "P"


def exact(gold: str, predicted: str, by: str = "words") -> float:
    """1 where both are the same after normalisation."""
    return float(normalize(gold, by) == normalize(predicted, by))


def f1(gold: str, predicted: str, empty_counts: bool, by: str = "words") -> float:
    """F1 of the words.

    Args:
      empty_counts: whether two empty answers are the same: in SQuAD 2.0, but neither in
        1.1 nor in MRQA.
      by: for "characters" F1 of the longest common part; a word in a script with blanks
        counts as one character.
    """
    split = _SEGMENTS.findall if by == "characters" else str.split
    theirs, ours = (split(normalize(text, by)) for text in (gold, predicted))
    if empty_counts and not (theirs and ours):
        return float(theirs == ours)
    if by == "characters":
        matcher = difflib.SequenceMatcher(None, theirs, ours, autojunk=False)
        shared = matcher.find_longest_match().size
    else:
        shared = sum((collections.Counter(theirs) & collections.Counter(ours)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def evaluate_v1(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    skip_unanswered: bool = False,
    by: str = "words",
) -> dict[str, float]:
    """exact_match and f1 of SQuAD 1.1; with `skip_unanswered`, of MRQA.

    Args:
      answers: question -> right answers.
      predictions: question -> answer; one without counts as wrong, or is skipped.
      by: see `f1`.
    """
    totals = {"exact_match": 0.0, "f1": 0.0}
    answered = [question for question in answers if question in predictions]
    for question in answered:
        ours, golds = predictions[question], answers[question]
        exacts = (exact(gold, ours, by) for gold in golds)
        totals["exact_match"] += max(exacts, default=0.0)
        totals["f1"] += max((f1(gold, ours, False, by) for gold in golds), default=0.0)
    count = len(answered if skip_unanswered else answers)
    return {name: 100.0 * total / max(count, 1) for name, total in totals.items()}


def evaluate_v2(
    answers: Mapping[str, Sequence[str]],
    predictions: Mapping[str, str],
    null_odds: Mapping[str, float],
    threshold: float,
    by: str = "words",
) -> dict[str, float]:
    """The official SQuAD 2.0 results.

    Args:
      answers: question -> right answers; none for one that cannot be answered.
      null_odds: question -> score of "cannot be answered".
      threshold: above it, a question counts as unanswerable.
      by: see `f1`.
    """
    has_answer = {question: bool(golds) for question, golds in answers.items()}
    scores: dict[str, dict[str, float]] = {"exact": {}, "f1": {}}
    for question in answers.keys() & predictions.keys():
        golds = [gold for gold in answers[question] if normalize(gold, by)] or [""]
        ours = predictions[question]
        scores["exact"][question] = max(exact(gold, ours, by) for gold in golds)
        scores["f1"][question] = max(f1(gold, ours, True, by) for gold in golds)
    results: dict[str, float] = {}
    groups = {"": (True, False), "HasAns_": (True,), "NoAns_": (False,)}
    for prefix, wanted in groups.items():
        chosen = [q for q in answers if q in scores["f1"] and has_answer[q] in wanted]
        if prefix and not chosen:
            continue
        for name, found in scores.items():
            total = sum(
                float(not has_answer[q]) if null_odds[q] > threshold else found[q]
                for q in chosen
            )
            results[prefix + name] = 100.0 * total / max(len(chosen), 1)
        results[f"{prefix}total"] = float(len(chosen))
    for name, found in scores.items():
        best, at = best_threshold(found, predictions, null_odds, has_answer)
        results |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return dict(sorted(results.items()))


def best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, Any],
    null_odds: Mapping[str, float],
    has_answer: Mapping[str, bool],
) -> tuple[float, float]:
    """The best score that a threshold on the null odds can give, and the threshold."""
    none = float(sum(not has for has in has_answer.values()))
    order = [q for q in sorted(null_odds, key=null_odds.get) if q in scores]
    wrong = {q: -float(bool(predictions[q])) for q in order}
    gains = (scores[q] if has_answer[q] else wrong[q] for q in order)
    totals = [*itertools.accumulate(gains, initial=none)]
    best = max(totals)
    thresholds = [0.0, *(null_odds[q] for q in order)]
    return 100.0 * best / max(len(scores), 1), float(thresholds[totals.index(best)])


WINDOWS_PER_EXAMPLE = 1000
# The score of "no answer" where no text could have one.
SURELY_NONE = 1e4


class Answers(NamedTuple):
    """The answers to a question."""

    nbest: list[Answer]
    best: Answer
    null_odds: float | None  # of SQuAD 2.0: score of "no answer"


def decode(
    task: Any, example: Any, outputs: list[dict[str, Any]], text_of: Callable[..., str]
) -> Answers:
    """The answers to a question, from the head's outputs for its windows.

    Args:
      task: a `finetune.qa.QATask`.
      text_of: one of its functions from the example and a span's tokens to a text.
    """
    text_of = functools.partial(text_of, example)
    found = nbest(task.windows(example), outputs, text_of, task.config)
    if not task.is_v2:
        return Answers(found, found[0], None)
    best = next((a for a in found if a.text), found[0])
    return Answers(found, best, null_odds(task.config, outputs, best))


def null_odds(config, outputs, best: Answer) -> float:
    """The lowest score of the windows, in float32, as in the original."""
    if not outputs:
        return SURELY_NONE
    if config.answerable_classifier:
        return min(float(output["answerable_logit"]) for output in outputs)
    null = min(
        np.float32(o["start_logits"][0]) + np.float32(o["end_logits"][0])
        for o in outputs
    )
    return float(null - np.float32(best.start_logit) - np.float32(best.end_logit))


class QAScorer(Scorer):
    """Decodes windows to answers and compares them with the right ones.

    Args:
      task: a `finetune.qa.QATask`.
    """

    most_sequences = WINDOWS_PER_EXAMPLE

    def __init__(self, task: Any, split: str):
        super().__init__()
        self._task, self._split = task, split

    @functools.cached_property
    def decoded(self) -> dict[str, Answers]:
        """The answers by the questions' ids, found when all outputs are there."""
        task, outputs = self._task, self.outputs
        examples = task.read(self._split)
        found = (decode(task, e, outputs[e.eid], task.text_of) for e in examples)
        return {e.question_id: one for e, one in zip(examples, found, strict=True)}

    @property
    def predictions(self) -> dict[str, str]:
        """The answer to each question."""
        return {name: found.best.text for name, found in self.decoded.items()}

    @property
    def null_odds(self) -> dict[str, float]:
        """The score of "no answer" of each question."""
        found = {name: found.null_odds for name, found in self.decoded.items()}
        return found if self._task.is_v2 else {}

    @property
    def submitted(self) -> dict[str, str]:
        """The answers that count: of 2.0 "" where the null odds are above the limit.

        The official script applies a threshold only if it is given one.
        """
        limit, odds = self._task.config.qa_na_threshold, self.null_odds
        return {
            name: "" if odds.get(name, limit) > limit else answer
            for name, answer in self.predictions.items()
        }

    def files(self) -> dict[str, Any]:
        """The content of each file in SQuAD's form; of 2.0 two more."""
        best = {}
        for question, (answers, *_) in self.decoded.items():
            shares = softmax([answer.score for answer in answers]).tolist()
            best[question] = [
                {"text": answer.text, "probability": share}
                | {"start_logit": answer.start_logit, "end_logit": answer.end_logit}
                for answer, share in zip(answers, shares, strict=True)
            ]
        more = {"null_odds": self.null_odds, "submission": self.submitted}
        found = {"preds": self.predictions, "nbest": best}
        return found | (more if self._task.is_v2 else {})

    def get_results(self) -> list[tuple[str, float]]:
        """The official results."""
        task, predictions = self._task, self.predictions
        answers = {e.question_id: e.answers for e in task.read(self._split)}
        if task.is_v2:
            odds = self.null_odds, task.config.qa_na_threshold
            scores = evaluate_v2(answers, predictions, *odds, task.score_by)
        else:
            scores = evaluate_v1(answers, predictions, task.is_mrqa, task.score_by)
        names = {"f1": CHARACTER_F1} if task.score_by == "characters" else {}
        return [(names.get(name, name), value) for name, value in scores.items()]


def check_window(config: FinetuningConfig) -> None:
    """Raises a UserError where a long question leaves no room for a text."""
    length, limit = config.max_seq_length, config.max_seq_length
    if config.max_query_length > length - 4:
        raise UserError(
            f"max_query_length {config.max_query_length} leaves no room for a text in "
            f"max_seq_length {length}.\nSet max_query_length to {length - 4} or less, "
            "better to a quarter of it, or raise max_seq_length."
        )
    name = "beam_size" if config.joint_prediction else "n_best_size"
    if config.joint_prediction:
        limit = min([length, *(config.length_buckets or [])])
    if getattr(config, name) > limit:
        raise UserError(
            f"{name} {getattr(config, name)} is more than the {limit} tokens of a "
            "sequence (max_seq_length, length_buckets)."
        )
