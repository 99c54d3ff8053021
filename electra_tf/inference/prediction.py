# SPDX-License-Identifier: Apache-2.0
"""Loads models of any kind, and SavedModels of export_model.py as models."""

from __future__ import annotations

import os
import types
from pathlib import Path
from typing import Any

from electra_tf import startup
from electra_tf.console import silent
from electra_tf.errors import UserError
from electra_tf.finetune.registry import TYPES
from electra_tf.finetune.results import hparams_in
from electra_tf.finetune.task import plain
from electra_tf.inference import finetuned, pretrained_model
from electra_tf.inference.model import Model, Predictor
from electra_tf.inference.scoring import chunks
from electra_tf.paths import local_of, readable_by_tensorflow
from electra_tf.storage.manifest import saved_model_in, verify_folder
from electra_tf.storage.mirror import bring_model
from electra_tf.text.tokenization import Tokenizer, encoded
from electra_tf.text.vocabulary import Vocabulary

_BATCH = 64
# Parts of a pre-trained model -> (signature and output for ids).
_PARTS = {
    "encoder": ("serving_default", "sequence_output"),
    "preprocessor": ("serving_default", "input_word_ids"),
    "detector": ("ids", "probabilities"),
    "generator": ("ids", "mlm_logits"),
    "scorer": ("ids", "token_scores"),
}
_IDS = ("input_word_ids", "input_mask", "input_type_ids", "masked_lm_positions")


def _read_saved_model(folder: Path) -> Model:
    """The SavedModel of a fine-tuned task, or of a part of a model, in a folder.

    Raises `UserError`: 2 for other SavedModels, 65 for a damaged one.
    """
    manifest = verify_folder(folder, silent)
    startup.import_tensorflow()
    import tensorflow as tf

    with startup.optional("tensorflow-text", f"{folder}, a SavedModel,"):
        import tensorflow_text  # noqa: F401 - its ops are in the graph

    loaded = tf.saved_model.load(readable_by_tensorflow(folder))
    if manifest.get("what") in _PARTS:
        return _part(folder, loaded, manifest)
    if "type" in manifest:
        return _task(folder, loaded.signatures["serving_default"], manifest)
    raise UserError(f"{folder} is a SavedModel, but not one of export_model.py.")


def _part(folder: Path, loaded: Any, manifest: dict[str, Any]) -> Model:
    """An encoder, preprocessor, detector, generator or scorer.

    Args:
      loaded: the SavedModel, which owns the variables.
      manifest: of the export.
    """
    import tensorflow as tf

    model, kind = Model(), manifest["what"]
    model.name = model.origin = str(folder.absolute())
    model.what = f"the SavedModel of a model's {kind}"
    model.vocab = Vocabulary.load(folder / "assets" / "vocab.txt")
    settings = manifest["do_lower_case"], manifest["strip_accents"]
    model.tokenizer = Tokenizer(model.vocab, *settings)
    model.max_seq_length = manifest["max_seq_length"]
    model.network, (signature, output) = loaded, _PARTS[kind]
    call = loaded.signatures[signature]

    def run(*inputs):
        tensors = map(tf.convert_to_tensor, inputs)
        return call(**dict(zip(_IDS, tensors, strict=False)))[output]

    if kind == "encoder":
        model.encoder = lambda *x: types.SimpleNamespace(sequence_output=run(*x))
        model.encoder.hidden_size = call.structured_outputs[output].shape[-1]
    elif kind == "detector":
        model._detect = run
    elif kind == "generator":
        model._logits_at = run
    elif kind == "scorer":
        model.methods = {"electric": run}
    return model


def _task(folder: Path, call: Any, manifest: dict[str, Any]) -> Predictor:
    """A fine-tuned task whose graph reads texts and answers.

    Args:
      call: its signature.
      manifest: of the export.
    """
    takes, head = {*call.structured_input_signature[1]}, TYPES[manifest["type"]].head
    fields = [name for name in head.fields if name in takes]
    settings = manifest | {"columns": [*manifest.get("columns", []), fields]}

    def predictions(inputs):
        for chunk in chunks(inputs, _BATCH):
            given = [head.served_inputs(one.fields) for one in chunk]
            columns = {n: _strings([one[n] for one in given]) for n in takes}
            answers = {name: x.numpy() for name, x in call(**columns).items()}
            for number, one in enumerate(chunk):
                row = {name: plain(values[number]) for name, values in answers.items()}
                yield one, head.prediction(one.fields, row)

    return Predictor(
        origin=str(folder.absolute()),
        task=manifest["task"],
        head=head,
        read_inputs=lambda source: head.read_inputs(source, settings),
        predictions=predictions,
        num_fields=len(fields),
    )


def _strings(values: list[Any]) -> Any:
    """A tensor of texts [B], or of lists of texts [B, C], filled up with ""."""
    import tensorflow as tf

    if isinstance(values[0], str):
        return tf.constant([*map(encoded, values)])
    lists = [[*map(encoded, one)] for one in values]
    return tf.ragged.constant(lists, tf.string, ragged_rank=1).to_tensor("")


def load(
    path: str | os.PathLike, task: str | None = None, data_dir: str | None = None
) -> Any:
    """Loads a model: a fine-tuned one, which predicts, or a pre-trained one.

    Args:
      path: a run, a fine-tuned trial, an exported SavedModel, a checkpoint of the
        original, or a directory in the format of Hugging Face or KerasHub. For a trial
        the newest weights are taken, or the best where they are kept.
      task: which task, if the trial has several.
      data_dir: the data directory with the vocabulary, for a trial that was moved.

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
        return finetuned.read_trial(folder, task, data_dir=data_dir)
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
