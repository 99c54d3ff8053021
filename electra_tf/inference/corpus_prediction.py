# SPDX-License-Identifier: Apache-2.0
"""predict for a corpus: a fine-tuned model at work on inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from electra_tf.errors import UserError
from electra_tf.finetune import inputs
from electra_tf.inference import corpus_run, prediction
from electra_tf.text import corpus, units
from electra_tf.text.units import Corpus, Unit

# Inputs that are sorted by length before they are put into batches.
_CHUNK = 1024


class Predictions(corpus_run.CorpusModel):
    """Labels, numbers, tags or answers; `Predictor.rows` says what a row holds.

    Args:
      options: "model", "task", "data_dir", "input_format".
    """

    def __init__(self, options: dict[str, Any]):
        self.options, self._form = options, options["input_format"]
        self._predictor = prediction.load_predictor(
            options["model"], options["task"], options["data_dir"]
        )
        self.model = prediction.facts_of(self._predictor)

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
        """What was asked and its prediction."""
        try:
            yield from self._rows(parts, False)
        except UserError:
            # Only now do the lines before have to be counted, to name the right one.
            for _ in self._rows(parts, True):
                pass
            raise

    def _rows(self, parts: Sequence[Unit], counted: bool) -> Iterator[dict[str, Any]]:
        asked = itertools.chain.from_iterable(
            self._predictor.asked(
                inputs.open_part(
                    unit, corpus.lines_before(unit.path, unit.start) if counted else 0
                )
            )
            for unit in parts
        )
        while chunk := list(itertools.islice(asked, _CHUNK)):
            order = sorted(range(len(chunk)), key=lambda i: _length(chunk[i].given))
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
