# SPDX-License-Identifier: Apache-2.0
"""Scores of texts by a pre-trained model: how likely is each token, each text?

model = electra_tf.load("data/models/electric_small")
for scored in model.score_texts(open("texts.txt")):
    print(scored.score, scored.num_tokens)

Texts are read lazily, some thousand at a time, scored in batches of similar length and
returned in their order.  The score of a text is the sum of its tokens' scores.

A text that is too long for the model is read in windows.  With `overlap`, each window
begins that many tokens before the end of the previous one, and a shared token counts in
the window where it is farther from the edge.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError
from electra_tf.text import corpus, tokenization
from electra_tf.text.vocabulary import Vocabulary

# Tokens read ahead, to find texts of equal length for a batch, and tokens of a batch,
# padding included.
POOL_TOKENS = 1 << 17
BATCH_TOKENS = 2048

# Method -> its scores, the best method first.
METHODS = {
    "electric": "minus the energy, in one pass",
    "electra_tt": "log-probabilities by discriminator and generator, in one pass",
    "two_tower": "the two-tower generator's log-probabilities, in one pass",
    "within_word_l2r": "log-probabilities with each token and the rest of its word "
    "masked in turn, slow",
    "mask_each": "log-probabilities with each token masked in turn, slow",
    "discriminator": 'log-probability of "not replaced", in one pass; no likelihood',
}
ONE_BY_ONE = ("within_word_l2r", "mask_each")  # a row for each token


class TokenScore(NamedTuple):
    """One token of a text and its score."""

    text: str  # part of the text
    start: int  # characters of the text
    end: int
    score: float  # natural logarithm
    is_unknown: bool = False  # the model sees [UNK]


class TextScore(NamedTuple):
    """The score of a text: a pseudo-log-likelihood if token scores are likelihoods."""

    score: float  # sum over the tokens, natural logarithm; 0 without tokens
    num_tokens: int
    num_unknown: int  # tokens that the model sees as [UNK]


def to_json(text: str, scored: TextScore | list[TokenScore]) -> dict[str, Any]:
    """One JSON object per text, with its tokens if these were scored."""
    if isinstance(scored, TextScore):
        return {"text": text} | scored._asdict() | {"score": round(scored.score, 6)}
    tokens = [
        {"token": token, "start": start, "end": end, "score": round(score, 6)}
        for token, start, end, score, _ in scored
    ]
    total = math.fsum(token.score for token in scored)
    unknown = sum(token.is_unknown for token in scored)
    whole = to_json(text, TextScore(total, len(scored), unknown))
    return whole | {"tokens": tokens}


def rows(
    model: Any, texts: Iterable[str], method: str, overlap: int, with_tokens: bool
) -> Iterator[dict[str, Any]]:
    """The JSON object of each text; otherwise as `Model.score_texts`."""
    texts, copy = itertools.tee(texts)
    score = model.score_tokens if with_tokens else model.score_texts
    for text, scored in zip(copy, score(texts, method, overlap), strict=True):
        yield to_json(text, scored)


def read_rows(
    path: str | None, encoding_errors: str, parse: Callable[[Any], Any], form: str
) -> list[Any]:
    """What a function makes of each JSON line of a file; None: standard input.

    Args:
      encoding_errors: see `corpus.read_lines`.
      parse: raises one of JSON_ERRORS for a value of another form.
      form: that of the lines, for messages.

    Raises `UserError` naming file and line (65), or a file without lines.
    """
    name, found = path or corpus.STANDARD_INPUT, []
    for number, line in enumerate(corpus.read_lines(path, encoding_errors), 1):
        try:
            found += [parse(json.loads(line))] if line.strip() else []
        except JSON_ERRORS as error:
            raise UserError(
                f"{name}, line {number}: {line:.80}\nis not of the form {form} "
                f"({error}).",
                EXIT_DAMAGED,
            ) from None
    if not found:
        raise UserError(f"{name} has no line of the form {form}.")
    return found


def counts_of(row: Mapping[str, Any]) -> dict[str, int]:
    """Counts a text of `to_json`: its tokens, and whether none of them is known.

    {} for other answers.
    """
    if "num_tokens" not in row:
        return {}
    is_empty = row["num_tokens"] == row["num_unknown"]
    return {"tokens": row["num_tokens"], "texts_without_known_tokens": int(is_empty)}


def warn_of_empty(counts: Mapping[str, int]) -> None:
    """Warns on stderr about texts whose score says nothing."""
    if number := counts.get("texts_without_known_tokens"):
        print(f"Texts without tokens that the model knows: {number}.", file=sys.stderr)


class TextWindow(NamedTuple):
    """A part of a text that fits the model, and its tokens that count."""

    text: int  # index in the pool
    ids: list[int]  # without [CLS] and [SEP]
    first: int  # ids[first:last] count
    last: int
    start: int  # index of ids[first] in the text


def padded(window: TextWindow) -> int:
    """The length of a window with [CLS] and [SEP]."""
    return len(window.ids) + 2


def rows_of(
    network: Callable[..., Any], vocab: Vocabulary, windows: Iterable[TextWindow]
) -> Iterator[tuple[TextWindow, np.ndarray]]:
    """Calls a network on batches of windows of similar length, the shortest first.

    Yields each window with its row of the result, [CLS] and [SEP] included.
    """
    for batch in batches(sorted(windows, key=padded), padded):
        packed = tokenization.pack(vocab, [window.ids for window in batch])
        for window, row in zip(batch, network(*packed).numpy(), strict=True):
            yield window, row[: padded(window)]


def token_scores_of(
    network: Callable[..., Any], vocab: Vocabulary, windows: Iterable[TextWindow]
) -> Iterator[tuple[TextWindow, int, float]]:
    """Calls a network of ONE_BY_ONE on one row for each token that counts.

    Yields each window with the index of a token in it and the token's score.
    """
    rows = [
        (window, place)
        for window in sorted(windows, key=padded)
        for place in range(window.first, window.last)
    ]
    for batch in batches(rows, lambda row: padded(row[0])):
        packed = tokenization.pack(vocab, [window.ids for window, _ in batch])
        positions = np.array([place + 1 for _, place in batch], np.int32)
        scores = network(*packed, positions).numpy()
        for (window, place), score in zip(batch, scores, strict=True):
            yield window, place, score


def windows_of(
    text: int, ids: list[int], size: int, overlap: int
) -> Iterator[TextWindow]:
    """Windows of at most `size` ids; every id of the text counts in one of them."""
    counted, begin = 0, 0
    while counted < len(ids):
        end = min(begin + size, len(ids))
        # Half of the tokens shared with the next window count here, half there.
        last = end if end == len(ids) else end - overlap // 2
        yield TextWindow(text, ids[begin:end], counted - begin, last - begin, counted)
        counted, begin = last, end - overlap


def batches(items: Iterable, length_of) -> Iterator[list]:
    """Consecutive items, sorted by length, of at most BATCH_TOKENS with padding."""
    batch: list = []
    for item in items:
        if batch and (len(batch) + 1) * length_of(item) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def chunks(
    items: Iterable, limit: int, size_of: Callable[[Any], int] = lambda item: 1
) -> Iterator[list]:
    """Consecutive items, by default `limit` of them at a time, read lazily.

    Args:
      limit: the sum of the sizes at which a chunk ends.
    """
    chunk, size = [], 0
    for item in items:
        chunk.append(item)
        size += size_of(item)
        if size >= limit:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
