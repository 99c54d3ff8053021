# SPDX-License-Identifier: Apache-2.0
"""SavedModels of a pre-trained model, for serving and for building upon."""

from __future__ import annotations

import os
from pathlib import Path

from electra_tf.errors import UserError
from electra_tf.export import (
    classifier,
    encoder,
    fill_mask,
    finetuned,
    judges,
    question_answering,
    writing,
)
from electra_tf.export.exported import Source
from electra_tf.export.formats import read_source
from electra_tf.interop.stored_model import HEADS, StoredModel
from electra_tf.pretrain.pretraining import build_pretrainer
from electra_tf.storage.manifest import verify_checksums

WHAT = {
    "encoder": encoder.encoder,
    "preprocessor": encoder.preprocessor,
    "detector": judges.detector,
    "generator": fill_mask.generator,
    "scorer": judges.scorer,
}
# By the kind of a fine-tuned task.
TASKS = {
    "classification": classifier.text_classifier,
    "regression": classifier.text_classifier,
    "tagging": classifier.tagger,
    "qa": question_answering.question_answering,
}


def source_of(stored: StoredModel, precision: str = "float32") -> Source:
    """What to export of a model that was read from disk.

    Args:
      precision: "float32" or "mixed_bfloat16", the type of the computation; weights
        and answers are float32.

    Of an encoder without heads only that can be exported.
    """
    vocab = stored.vocab
    special_ids = vocab.cls_id, vocab.sep_id, vocab.mask_id
    pretrainer = build_pretrainer(stored.config, special_ids, dtype=precision)
    if any(name.startswith(HEADS) for name in stored.tensors):
        variables = pretrainer.variables
    else:
        variables = pretrainer.electra.variables
        pretrainer.discriminator_predictions = None
        pretrainer.generator = None
    for variable in variables:
        variable.assign(stored.tensors[variable.path])
    return Source(
        name=stored.name,
        vocab=vocab,
        tokenizer_config=stored.tokenizer_config,
        max_seq_length=stored.config.max_seq_length,
        pretrainer=pretrainer,
        facts={"step": stored.step, "precision": precision},
    )


def kinds_of(source: Source) -> list[str]:
    """The keys of WHAT that a model has."""
    model = source.pretrainer
    kinds = ["encoder", "preprocessor"]
    if model.discriminator_predictions is not None:
        kinds.append("detector")
        kinds += ["scorer"] * (model.objective.scoring == "electric")
    fills_masks = model.generator is not None and model.generator.fills_masks
    return kinds + ["generator"] * fills_masks


def check_what(what: str | None) -> None:
    """Raises UserError unless `what` is None or a key of WHAT."""
    if what is not None and what not in WHAT:
        raise UserError(f"--what {what!r} is none of {', '.join(WHAT)}.")


def export_saved_model(
    source: Source,
    what: str,
    output_dir: str | os.PathLike,
    exact: Source | None = None,
) -> Path:
    """Writes a SavedModel that loads with tensorflow and tensorflow_text alone.

    Args:
      what: a key of WHAT.
      output_dir: gets `<what>/<version>/`, as TensorFlow Serving wants it.
      exact: the model in float32 where `source` is not; the manifest then says how
        much of its accuracy is lost.

    Returns the directory of the version.  Raises UserError if the model has no such
    part, or if it cannot be written.
    """
    check_what(what)
    exact_checks = WHAT[what](exact).checks if exact else []
    return writing.write(WHAT[what](source), source, what, output_dir, exact_checks)


def write_saved_model(request) -> str:
    """What export_model.py calls for --format saved_model.

    Without --what, everything that the model has is written; another name than those in
    WHAT is a fine-tuned task's.
    """
    if request.what and request.what not in WHAT:
        _report(request.what, _write_task(request))
        return request.output_dir
    stored = read_source(request)
    source = source_of(stored, request.precision)
    exact = None if request.precision == "float32" else source_of(stored)
    for what in [request.what] if request.what else kinds_of(source):
        _report(what, export_saved_model(source, what, request.output_dir, exact))
    return request.output_dir


def _write_task(request) -> Path:
    folder, precision = finetuned.trial_dir_of(request), request.precision
    task = finetuned.read(folder, request.what, precision)
    make = TASKS[task.facts.kind]
    exact_checks = []
    if precision != "float32":
        exact_checks = make(finetuned.read(folder, request.what)).checks
    print(f"{request.what}: from {folder}")
    name = request.what.replace(":", ".")
    return writing.write(
        make(task), task.source, name, request.output_dir, exact_checks
    )


def _report(what: str, written: Path) -> None:
    """Says what was written, and how far it is from the model."""
    manifest = verify_checksums(written)
    gap = manifest["max_difference"]
    print(f"{what}: {written}, greatest difference from the model {gap:.1e}")
    for name, lost in manifest.get("differences_from_float32", {}).items():
        print(f"  {name}: {lost:.1e} from float32")
