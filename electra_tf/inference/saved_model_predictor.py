# SPDX-License-Identifier: Apache-2.0
"""An exported SavedModel of a fine-tuned task as a predictor; its graph has it all."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from electra_tf.errors import UserError
from electra_tf.finetune import conll, inputs, question_inputs
from electra_tf.finetune.inputs import Asked, Source
from electra_tf.finetune.task import rounded
from electra_tf.inference.predictor import Predictor, plain
from electra_tf.inference.saved_model_texts import open_saved_model
from electra_tf.text.tokenization import encoded

_BATCH = 64
# What its signature takes -> what that is.
_READS = {
    ("text",): "texts",
    ("text", "text_b"): "texts",
    ("context", "question"): "questions",
}


class SavedModelPredictor(Predictor):
    """What `export_model.py --format saved_model --what <task>` has written.

    Raises `UserError`: 2 for a SavedModel of something else, 65 for a damaged one.
    """

    def __init__(self, folder: Path):
        self._model, self._call, manifest = open_saved_model(folder)
        taken = self._call.structured_input_signature[1] if self._call else {}
        self._takes = tuple(sorted(taken))
        given = set(self._call.structured_outputs) if self._call else set()
        reads = _READS.get(self._takes)
        if reads is None or not given & {"label", "labels", "value", "answer"}:
            raise UserError(
                f"{folder} is no SavedModel of a fine-tuned task, but of "
                f"{manifest.get('what', 'something else')}."
            )
        self._is_tagger = "words" in given
        super().__init__(
            str(folder.absolute()),
            manifest.get("task", folder.parent.name),
            "words" if self._is_tagger else reads,
            len(self._takes),
        )
        self._choices = [*map(tuple, manifest.get("columns", [])), self._takes]
        self._identity = tuple(manifest.get("identity", ("id", "index")))
        self._word_column = manifest.get("words", "words")

    def asked(self, source: Source) -> Iterator[Asked]:
        """What is to be predicted, in the columns of the task's description."""
        if self.reads == "texts":
            return inputs.texts(source, self._choices, self._identity)
        if self.reads == "words":
            return conll.words(source, self._word_column, self._identity)
        return question_inputs.questions(source)

    def told(self, asked: Iterable[Asked]) -> Iterator[tuple[Asked, dict[str, Any]]]:
        """Yields each input with its prediction, in order."""
        import tensorflow as tf

        asked = iter(asked)
        while chunk := list(itertools.islice(asked, _BATCH)):
            given = [one.given for one in chunk]
            if self._is_tagger:
                given = [{"text": " ".join(one["words"])} for one in given]
            columns = {
                name: tf.constant([encoded(one[name]) for one in given])
                for name in self._takes
            }
            found = {k: v.numpy() for k, v in self._call(**columns).items()}
            for row, one in enumerate(chunk):
                told = {name: plain(values[row]) for name, values in found.items()}
                yield one, self._told(one.given, told)

    def _told(self, given: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        """In the words of `Task.told`."""
        if self._is_tagger:
            return _tags(given["words"], row)
        if "value" in row:
            return {"value": rounded(row["value"])}
        if "answer" in row:
            return _answer(row)
        shares = zip(row["labels"], map(rounded, row["probabilities"]), strict=True)
        shares = dict(shares)
        if "label" in row:
            return {"label": row["label"], "probabilities": shares}
        labels = [name for name, share in shares.items() if share > 0.5]
        return {"labels": labels, "probabilities": shares}


def _tags(words: list[str], row: dict[str, Any]) -> dict[str, Any]:
    """A word's tag is that of the first of the words that the graph finds in it.

    Or after it, where nothing of a word is left: as `TaggingTask` reads it. Only where
    nothing of the last words is left, that task has the tag of [SEP], which the graph
    does not give: here it is "O", without a probability.
    """
    starts = [start for start in row["starts"] if start >= 0]
    tags, shares, first = [], [], 0
    for word in words:
        place = bisect.bisect_left(starts, first)
        is_there = place < len(starts)
        tags.append(row["labels"][place] if is_there else "O")
        shares.append(rounded(row["probabilities"][place]) if is_there else None)
        first += len(word) + 1
    return {"tags": tags, "probabilities": shares}


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    is_there = row["start"] >= 0
    told = {
        "answer": row["answer"],
        "start": row["start"] if is_there else None,
        "end": row["end"] if is_there else None,
        "score": rounded(row["score"]) if is_there else 0.0,
        "probability": rounded(row["probability"]),
    }
    if "null_odds" in row:
        told["null_odds"] = rounded(row["null_odds"])
        told["has_answer"] = bool(row["has_answer"])
    return told
