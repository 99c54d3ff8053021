# SPDX-License-Identifier: Apache-2.0
"""What model lies at a path; SavedModels of export_model.py as loaded models."""

from __future__ import annotations

import bisect
import os
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from electra_tf import startup
from electra_tf.console import Console, duration, say_nothing
from electra_tf.errors import UserError
from electra_tf.finetune import conll, inputs, qa
from electra_tf.finetune.inputs import Input, Source
from electra_tf.finetune.results import CONFIG, hparams_in
from electra_tf.finetune.task import rounded
from electra_tf.inference import finetuned, pretrained_model
from electra_tf.inference.model import Model, Predictor, plain
from electra_tf.inference.scoring import batched
from electra_tf.paths import local_of, readable_by_tensorflow
from electra_tf.storage.files import line_writer
from electra_tf.storage.manifest import (
    MANIFEST,
    read_json,
    saved_model_in,
    verify_folder,
)
from electra_tf.storage.remote_run import bring_model
from electra_tf.text.records import json_line
from electra_tf.text.tokenization import Tokenizer, encoded
from electra_tf.text.vocabulary import Vocabulary

_BATCH = 64
# The inputs of a task's signature -> what it reads.
_READS = {
    ("text",): "texts",
    ("text", "text_b"): "texts",
    ("context", "question"): "questions",
}
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
    """The SavedModel in a folder: of a fine-tuned task, or of a part of a model.

    Raises `UserError`: 2 for a SavedModel of something else, 65 for a damaged one.
    """
    manifest = verify_folder(folder, say_nothing)
    startup.import_tensorflow()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 - its ops are in the graph

    loaded = tf.saved_model.load(readable_by_tensorflow(folder))
    call = loaded.signatures.get("serving_default")
    if call and _ANSWERS & call.structured_outputs.keys():
        return SavedModelPredictor(folder, call, manifest)
    if manifest.get("what") in _PARTS:
        return SavedModelPart(folder, loaded, manifest)
    raise UserError(f"{folder} is a SavedModel that export_model.py has not written.")


class _Encoder:
    """The encoder of a SavedModel, called as `TextEncoder` is."""

    def __init__(self, states: Callable[..., Any], hidden_size: int):
        self._states, self.hidden_size = states, hidden_size

    def __call__(self, *inputs) -> Any:
        return types.SimpleNamespace(sequence_output=self._states(*inputs))


class SavedModelPart(Model):
    """An encoder, preprocessor, detector, generator or scorer.

    Args:
      loaded: the SavedModel; it has to be kept, or its variables are deleted.
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

        def of_ids(*inputs):
            tensors = map(tf.convert_to_tensor, inputs)
            return call(**dict(zip(_IDS, tensors, strict=False)))[output]

        if kind == "encoder":
            self.encoder = _Encoder(of_ids, call.structured_outputs[output].shape[-1])
        elif kind == "detector":
            self._detect = of_ids
        elif kind == "generator":
            self._logits_at = of_ids
        elif kind == "scorer":
            self.methods, self._scores = ("electric",), of_ids

    def _score_function(self, method: str) -> Callable[..., Any]:
        del method
        return self._scores

    def __repr__(self) -> str:
        return f"<{self.what} from {self.name}>"


class SavedModelPredictor(Predictor):
    """A fine-tuned task; its graph reads texts and answers.

    Args:
      call: its signature.
      manifest: of the export; {} without one.
    """

    def __init__(self, folder: Path, call: Any, manifest: dict[str, Any]):
        self._call = call
        self._takes = tuple(sorted(call.structured_input_signature[1]))
        self._is_tagger = "words" in call.structured_outputs
        super().__init__(
            str(folder.absolute()),
            manifest.get("task", folder.parent.name),
            "words" if self._is_tagger else _READS[self._takes],
            len(self._takes),
        )
        self._choices = [*map(tuple, manifest.get("columns", [])), self._takes]
        self._identity = tuple(manifest.get("identity", ("id", "index")))
        self._word_column = manifest.get("words", "words")

    def read_inputs(self, source: Source) -> Iterator[Input]:
        """What is to be predicted, in the columns of the task's description."""
        if self.reads == "texts":
            return inputs.texts(source, self._choices, self._identity)
        if self.reads == "words":
            return conll.words(source, self._word_column, self._identity)
        return qa.questions(source)

    def predictions(
        self, inputs: Iterable[Input]
    ) -> Iterator[tuple[Input, dict[str, Any]]]:
        """Yields each input with its prediction, in order."""
        import tensorflow as tf

        for chunk in batched(inputs, _BATCH):
            texts = [one.fields for one in chunk]
            if self._is_tagger:
                texts = [{"text": " ".join(one["words"])} for one in texts]
            columns = {
                name: tf.constant([encoded(one[name]) for one in texts])
                for name in self._takes
            }
            found = {k: v.numpy() for k, v in self._call(**columns).items()}
            for row, one in enumerate(chunk):
                answer = {name: plain(values[row]) for name, values in found.items()}
                yield one, self._answer_of(one.fields, answer)

    def _answer_of(self, fields: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
        """As `Task.prediction`."""
        if self._is_tagger:
            return _tags(fields["words"], row)
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

    Or after it, where nothing of a word is left: as `TaggingTask` reads it. If nothing
    of the words at the end is left, their tag there is that of [SEP], which the graph
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
    answer = {
        "answer": row["answer"],
        "start": row["start"] if is_there else None,
        "end": row["end"] if is_there else None,
        "score": rounded(row["score"]) if is_there else 0.0,
        "probability": rounded(row["probability"]),
    }
    if "null_odds" in row:
        answer["null_odds"] = rounded(row["null_odds"])
        answer["has_answer"] = bool(row["has_answer"])
    return answer


def load(
    path: str | os.PathLike, task: str | None = None, data_dir: str | None = None
) -> Any:
    """Loads a model: a fine-tuned one, which predicts, or a pre-trained one.

    Args:
      path: the directory of a fine-tuned trial, whose newest (or best, where that was
        kept) weights are taken; an exported SavedModel of a task or of a part of a
        pre-trained model; a directory of Hugging Face with the head of a task; or what
        `inference.pretrained_model.load` takes.
      task: of a trial with several; of an export the one that it is of.
      data_dir: where the vocabulary of a trial is that lies elsewhere.

    Returns a `Model`.

    Raises `UserError` if the path holds none, or if its files do not fit each other.
    """
    found = _find(Path(local_of(os.fspath(path))), task, data_dir)
    if task is not None and not isinstance(found, Predictor):
        raise UserError(f"{path} is not fine-tuned: it has no task {task!r}.")
    return found or pretrained_model.load(path)


def load_predictor(
    path: str, task: str | None = None, data_dir: str | None = None
) -> Predictor:
    """The fine-tuned model at a path; see `load`.

    Raises `UserError` for anything else, naming the fine-tuned models of a run.
    """
    found = _find(Path(path), task, data_dir)
    if isinstance(found, Predictor):
        return found
    trials = Path(path).glob(f"finetuning_models/*/{CONFIG}")
    names = sorted({str(trial.parent) for trial in trials} | set(_exported_below(path)))
    advice = "Give the directory of a trial, finetuning_models/<tasks>_model_1."
    if names:
        advice = f"Its fine-tuned models: {', '.join(names)}."
    raise UserError(
        f"{path} is not a fine-tuned model: a trial of run_finetuning.py, a SavedModel "
        f"of a task, or a model of Hugging Face with the head of one.\n{advice}"
    )


def _exported_below(path: str) -> Iterator[str]:
    """The tasks in the --output-dir of an export, which has a folder for each part."""
    for depth in ("*", "*/*"):  # A SavedModel has a version between.
        for manifest in Path(path).glob(f"{depth}/{MANIFEST}"):
            if "task" in read_json(manifest):
                yield str(Path(path, manifest.relative_to(path).parts[0]))


def _find(folder: Path, name: str | None, data_dir: str | None) -> Model | None:
    """The fine-tuned model or the SavedModel in a folder, if it holds one."""
    bring_model(folder)
    if names := hparams_in(folder).get("task_names"):
        if name is None and len(names) > 1:
            raise UserError(
                f"{folder} has several tasks: {', '.join(names)}.\n"
                "Name one: --task, or task= of electra_tf.load."
            )
        trained = finetuned.read_trial(folder, name, data_dir=data_dir)
        return finetuned.predictor_of(trained, folder, name)
    if saved := saved_model_in(folder):
        _check_task(saved, "task", name)
        return _read_saved_model(saved)
    if found := finetuned.read_huggingface(folder):
        _check_task(folder, "what", name)
    return found


def _check_task(folder: Path, key: str, name: str | None) -> None:
    """Refuses an export that is of another task than the one that is meant.

    Args:
      key: of the manifest, which says its task.
    """
    path = folder / MANIFEST
    said = read_json(path).get(key) if path.is_file() else None
    if name not in (None, said):
        theirs = f"is of the task {said!r}" if said else "does not say what task it has"
        raise UserError(
            f"--task {name}: {folder} {theirs}.\nLeave --task out, or give the model "
            "of that task."
        )


def write(
    predictor: Predictor, inputs: Iterable[Input], output: str | None, console: Console
) -> None:
    """Writes a prediction for each input, in order, as JSON lines.

    Args:
      output: a file, which appears when it is complete; None: standard output.

    Raises `UserError`: 73 when it cannot be written, 75 while another process does.
    """
    begin, line = time.monotonic(), "0 texts"
    with line_writer(output) as write_line:
        for count, row in enumerate(predictor.rows(inputs), 1):
            write_line(json_line(row))
            seconds = time.monotonic() - begin
            texts = f"{count:,} text{'s'[: count != 1]}"
            line = f"{texts}, {count / seconds:,.0f} texts/s, {duration(seconds)}"
            console.tick(line)
    console.log(line)
