# SPDX-License-Identifier: Apache-2.0
"""From the scores of windows to answers in the words of the document."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.text.tokenization import basic_tokenize
from electra_tf.text.vocabulary import TokenizerConfig

# What is answered where no span of a document is possible, as in the original.
NO_SPAN = "empty"


class Answer(NamedTuple):
    """A possible answer to one question."""

    text: str
    start_logit: float
    end_logit: float
    tokens: tuple[int, int] | None = None  # first and last one, of the document


class Window(NamedTuple):
    """What decoding must know of one window on a document."""

    tokens: list[str]
    words: dict[int, int]  # token -> word of the document
    max_context: dict[int, bool]  # token -> whether no other window shows more around
    shift: int = 0  # from a token's place in the document to that in the window


# (window, first token of a span in it, last token) -> the span's text
TextOf = Callable[[Window, int, int], str]


def best_indexes(scores: np.ndarray, count: int) -> list[int]:
    """The indices of the highest scores, the first of equals first."""
    return np.argsort(-np.asarray(scores), kind="stable")[:count].tolist()


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities; [] for []."""
    if not scores:
        return []
    shifted = [math.exp(score - max(scores)) for score in scores]
    return [value / sum(shifted) for value in shifted]


def nbest(
    windows: Sequence[Window],
    outputs: Sequence[dict[str, Any]],
    text_of: TextOf,
    *,
    joint: bool,
    n_best_size: int,
    max_answer_length: int,
) -> list[Answer]:
    """The best different answers to a question, best first; at least one.

    Args:
      windows: the windows on its document.
      outputs: the head's outputs for each.
      text_of: what finds the text of a span.
    """
    spans = []
    for number, (window, output) in enumerate(zip(windows, outputs, strict=True)):
        for start, end, start_logit, end_logit in _spans(output, joint, n_best_size):
            possible = (
                start in window.words
                and end in window.words
                and window.max_context[start]
                and 0 <= end - start < max_answer_length
            )
            if possible:
                spans.append((number, start, end, start_logit, end_logit))
    spans.sort(key=lambda span: span[3] + span[4], reverse=True)
    found: dict[str, Answer] = {}
    for number, start, end, start_logit, end_logit in spans:
        if len(found) >= n_best_size:
            break
        text = text_of(windows[number], start, end)
        if text not in found:
            shift = windows[number].shift
            tokens = start - shift, end - shift
            found[text] = Answer(text, start_logit, end_logit, tokens)
    return list(found.values()) or [Answer(NO_SPAN, 0.0, 0.0)]


def original_text(words: Sequence[str], config: TokenizerConfig) -> TextOf:
    """The original's way: the words of a document that hold the tokens of a span.

    Args:
      config: of the tokenizer, by whose rules the tokens are found in the words.
    """

    def text_of(window: Window, start: int, end: int) -> str:
        text = " ".join(window.tokens[start : end + 1])
        text = " ".join(text.replace(" ##", "").replace("##", "").split())
        inside = " ".join(words[window.words[start] : window.words[end] + 1])
        return final_text(text, inside, *config)

    return text_of


def _spans(output: dict[str, Any], joint: bool, n_best_size: int):
    """(start, end, score of the start, of the end), not all of them possible."""
    if joint:
        ends, end_scores = output["end_top_index"], output["end_top_log_probs"]
        for i, start in enumerate(output["start_top_index"]):
            score = float(output["start_top_log_probs"][i])
            for j, end in enumerate(ends[i]):
                yield int(start), int(end), score, float(end_scores[i][j])
        return
    start_logits, end_logits = output["start_logits"], output["end_logits"]
    last = best_indexes(end_logits, n_best_size)
    for start in best_indexes(start_logits, n_best_size):
        for end in last:
            yield start, end, float(start_logits[start]), float(end_logits[end])


def final_text(
    predicted: str, original: str, do_lower_case: bool, strip_accents: bool = True
) -> str:
    """The part of `original` that `predicted`, in normalised tokens, stands for.

    Normalising a text keeps the order of its characters: the place is found by
    counting all but spaces. Where that does not work out, all of `original`.
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


def is_max_context(spans: Sequence[tuple[int, int]], index: int, place: int) -> bool:
    """Whether window `index` shows the most around token `place` of the document.

    Args:
      spans: (start, length) of the windows.
    """
    if len(spans) == 1:
        return True
    best, at = -1.0, -1
    for number, (start, length) in enumerate(spans):
        if start <= place < start + length:
            around = min(place - start, start + length - 1 - place) + 0.01 * length
            if around > best:
                best, at = around, number
    return at == index


def improve_span(
    document: Sequence[Any], start: int, end: int, answer: Sequence[Any]
) -> tuple[int, int]:
    """The tokens within start..end that are exactly the answer's, else start, end."""
    for first in range(start, end + 1):
        last = first + len(answer) - 1
        if first <= last <= end and list(document[first : last + 1]) == list(answer):
            return first, last
    return start, end
