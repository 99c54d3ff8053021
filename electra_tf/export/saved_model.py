# SPDX-License-Identifier: Apache-2.0
"""SavedModels of pre-trained and fine-tuned models, written and verified."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export import ExportRequest, finetuned_task, parts
from electra_tf.export.signatures import NAMES, Check, Servable
from electra_tf.inference.finetuned import FinetunedModel
from electra_tf.inference.model import Model
from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.interop import verification
from electra_tf.paths import readable_by_tensorflow, shown
from electra_tf.storage.atomic_folder import atomic_folders, next_version

WHAT = {
    "encoder": parts.encoder,
    "preprocessor": parts.preprocessor,
    "detector": parts.detector,
    "generator": parts.generator,
    "scorer": parts.scorer,
}
# Allowed difference from the model. bfloat16 has 8 bits, and fused operations round at
# other places.
TOLERANCE = {"float32": 1e-5, "mixed_bfloat16": 0.25}


def kinds_of(source: PretrainedModel) -> list[str]:
    """The parts that a model has, keys of WHAT."""
    if not (model := source.pretrainer):
        return ["encoder", "preprocessor"]
    # A generator's two towers read no text as a whole.
    has_encoder = bool(model.electra.encoder.transformer_layers)
    kinds = ["encoder"] * has_encoder + ["preprocessor"]
    if model.discriminator_predictions is not None:
        kinds.append("detector")
        kinds += ["scorer"] * (model.objective.scoring == "electric")
    fills_masks = model.generator.logits_at is not None
    return kinds + ["generator"] * fills_masks


def parts_of(
    source: PretrainedModel,
    what: str | None,
    format: str = "saved_model",
    known: Collection[str] = WHAT,
) -> list[str]:
    """The parts of a pre-trained model to export.

    Args:
      what: the requested part; None: all.
      format: that of export_model.py; it can hold the parts `known`.

    Raises `UserError` if there is none.
    """
    there = [kind for kind in kinds_of(source) if kind in known]
    if what not in (None, *there) or not there:
        raise UserError(
            f"{source.name} is {source.what}: it has no "
            f"{what or 'part'} for --format {format}.\nThat format has --what "
            f"{', '.join(there) or '(nothing)'}."
        )
    return [what] if what else there


def write_saved_models(
    servables: Mapping[str, Servable], source: Model, output_dir: str | os.PathLike
) -> list[Path]:
    """Writes `<output_dir>/<what>/<next version>/` as TensorFlow Serving expects them.

    They load with tensorflow and tensorflow_text alone. They get one version number,
    and appear when all are complete.

    Args:
      servables: by the names to serve them under.

    Returns the directories.  Raises `UserError`: 73 when they cannot be written, 65
    if one does not compute the same as the model.
    """
    finals = next_version([Path(output_dir) / what for what in servables])
    with atomic_folders(finals) as folders:
        gaps = [
            fill_folder(folder, servable, source, what)
            for (what, servable), folder in zip(servables.items(), folders, strict=True)
        ]
    for what, final, gap in zip(servables, finals, gaps, strict=True):
        print(shown(f"{what}: {final}, greatest difference from the model {gap:.1e}"))
    return finals


def fill_folder(folder: Path, servable: Servable, source: Model, what: str) -> float:
    """Writes a SavedModel into a folder, loads it again, and writes the manifest.

    Args: as of `write_saved_models`.

    Returns the greatest difference from the model.  Raises `OSError` when it cannot be
    written, `UserError` (65) when that difference is beyond TOLERANCE.
    """
    # The graph has the vocabulary; the asset is for people and tools.
    vocab_file = folder / "vocab.txt"
    text = "".join(f"{token}\n" for token in source.vocab.tokens)
    vocab_file.write_text(text, encoding="utf-8")
    servable.root.vocab_file = tf.saved_model.Asset(str(vocab_file))
    try:
        tf.saved_model.save(servable.root, str(folder), signatures=servable.signatures)
        vocab_file.unlink()
    except tf.errors.OpError as error:
        raise OSError(None, error.message.splitlines()[0]) from error
    tolerance = TOLERANCE[source.precision]
    loaded = tf.saved_model.load(readable_by_tensorflow(folder))
    results = _compared(loaded, servable.checks, tolerance)
    facts = {
        "format": "saved_model",
        "what": what,
        "model": source.title,
        "max_seq_length": source.max_seq_length,
        "vocab_sha256": source.vocab.sha256,
        **source.tokenizer.config._asdict(),
        **servable.facts,
        **source.provenance,
        "precision": source.precision,
    }
    verification.write_manifest(folder, facts, results)
    return max(r.difference for r in results)


def _compared(
    loaded, checks: Sequence[Check], tolerance: float
) -> list[verification.Result]:
    """Compares each output; `UserError` (65) beyond the tolerance."""
    results = []
    for check in checks:
        inputs = {name: tf.constant(x) for name, x in check.inputs.items()}
        outputs = loaded.signatures[check.signature](**inputs)
        found = {name: outputs[name].numpy() for name in check.expected}
        both = check.expected, found, check.inputs.get(NAMES[1])
        reader = f"tensorflow, {check.signature}"
        results += verification.compare(reader, *both, tolerance=tolerance)
    return results


def servables_of(
    request: ExportRequest, precision: str = "float32", known: Collection[str] = WHAT
) -> tuple[PretrainedModel | FinetunedModel, dict[str, Servable]]:
    """(the model of a request, what to export of it by its name).

    Another --what than those in WHAT is a fine-tuned task.

    Args:
      known: see `parts_of`.
    """
    what = request.what
    if what in (None, *WHAT):
        model = PretrainedModel.of(request.read_model(), precision)
        kinds = parts_of(model, what, request.format, known)
        return model, {kind: WHAT[kind](model) for kind in kinds}
    task = finetuned_task.task_of(request, precision)
    print(shown(f"{what}: from {task.folder}, {precision}"))
    servable = finetuned_task.servable(task)
    return task, {what.replace(":", "."): servable}


def export_saved_model(request: ExportRequest) -> str:
    """Without --what, everything that the model has."""
    source, servables = servables_of(request, request.precision)
    write_saved_models(servables, source, request.output_dir)
    return request.output_dir
