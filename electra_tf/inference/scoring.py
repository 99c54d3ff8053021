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
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.text import tokenization
from electra_tf.text.tokenization import Tokenizer, each_text
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
    "mask_each": "log-probabilities with each token masked in turn, slow",
    "discriminator": 'log-probability of "not replaced", in one pass; no likelihood',
}


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
    scorer: TextScorer, texts: Iterable[str], overlap: int, with_tokens: bool
) -> Iterator[dict[str, Any]]:
    """The JSON object of each text; otherwise as `TextScorer.score_texts`."""
    texts, copy = itertools.tee(texts)
    score = scorer.score_tokens if with_tokens else scorer.score_texts
    for text, scored in zip(copy, score(texts, overlap), strict=True):
        yield to_json(text, scored)


def counts_of(num_tokens: int, num_unknown: int) -> dict[str, int]:
    """Counts a scored text: its tokens, and whether none of them is known."""
    return {
        "tokens": num_tokens,
        "texts_without_tokens": int(not num_tokens),
        "texts_of_unknown_tokens": int(0 < num_tokens == num_unknown),
    }


def warn_of_empty(counts: Mapping[str, int]) -> None:
    """Warns on stderr about texts without tokens, or without known ones."""
    for name, what in (
        ("texts_without_tokens", "Texts without tokens, which score 0"),
        ("texts_of_unknown_tokens", "Texts with a score of unknown tokens only"),
    ):
        if counts.get(name):
            print(f"{what}: {counts[name]}.", file=sys.stderr)


class TextWindow(NamedTuple):
    """A part of a text that fits the model, and its tokens that count."""

    text: int  # index in the pool
    ids: list[int]  # without [CLS] and [SEP]
    first: int  # ids[first:last] count
    last: int
    start: int  # index of ids[first] in the text


class TextScorer:
    """Scores texts with one model by one method; see `score_tokens`.

    Args:
      score: ids, mask and segment ids [B, L] -> scores of all tokens [B, L]. With the
        method mask_each, also positions [B], and the result has their scores [B].
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

    def score_tokens(self, texts: Any, overlap: int = 0) -> Iterator[list[TokenScore]]:
        """Yields the scores of each text's tokens; [] for a text without tokens.

        Raises `UserError` if a score is not finite.
        """
        encode = self.tokenizer.encode_with_offsets
        for text, (ids, offsets), scores in self._scored(texts, overlap, encode):
            yield [
                TokenScore(
                    text[start:end], start, end, float(score), i == self.vocab.unk_id
                )
                for i, (start, end), score in zip(ids, offsets, scores, strict=True)
            ]

    def score_texts(self, texts: Any, overlap: int = 0) -> Iterator[TextScore]:
        """Yields the score of each text; otherwise as `score_tokens`."""
        for _, (ids, _), scores in self._scored(
            texts, overlap, lambda text: (self.tokenizer.encode(text), None)
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

    def _scored(self, texts, overlap, encode):
        """Yields (text, result of `encode`, float scores of its ids) in order."""
        self.check_overlap(overlap)
        texts = each_text(texts)
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
                if not np.isfinite(values).all():
                    raise UserError(
                        f"{self.name} gives a text the score {values.sum()}: its "
                        "weights or activations are not finite.\nThe text begins "
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
        if self.method == "mask_each":
            self._mask_each(windows, found)
            return found
        for window, row in rows_of(self._score, self.vocab, windows):
            end = window.start + window.last - window.first
            values = row[1 + window.first : 1 + window.last]
            found[window.text][window.start : end] = values
        return found

    def _mask_each(self, windows: list[TextWindow], found: list[np.ndarray]) -> None:
        """Fills in the scores by one row for each token that counts."""
        rows = [
            (window, place)
            for window in sorted(windows, key=_padded)
            for place in range(window.first, window.last)
        ]
        for batch in batches(rows, lambda row: _padded(row[0])):
            packed = tokenization.pack(self.vocab, [window.ids for window, _ in batch])
            positions = np.array([place + 1 for _, place in batch], np.int32)
            scores = self._score(*packed, positions).numpy()
            for (window, place), score in zip(batch, scores, strict=True):
                found[window.text][window.start + place - window.first] = score


def _padded(window: TextWindow) -> int:
    return len(window.ids) + 2


def rows_of(
    network: Callable[..., Any], vocab: Vocabulary, windows: Iterable[TextWindow]
) -> Iterator[tuple[TextWindow, np.ndarray]]:
    """Calls a network on batches of windows of similar length, the shortest first.

    Yields each window with its row of the result, [CLS] and [SEP] included.
    """
    for batch in batches(sorted(windows, key=_padded), _padded):
        packed = tokenization.pack(vocab, [window.ids for window in batch])
        for window, row in zip(batch, network(*packed).numpy(), strict=True):
            yield window, row[: _padded(window)]


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


def batched(items: Iterable, size: int) -> Iterator[list]:
    """Consecutive items, `size` of them at a time."""
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch
