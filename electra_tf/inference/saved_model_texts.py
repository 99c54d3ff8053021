# SPDX-License-Identifier: Apache-2.0
"""score and detect for a corpus by an exported SavedModel; its graph has it all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf import startup
from electra_tf.console import say_nothing
from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.inference import corpus_run
from electra_tf.inference.corpus_texts import (
    CHUNK,
    Detections,
    Scores,
    TextModel,
    Texts,
    count_tokens,
)
from electra_tf.paths import readable_by_tensorflow
from electra_tf.storage.manifest import saved_model_in, verify_folder
from electra_tf.storage.remote_run import bring_model
from electra_tf.text.tokenization import encoded
from electra_tf.text.units import Unit

_BATCH = 32


def open_saved_model(folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """(the model, what it is called by if anything, its manifest) of a SavedModel.

    Raises `UserError` (65) for a damaged one.
    """
    manifest = verify_folder(folder, say_nothing)
    startup.import_tensorflow()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - its ops are in the graph

    model = tf.saved_model.load(readable_by_tensorflow(folder))
    return model, model.signatures.get("serving_default"), manifest


class SavedModelTexts(TextModel):
    """A scorer or detector that `export_model.py` has written.

    Args:
      folder: of the SavedModel.
      output: what is asked of each token, a name of its signature.

    Raises `UserError`: 2 for a SavedModel of something else or options that it does
    not have, 65 for a damaged one.
    """

    def __init__(self, options: dict[str, Any], folder: Path, output: str):
        super().__init__(options)
        self._model, self._call, manifest = open_saved_model(folder)
        self._output = output
        gives = self._call.structured_outputs if self._call else {}
        if not {output, "num_tokens"} <= gives.keys():
            raise UserError(
                f"{folder} is the SavedModel of {manifest.get('what', 'something')}, "
                f"which gives no {output}."
            )
        if options.get("overlap") or options.get("method") not in (None, "electric"):
            raise UserError(
                f"{folder} is a SavedModel: it scores by the method electric, in "
                "windows that do not overlap."
            )
        self.model = corpus_run.model_facts(str(folder.absolute()))

    def rows(self, units: Sequence[Unit]) -> Iterator[dict[str, Any]]:
        """As those of a run, but for num_unknown."""
        texts = Texts(units, self.reading)
        numbered: Iterator[tuple[int, str]] = enumerate(texts, 1)
        if self._output == "probabilities":
            numbered = ((n, text.strip()) for n, text in numbered if text.strip())
        while chunk := list(itertools.islice(numbered, CHUNK)):
            order = sorted(range(len(chunk)), key=lambda i: len(chunk[i][1]))
            found: dict[int, dict[str, Any]] = {}
            for first in range(0, len(order), _BATCH):
                batch = order[first : first + _BATCH]
                arrays = self._arrays([chunk[i][1] for i in batch])
                for row, i in enumerate(batch):
                    one = {name: values[row] for name, values in arrays.items()}
                    found[i] = self._row(*chunk[i], one, texts)
            for i in range(len(chunk)):
                yield found[i]

    def _arrays(self, texts: list[str]) -> dict[str, np.ndarray]:
        import tensorflow as tf

        given = tf.constant([*map(encoded, texts)])
        return {name: value.numpy() for name, value in self._call(text=given).items()}

    def _row(self, number: int, text: str, found: dict, texts: Texts) -> dict[str, Any]:
        count = int(found["num_tokens"])
        values = found[self._output][:count]
        if not np.isfinite(values).all():
            raise UserError(
                f"{texts.place(number)}: {self.model['path']} gives it {self._output} "
                "that are not finite.",
                EXIT_DIVERGED,
            )
        name = "score" if self._output == "token_scores" else "probability"
        tokens = [
            {
                "token": found["tokens"][i].decode("utf-8", "replace"),
                "start": int(found["starts"][i]),
                "end": int(found["ends"][i]),
                name: round(float(values[i]), 6),
            }
            for i in range(count)
        ]
        if name == "probability":
            return {"text": text, "tokens": tokens}
        score = round(float(np.sum(values, dtype=np.float64)), 6)
        row = {"text": text, "score": score, "num_tokens": count}
        return row | ({"tokens": tokens} if self.options["tokens"] else {})

    def counts(self, row: dict[str, Any]) -> dict[str, int]:
        """Tokens, and texts that have none or tokens that look replaced."""
        if self._output == "probabilities":
            return count_tokens(row)
        count = row["num_tokens"]
        return {"tokens": count, "texts_without_tokens": int(not count)}


def scores(options: dict[str, Any]) -> corpus_run.CorpusModel:
    """The model for score, by whatever model there is."""
    if folder := _saved_model(options):
        return SavedModelTexts(options, folder, "token_scores")
    return Scores(options)


def detections(options: dict[str, Any]) -> corpus_run.CorpusModel:
    """The model for detect, by whatever model there is."""
    if folder := _saved_model(options):
        return SavedModelTexts(options, folder, "probabilities")
    return Detections(options)


def _saved_model(options: dict[str, Any]) -> Path | None:
    bring_model(options["model"])
    return saved_model_in(Path(options["model"]))
