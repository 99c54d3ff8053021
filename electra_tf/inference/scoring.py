# SPDX-License-Identifier: Apache-2.0
"""Scores of texts by a pre-trained model: how likely is each token, each text?

model = electra_tf.load("data/models/electric_small")
for scored in model.score_texts(open("texts.txt")):
    print(scored.score, scored.num_tokens)

Texts are read as they come, some thousand at a time, scored in batches of similar
length and returned in their order.  The score of a text is the sum of its tokens'.

A text that is longer than the model is read in windows.  They follow each other without
overlap unless `overlap` is given; then each begins that many tokens before the end of
the one before, and a token in both counts where it stands farther from the edge.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.text import tokenization
from electra_tf.text.tokenization import Tokenizer, each_text
from electra_tf.text.vocabulary import Vocabulary

# Tokens read ahead, so that there are texts of equal length to put into a batch, and
# tokens of a batch, padding included.
POOL_TOKENS = 1 << 17
BATCH_TOKENS = 2048

# What each method computes, the best one first.
METHODS = {
    "electric": "minus the energy, in one pass",
    "electra_tt": "log-probabilities by discriminator and generator, in one pass",
    "two_tower": "the two-tower generator's log-probabilities, in one pass",
    "mask_each": "log-probabilities with each token masked in turn, slow",
    "discriminator": 'log-probability of "not replaced", in one pass; no likelihood',
}


class TokenScore(NamedTuple):
    """One token of a text and its score."""

    text: str  # as it stands in the text
    start: int  # characters of the text
    end: int
    score: float  # natural logarithm
    is_unknown: bool = False  # the model sees [UNK]


class TextScore(NamedTuple):
    """The score of a text: a pseudo-log-likelihood where token scores are such."""

    score: float  # sum over the tokens, natural logarithm; 0 without tokens
    num_tokens: int
    num_unknown: int  # of them, tokens that the model sees as [UNK]


def to_json(text: str, scored: TextScore | list[TokenScore]) -> dict[str, Any]:
    """One JSON object per text, with its tokens where these were scored."""
    if isinstance(scored, TextScore):
        return {"text": text} | scored._asdict() | {"score": round(scored.score, 6)}
    return {
        "text": text,
        "score": round(math.fsum(token.score for token in scored), 6),
        "num_tokens": len(scored),
        "num_unknown": sum(token.is_unknown for token in scored),
        "tokens": [
            {
                "token": token.text,
                "start": token.start,
                "end": token.end,
                "score": round(token.score, 6),
            }
            for token in scored
        ],
    }


def rows(
    scorer: TextScorer,
    texts: Iterable[str],
    overlap: int,
    with_tokens: bool,
    place: Callable[[int], str] = "text {}".format,
) -> Iterator[dict[str, Any]]:
    """The JSON object of each text; otherwise as `TextScorer.score_texts`."""
    texts, copy = itertools.tee(texts)
    score = scorer.score_tokens if with_tokens else scorer.score_texts
    for text, scored in zip(copy, score(texts, overlap, place), strict=True):
        yield to_json(text, scored)


def counts_of(num_tokens: int, num_unknown: int) -> dict[str, int]:
    """What is counted of a scored text: tokens, and whether the score says nothing."""
    return {
        "tokens": num_tokens,
        "texts_without_tokens": int(not num_tokens),
        "texts_of_unknown_tokens": int(0 < num_tokens == num_unknown),
    }


def warn_of_nothing(counts: Mapping[str, int]) -> None:
    """Says on stderr how many scores say nothing about their texts."""
    if empty := counts.get("texts_without_tokens"):
        print(f"Texts without tokens, which score 0: {empty}.", file=sys.stderr)
    if unknown := counts.get("texts_of_unknown_tokens"):
        print(
            "Texts of unknown tokens only, whose scores say nothing about their "
            f"words: {unknown}.",
            file=sys.stderr,
        )


class TextWindow(NamedTuple):
    """A part of a text that fits the model: its ids, and which of them count."""

    text: int  # index in the pool
    ids: list[int]  # without [CLS] and [SEP]
    first: int  # of the tokens that count, in `ids`
    last: int
    start: int  # of the tokens that count, in the text


class TextScorer:
    """Scores texts with one model by one method; see `score_tokens`.

    Args:
      score: of ids, mask and segment ids [B, L] the scores of all tokens [B, L]; of the
        method mask_each with positions [B] besides, those there [B].
      max_tokens: tokens of the longest window, [CLS] and [SEP] included.
      name: of the model, for messages.
    """

    def __init__(
        self,
        score: Callable[..., Any],
        vocab: Vocabulary,
        tokenizer: Tokenizer,
        max_tokens: int,
        method: str,
        name: str,
    ):
        self.method, self._score = method, score
        self.vocab, self.tokenizer, self.name = vocab, tokenizer, name
        self.window_size = max_tokens - 2

    def score_tokens(
        self,
        texts: Any,
        overlap: int = 0,
        place: Callable[[int], str] = "text {}".format,
    ) -> Iterator[list[TokenScore]]:
        """Yields the scores of each text's tokens; none for a text without tokens.

        Args:
          place: names the n-th text, counted from 1, in errors.

        Raises `UserError` if a score is not finite.
        """
        for text, (ids, offsets), scores in self._scored(
            texts, overlap, place, self.tokenizer.encode_with_offsets
        ):
            yield [
                TokenScore(
                    text[start:end], start, end, float(score), i == self.vocab.unk_id
                )
                for i, (start, end), score in zip(ids, offsets, scores, strict=True)
            ]

    def score_texts(
        self,
        texts: Any,
        overlap: int = 0,
        place: Callable[[int], str] = "text {}".format,
    ) -> Iterator[TextScore]:
        """Yields the score of each text; otherwise as `score_tokens`."""
        for _, (ids, _), scores in self._scored(
            texts, overlap, place, lambda text: (self.tokenizer.encode(text), None)
        ):
            total = math.fsum(scores)
            yield TextScore(total, len(ids), ids.count(self.vocab.unk_id))

    def check_overlap(self, overlap: int) -> None:
        """Raises `UserError` for an overlap that windows cannot have."""
        if not 0 <= overlap < self.window_size:
            raise UserError(
                f"an overlap of {overlap} tokens: it must be at least 0 and less than "
                f"the {self.window_size} tokens of a window."
            )

    def _scored(self, texts, overlap, place, encode):
        """Yields (text, what `encode` gave, float scores of its ids) in order."""
        self.check_overlap(overlap)
        texts = each_text(texts)
        done = 0
        while True:
            pool, tokens = [], 0
            for text in texts:
                encoded = encode(text)
                pool.append((text, encoded))
                tokens += len(encoded[0]) + 2
                if tokens >= POOL_TOKENS:
                    break
            if not pool:
                return
            scores = self._score_pool([ids for _, (ids, _) in pool], overlap)
            for (text, encoded), values in zip(pool, scores, strict=True):
                done += 1
                if not np.isfinite(values).all():
                    raise UserError(
                        f"{self.name} gives {place(done)} the score {values.sum()}: "
                        "its weights or activations are not finite.\nThe text begins "
                        f"{text[:60]!r}.",
                        EXIT_DIVERGED,
                    )
                yield text, encoded, values

    def _score_pool(self, texts: list[list[int]], overlap: int) -> list[np.ndarray]:
        """Scores of the tokens of each text, given as ids."""
        found = [np.zeros(len(ids), np.float32) for ids in texts]
        windows = [
            window
            for number, ids in enumerate(texts)
            for window in windows_of(number, ids, self.window_size, overlap)
        ]
        windows.sort(key=lambda window: len(window.ids))
        score = self._all_at_once
        if self.method == "mask_each":
            score = self._one_by_one
        for window, values in zip(windows, score(windows), strict=True):
            count = window.last - window.first
            part = values[window.first : window.last]
            found[window.text][window.start : window.start + count] = part
        return found

    def _all_at_once(self, windows: list[TextWindow]) -> Iterator[np.ndarray]:
        for batch in batches(windows, lambda window: len(window.ids) + 2):
            packed = tokenization.pack(self.vocab, [window.ids for window in batch])
            scores = self._score(*packed).numpy()
            for window, row in zip(batch, scores, strict=True):
                yield row[1 : 1 + len(window.ids)]

    def _one_by_one(self, windows: list[TextWindow]) -> Iterator[np.ndarray]:
        """One row for each token that counts."""
        rows = [
            (window, place)
            for window in windows
            for place in range(window.first, window.last)
        ]
        values: list[float] = []
        for batch in batches(rows, lambda row: len(row[0].ids) + 2):
            packed = tokenization.pack(self.vocab, [window.ids for window, _ in batch])
            positions = np.array([place + 1 for _, place in batch], np.int32)
            values += self._score(*packed, positions).numpy().tolist()
        remaining = iter(values)
        for window in windows:
            scores = np.zeros(len(window.ids), np.float32)
            count = window.last - window.first
            scores[window.first : window.last] = list(
                itertools.islice(remaining, count)
            )
            yield scores


def windows_of(
    text: int, ids: list[int], size: int, overlap: int
) -> Iterator[TextWindow]:
    """Windows of at most `size` ids in which every id of a text counts once."""
    counted, begin = 0, 0
    while counted < len(ids):
        end = min(begin + size, len(ids))
        # Of the tokens shared with the next window half count here, half there.
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


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Consecutive items, `size` of them at a time."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch
