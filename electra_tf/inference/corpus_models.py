# SPDX-License-Identifier: Apache-2.0
"""The models of a corpus: score and detect read texts, predict a task's inputs.

Each has `options`, by which another process gets the same, and `model`: path, sha256
and all that changes an answer, in JSON. `corpus` gives the input in pieces, `rows` the
answers for some of them, whose batches depend on their texts alone, `counts` what is
counted in an answer.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.finetune import inputs
from electra_tf.inference import detection, prediction, scoring
from electra_tf.inference.model import Model, TokenPrediction
from electra_tf.inference.scoring import batched
from electra_tf.storage.manifest import sha256
from electra_tf.text import archives, corpus, units
from electra_tf.text.units import Corpus, Unit

# Texts that are sorted by length before they are put into batches.
_CHUNK = 1024


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


def model_facts(origin: str, **others: Any) -> dict[str, Any]:
    """The `model` of a checkpoint's prefix or a directory."""
    files = glob.glob(f"{glob.escape(origin)}.*")
    if os.path.isdir(origin):
        files = glob.glob(f"{glob.escape(origin)}/**", recursive=True)
    digest = hashlib.sha256()
    for path in sorted(filter(os.path.isfile, files)):
        name = os.path.relpath(path, origin)
        digest.update(f"{name} {sha256(path)}\n".encode())
    return {"path": origin, "sha256": digest.hexdigest(), **others}


class _OfTexts:
    """What score and detect have in common.

    Args:
      options: "model", "text_key", "encoding_errors", and its own.
    """

    def __init__(self, options: dict[str, Any]):
        self.reading = units.Reading(options["encoding_errors"], options["text_key"])
        self._model: Model = prediction.load(options["model"])
        self.model = model_facts(
            self._model.origin,
            vocab_sha256=self._model.tokenizer.vocab.sha256,
            tokenizer=self._model.tokenizer.config._asdict(),
            max_seq_length=self._model.max_seq_length,
        )
        # A run may go on; all workers use the newest checkpoint of now.
        self.options = {**options, "model": self._model.origin}

    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """Files as `build_pretraining_dataset.py` reads them."""
        return units.file_corpus(path, self.reading.text_key, piece_bytes)


class Scores(_OfTexts):
    """The score of each text; options "method", "overlap", "tokens"."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._scorer = self._model.scorer(options["method"])
        self._scorer.check_overlap(options["overlap"])

    def rows(self, units: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """As `scoring.to_json` has them."""
        texts, options = Texts(units, self.reading), self.options
        overlap, tokens = options["overlap"], options["tokens"]
        return scoring.rows(self._scorer, texts, overlap, tokens, texts.place)

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """Tokens, and texts whose scores say nothing."""
        return scoring.counts_of(row["num_tokens"], row["num_unknown"])


class Detections(_OfTexts):
    """How much each token of each text that is not blank looks replaced."""

    def __init__(self, options: dict[str, Any]):
        super().__init__(options)
        self._model.detect([])  # raises the error of a model that cannot

    def rows(self, units: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """As `detection.to_json` has them."""
        texts = Texts(units, self.reading)
        numbered = ((n, text.strip()) for n, text in enumerate(texts, 1))
        numbered = (pair for pair in numbered if pair[1])
        for chunk in batched(numbered, _CHUNK):
            order = sorted(range(len(chunk)), key=lambda i: len(chunk[i][1]))
            found = self._model.detect([chunk[i][1] for i in order])
            of_text = dict(zip(order, found, strict=True))
            for place, (number, text) in enumerate(chunk):
                self._check(of_text[place], texts, number)
                yield detection.to_json(text, of_text[place])

    def _check(self, tokens: list[TokenPrediction], texts: Texts, number: int) -> None:
        if any(token.probability != token.probability for token in tokens):
            raise UserError(
                f"{texts.place(number)}: {self._model.name} gives it probabilities "
                "that are not numbers:\nits weights or activations are not finite.",
                EXIT_DIVERGED,
            )

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """Tokens, and those that look replaced rather than not."""
        found = [token["probability"] > 0.5 for token in row["tokens"]]
        return {"tokens": len(found), "tokens_above_one_half": sum(found)}


class Predictions:
    """Labels, numbers, tags or answers; `Predictor.rows` says what a row holds.

    Args:
      options: "model", "task", "data_dir", "input_format".
    """

    def __init__(self, options: dict[str, Any]):
        self.options, self._form = options, options["input_format"]
        self._predictor = prediction.load_predictor(
            options["model"], options["task"], options["data_dir"]
        )
        found = self._predictor
        self.model = model_facts(found.origin, task=found.task, **found.facts)

    def corpus(self, path: str, piece_bytes: int) -> Corpus:
        """Files as predict reads them, those cut whose lines stand for themselves."""
        reads = self._predictor.reads

        def pieces(form: str, path: str, size: int) -> Iterator[tuple[int, int, int]]:
            step = piece_bytes if inputs.can_cut(path, form, reads) else max(size, 1)
            return units.cut(max(size, 1), step)

        return units.of_files(
            path, lambda name: inputs.input_form(name, self._form, reads), pieces
        )

    def rows(self, parts: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """The fields of each input and its prediction."""
        try:
            yield from self._rows(parts, False)
        except UserError:
            # Only now do the lines before have to be counted, to name the right one.
            for _ in self._rows(parts, True):
                pass
            raise

    def _rows(self, parts: Sequence[Unit], counted: bool) -> Iterator[dict[str, Any]]:
        found = itertools.chain.from_iterable(
            self._predictor.read_inputs(
                inputs.open_part(
                    unit, corpus.lines_before(unit.path, unit.start) if counted else 0
                )
            )
            for unit in parts
        )
        for chunk in batched(found, _CHUNK):
            order = sorted(range(len(chunk)), key=lambda i: _length(chunk[i].fields))
            rows = self._predictor.rows(chunk[i] for i in order)
            of_input = dict(zip(order, rows, strict=True))
            for place in range(len(chunk)):
                yield of_input[place]

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """How often there is each label."""
        labels = [row["label"]] if "label" in row else row.get("labels", [])
        return {f"label {label}": 1 for label in labels}


def _length(given: dict[str, Any]) -> int:
    return sum(len(x) for x in given.values() if isinstance(x, str | list))
