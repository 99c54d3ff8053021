# SPDX-License-Identifier: Apache-2.0
"""Loads models of any kind, and SavedModels of export_model.py as models."""

from __future__ import annotations

import bisect
import os
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from electra_tf import startup
from electra_tf.console import silent
from electra_tf.errors import UserError
from electra_tf.finetune import conll, inputs, qa
from electra_tf.finetune.inputs import Input, Source
from electra_tf.finetune.results import hparams_in
from electra_tf.finetune.task import rounded
from electra_tf.inference import finetuned, pretrained_model
from electra_tf.inference.model import Model, Predictor, plain
from electra_tf.inference.scoring import chunks
from electra_tf.paths import local_of, readable_by_tensorflow
from electra_tf.storage.manifest import saved_model_in, verify_folder
from electra_tf.storage.mirror import bring_model
from electra_tf.text.tokenization import Tokenizer, encoded
from electra_tf.text.vocabulary import Vocabulary

_BATCH = 64
_ANSWERS = {"label", "labels", "value", "answer"}
# Parts of a pre-trained model -> (signature and output for ids).
_PARTS = {
    "encoder": ("serving_default", "sequence_output"),
    "preprocessor": ("serving_default", "input_word_ids"),
    "detector": ("ids", "probabilities"),
    "generator": ("ids", "mlm_logits"),
    "scorer": ("ids", "token_scores"),
}
_IDS = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")


def _read_saved_model(folder: Path) -> SavedModelPredictor | SavedModelPart:
    """The SavedModel of a fine-tuned task, or of a part of a model, in a folder.

    Raises `UserError`: 2 for other SavedModels, 65 for a damaged one.
    """
    manifest = verify_folder(folder, silent)
    startup.import_tensorflow()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - its ops are in the graph

    loaded = tf.saved_model.load(readable_by_tensorflow(folder))
    call = loaded.signatures.get("serving_default")
    if call and _ANSWERS & call.structured_outputs.keys():
        return SavedModelPredictor(folder, call, manifest)
    if manifest.get("what") in _PARTS:
        return SavedModelPart(folder, loaded, manifest)
    raise UserError(f"{folder} is a SavedModel, but not one of export_model.py.")


class SavedModelPart(Model):
    """An encoder, preprocessor, detector, generator or scorer.

    Args:
      loaded: the SavedModel, which owns the variables.
      manifest: of the export.
    """

    def __init__(self, folder: Path, loaded: Any, manifest: dict[str, Any]):
        import tensorflow as tf

        kind = manifest["what"]
        self.name = self.origin = str(folder.absolute())
        self.what = f"the SavedModel of a model's {kind}"
        self.vocab = Vocabulary.load(folder / "assets" / "vocab.txt")
        settings = manifest["do_lower_case"], manifest["strip_accents"]
        self.tokenizer = Tokenizer(self.vocab, *settings)
        self.max_seq_length = manifest["max_seq_length"]
        self._loaded, (signature, output) = loaded, _PARTS[kind]
        call = loaded.signatures[signature]

        def run(*inputs):
            tensors = map(tf.convert_to_tensor, inputs)
            return call(**dict(zip(_IDS, tensors, strict=False)))[output]

        if kind == "encoder":
            self.encoder = lambda *x: types.SimpleNamespace(sequence_output=run(*x))
            self.encoder.hidden_size = call.structured_outputs[output].shape[-1]
        elif kind == "detector":
            self._detect = run
        elif kind == "generator":
            self._logits_at = run
        elif kind == "scorer":
            self.methods = {"electric": run}

    def __repr__(self) -> str:
        return f"<{self.what} from {self.name}>"


class SavedModelPredictor(Predictor):
    """A fine-tuned task whose graph reads texts and answers.

    Args:
      call: its signature.
      manifest: of the export; {} without one.
    """

    def __init__(self, folder: Path, call: Any, manifest: dict[str, Any]):
        self._call = call
        self._takes = tuple(sorted(call.structured_input_signature[1]))
        self._is_tagger = "words" in call.structured_outputs
        reads = "questions" if "question" in self._takes else "texts"
        super().__init__(
            str(folder.absolute()),
            manifest.get("task", folder.parent.name),
            "words" if self._is_tagger else reads,
            len(self._takes),
        )
        self._choices = [*map(tuple, manifest.get("columns", [])), self._takes]
        self._identity = tuple(manifest.get("identity", ("id", "index")))
        self._word_column = manifest.get("words", "words")
        self._delimiter = manifest.get("delimiter")

    def read_inputs(self, source: Source) -> Iterator[Input]:
        """Reads inputs by the columns of the task's description."""
        if self.reads == "texts":
            source = source._replace(delimiter=self._delimiter)
            return inputs.texts(source, self._choices, self._identity)
        if self.reads == "words":
            return conll.words(source, self._word_column, self._identity)
        return qa.questions(source)

    def predictions(
        self, inputs: Iterable[Input]
    ) -> Iterator[tuple[Input, dict[str, Any]]]:
        """Yields each input with its prediction, in order."""
        import tensorflow as tf

        for chunk in chunks(inputs, _BATCH):
            texts = [one.fields for one in chunk]
            if self._is_tagger:
                texts = [{"text": " ".join(x.get("words", ()))} | x for x in texts]
            columns = {
                name: tf.constant([encoded(one[name]) for one in texts])
                for name in self._takes
            }
            outputs = {k: v.numpy() for k, v in self._call(**columns).items()}
            for row, one in enumerate(chunk):
                answer = {name: plain(values[row]) for name, values in outputs.items()}
                yield one, self._answer_of(one.fields, answer)

    def _answer_of(self, fields: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        """Same keys as `Task.prediction`."""
        if self._is_tagger and "words" in fields:
            return _tags(fields["words"], row)
        if self._is_tagger:
            count = row["num_words"]
            shares = [*map(rounded, row["probabilities"][:count])]
            tagged = {"tags": row["labels"][:count], "probabilities": shares}
            return {"words": row["words"][:count]} | tagged
        if "value" in row:
            return {"value": rounded(row["value"])}
        if "answer" in row:
            return _answer(row)
        values = map(rounded, row["probabilities"])
        shares = dict(zip(row["labels"], values, strict=True))
        if "label" in row:
            return {"label": row["label"], "probabilities": shares}
        labels = [name for name, share in shares.items() if share > 0.5]
        return {"labels": labels, "probabilities": shares}


def _tags(words: list[str], row: dict[str, Any]) -> dict[str, Any]:
    """The tag of each word: that of the first word that the graph finds in it.

    As in `TaggingTask`, a word that the tokenizer drops gets the next word's tag. At
    the end it would be the tag of [SEP], which the graph does not return: it is "O",
    without a probability.
    """
    starts = [start for start in row["starts"] if start >= 0]
    tags, shares, first = [], [], 0
    for word in words:
        place = bisect.bisect_left(starts, first)
        is_found = place < len(starts)
        tags.append(row["labels"][place] if is_found else "O")
        shares.append(rounded(row["probabilities"][place]) if is_found else None)
        first += len(word) + 1
    return {"tags": tags, "probabilities": shares}


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    answer = {name: row[name] for name in ("answer", "start", "end")}
    numbers = [n for n in ("score", "probability", "null_odds") if n in row]
    answer |= {name: rounded(row[name]) for name in numbers}
    if row["start"] < 0:
        answer |= {"start": None, "end": None, "score": 0.0}
    if "null_odds" in row:
        answer["has_answer"] = bool(row["has_answer"])
    return answer


def load(
    path: str | os.PathLike, task: str | None = None, data_dir: str | None = None
) -> Any:
    """Loads a model: a fine-tuned one, which predicts, or a pre-trained one.

    Args:
      path: the directory of a fine-tuned trial, whose newest weights are taken (or the
        best, where kept); an exported SavedModel of a task or of a part of a
        pre-trained model; a directory of Hugging Face with the head of a task; or a
        `path` of `inference.pretrained_model.load`.
      task: of a trial with several.
      data_dir: of the vocabulary, for a trial that was moved.

    Returns a `Model`.

    Raises `UserError` if the path holds no model, or if its files do not fit together.
    """
    folder = Path(local_of(os.fspath(path)))
    bring_model(folder)
    if names := hparams_in(folder).get("task_names"):
        if task is None and len(names) > 1:
            raise UserError(
                f"{folder} has several tasks: {', '.join(names)}.\n"
                "Name one: --task, or task= of electra_tf.load."
            )
        if task is None and ":" in names[0]:
            raise UserError(
                f"{folder}: its task {names[0]} is Python code, which is run only if "
                "you name it: --task, or task= of electra_tf.load."
            )
        trained = finetuned.read_trial(folder, task, data_dir=data_dir)
        return finetuned.predictor_of(trained, folder, task or names[0])
    if saved := saved_model_in(folder):
        model = _read_saved_model(saved)
    else:
        model = finetuned.read_huggingface(folder) or pretrained_model.load(path)
    if task not in (None, getattr(model, "task", None)):
        raise UserError(f"task {task!r}: {model.name} is {model.what}.")
    return model


def load_predictor(
    path: str, task: str | None = None, data_dir: str | None = None
) -> Predictor:
    """The fine-tuned model at a path; `UserError` for other models. See `load`."""
    model = load(path, task, data_dir)
    if not isinstance(model, Predictor):
        raise model.lacks("predict")
    return model
