# SPDX-License-Identifier: Apache-2.0
"""score and detect for a corpus: a pre-trained model at work on texts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.inference import corpus_run, pretrained_model, rendering, scoring
from electra_tf.inference.pretrained_model import TokenPrediction
from electra_tf.text import archives, corpus, units
from electra_tf.text.units import Corpus, Unit

# Texts that are sorted by length before they are put into batches.
CHUNK = 1024


class Texts:
    """The texts of some units: lines, or records as a whole (JSON Lines, tables)."""

    def __init__(self, parts: Sequence[Unit], reading: units.Reading):
        self._parts, self._reading = parts, reading
        self._starts: list[tuple[int, Unit]] = []  # with the texts before each unit

    def __iter__(self) -> Iterator[str]:
        number = 0
        for unit in self._parts:
            self._starts.append((number, unit))
            for reader in units.read_unit(unit, self._reading):
                blocks = iter(reader)
                if reader.is_record:  # a document, not lines
                    blocks = [["\n".join(itertools.chain.from_iterable(blocks))]]
                for block in blocks:
                    number += len(block)
                    yield from block

    def place(self, number: int) -> str:
        """Where the n-th text stands, counted from 1, of those that were read."""
        first, unit = [pair for pair in self._starts if pair[0] < number][-1]
        if unit.kind == "text":
            before = corpus.lines_before(unit.path, unit.start)
            return f"{unit.path}, line {before + number - first}"
        after = f" after byte {unit.start}" if unit.start else ""
        return f"{unit.path}, text {number - first}{after}"


def texts_of(path: str | None, reading: units.Reading) -> Iterator[str]:
    """The lines of a file, or its records; None: the lines of standard input."""
    if path is not None and units.holds_records(path):
        return iter(Texts(units.file_corpus(path, reading.text_key).units, reading))
    return archives.read_lines(path, reading.encoding_errors)


class TextModel(corpus_run.CorpusModel):
    """What all of them have in common.

    Args:
      options: "model", "text_key", "encoding_errors", and its own.
    """

    def __init__(self, options: dict[str, Any]):
        self.options = options
        self.reading = units.Reading(options["encoding_errors"], options["text_key"])

    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """Files as `build_pretraining_dataset.py` reads them."""
        return units.file_corpus(path, self.options["text_key"], piece_bytes)


class _OfPretrained(TextModel):
    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._model = pretrained_model.load(options["model"])
        origin = self._model.origin
        self.model = corpus_run.model_facts(
            origin,
            vocab_sha256=self._model.vocab.sha256,
            tokenizer=self._model.tokenizer.config._asdict(),
            max_seq_length=self._model.config.max_seq_length,
        )
        # A run may go on; the checkpoint is that of now for all workers.
        self.options = {**options, "model": origin}


class Scores(_OfPretrained):
    """The score of each text; options "method", "overlap", "tokens"."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._scorer = self._model.scorer(options["method"])
        self._scorer.check_overlap(options["overlap"])

    def rows(self, units: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """As `scoring.to_json` has them."""
        texts = Texts(units, self.reading)
        read, kept = itertools.tee(texts)
        scorer, overlap = self._scorer, self.options["overlap"]
        of_texts = scorer.score_tokens if self.options["tokens"] else scorer.score_texts
        for text, scored in zip(
            kept, of_texts(read, overlap, texts.place), strict=True
        ):
            yield scoring.to_json(text, scored)

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """Tokens, and texts whose scores say nothing."""
        tokens, unknown = row["num_tokens"], row["num_unknown"]
        return {
            "tokens": tokens,
            "texts_without_tokens": int(not tokens),
            "texts_of_unknown_tokens": int(0 < tokens == unknown),
        }


class Detections(_OfPretrained):
    """How much each token of each text that is not blank looks replaced."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._model.detect([])  # which says so if it cannot

    def rows(self, units: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """As `rendering.to_json` has them."""
        texts = Texts(units, self.reading)
        numbered = ((n, text.strip()) for n, text in enumerate(texts, 1))
        numbered = (pair for pair in numbered if pair[1])
        while chunk := list(itertools.islice(numbered, CHUNK)):
            order = sorted(range(len(chunk)), key=lambda i: len(chunk[i][1]))
            found = self._model.detect([chunk[i][1] for i in order])
            of_text = dict(zip(order, found, strict=True))
            for place, (number, text) in enumerate(chunk):
                self._check(of_text[place], texts, number)
                yield rendering.to_json(text, of_text[place])

    def _check(self, tokens: list[TokenPrediction], texts: Texts, number: int) -> None:
        if any(token.probability != token.probability for token in tokens):
            raise UserError(
                f"{texts.place(number)}: {self._model.name} gives it probabilities "
                "that are no numbers:\nits weights or activations are not finite.",
                EXIT_DIVERGED,
            )

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """Tokens, and those that look replaced rather than not."""
        return count_tokens(row)


def count_tokens(row: dict[str, Any]) -> dict[str, int]:
    """What to count in an answer of detect."""
    found = [token["probability"] > 0.5 for token in row["tokens"]]
    return {"tokens": len(found), "tokens_above_one_half": sum(found)}
