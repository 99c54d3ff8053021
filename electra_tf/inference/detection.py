# SPDX-License-Identifier: Apache-2.0
"""Detects replaced tokens in a stream of passages and shows them, line by line."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence

from electra_tf.inference import html_report, rendering
from electra_tf.inference.pretrained_model import PretrainedModel, TokenPrediction
from electra_tf.text.json_lines import json_line

FORMATS = ("terminal", "jsonl", "html")
# Passages per call of the model, so that output appears while a long input is read.
_CHUNK = 256


def passages(lines: Iterable[str], limit: int) -> Iterator[str]:
    """The non-blank lines, at most `limit`; says on stderr that there were more."""
    for number, line in enumerate(filter(str.strip, lines)):
        if number == limit:
            print(f"Stopped after {limit} passages: --max-passages.", file=sys.stderr)
            return
        yield line.strip()


def detect(
    model: PretrainedModel, texts: Iterable[str], corruption_seed: int | None = None
) -> Iterator[tuple[str, list[TokenPrediction]]]:
    """Each text with the predictions for its tokens, read as it is needed.

    Args:
      model: the model.
      texts: passages.
      corruption_seed: decides what the generator replaces before the discriminator
        reads; None: it reads the texts as they stand.
    """
    for number, chunk in enumerate(_chunks(texts)):
        if corruption_seed is None:
            tokens = model.detect(chunk)
        else:
            # Another seed for each chunk, or all would have the same places masked;
            # within 64 bits.
            seed = corruption_seed + 1_000_003 * number
            tokens = model.corrupt(chunk, seed=(seed + 2**63) % 2**64 - 2**63)
        yield from zip(chunk, tokens, strict=True)


def show(
    detected: Iterable[tuple[str, Sequence[TokenPrediction]]],
    form: str,
    *,
    temperature: float | None = None,
    threshold: float,
    colour: bool,
) -> Iterator[str]:
    """The lines that a user sees.

    Args:
      detected: texts with the predictions for their tokens.
      form: one of FORMATS.
      temperature: at which the generator drew the replacements; None: the texts are as
        they were.
      threshold: probability above which a token of an untouched text is marked.
      colour: mark with colours in the terminal, rather than with signs.
    """
    is_corrupted = temperature is not None
    limit = None if is_corrupted else threshold
    if form == "jsonl":
        for text, tokens in detected:
            yield json_line(rendering.to_json(text, tokens))
    elif form == "html":
        parts = [rendering.to_html(*pair, limit) for pair in detected]
        legend = rendering.html_legend(is_corrupted)
        yield html_report.page("Replaced tokens", [legend, *parts])
    else:
        legend = rendering.terminal_legend(is_corrupted, colour)
        if is_corrupted:
            legend += f" (replacements drawn at temperature {temperature:g})"
        yield legend + "\n"
        total = rendering.Score(0, 0, 0)
        for text, tokens in detected:
            score = rendering.score(tokens)
            total = rendering.Score(*map(sum, zip(total, score, strict=True)))
            yield rendering.to_terminal(text, tokens, limit, colour) + "\n"
        if total.replaced:
            yield (
                f"{total.caught} of {total.replaced} replaced tokens are among the "
                f"{total.flagged} most suspicious ones."
            )


def _chunks(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while chunk := list(itertools.islice(texts, _CHUNK)):
        yield chunk
