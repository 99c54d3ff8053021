# SPDX-License-Identifier: Apache-2.0
"""SavedModels of a pre-trained model, for serving and for building upon."""

from __future__ import annotations

import os
from pathlib import Path

from electra_tf.errors import UserError
from electra_tf.interop.formats import read_source
from electra_tf.interop.stored_model import HEADS, StoredModel, empty_pretrainer
from electra_tf.serving import encoder, fill_mask, judges, writing
from electra_tf.serving.exported import Source
from electra_tf.serving.manifests import verify_checksums

WHAT = {
    "encoder": encoder.encoder,
    "preprocessor": encoder.preprocessor,
    "detector": judges.detector,
    "generator": fill_mask.generator,
    "scorer": judges.scorer,
}


def source_of(stored: StoredModel) -> Source:
    """What to export of a model that was read from disk.

    Of an encoder without heads only that can be exported.
    """
    if any(name.startswith(HEADS) for name in stored.tensors):
        pretrainer = stored.pretrainer()
    else:
        pretrainer = empty_pretrainer(stored.config, stored.vocab)
        for variable in pretrainer.electra.variables:
            variable.assign(stored.tensors[variable.path])
        pretrainer.discriminator_predictions = None
        pretrainer.generator = None
    return Source(
        name=stored.name,
        vocab=stored.vocab,
        tokenizer_config=stored.tokenizer_config,
        max_seq_length=stored.config.max_seq_length,
        pretrainer=pretrainer,
        facts={"step": stored.step},
    )


def kinds_of(source: Source) -> list[str]:
    """The keys of WHAT that a model has."""
    model = source.pretrainer
    kinds = ["encoder", "preprocessor"]
    if model.discriminator_predictions is not None:
        kinds.append("detector")
        kinds += ["scorer"] * (model.objective == "electric")
    return kinds + ["generator"] * hasattr(model.generator, "head")


def check_what(what: str | None) -> None:
    """Raises UserError unless `what` is None or a key of WHAT."""
    if what is not None and what not in WHAT:
        raise UserError(f"--what {what!r} is none of {', '.join(WHAT)}.")


def export_saved_model(
    source: Source, what: str, output_dir: str | os.PathLike
) -> Path:
    """Writes a SavedModel that loads with tensorflow and tensorflow_text alone.

    Args:
      what: a key of WHAT.
      output_dir: gets `<what>/<version>/`, as TensorFlow Serving wants it.

    Returns the directory of the version.  Raises UserError if the model has no such
    part, or if it cannot be written.
    """
    check_what(what)
    return writing.write(WHAT[what](source), source, what, output_dir)


def write_saved_model(request) -> str:
    """What export_model.py calls for --format saved_model.

    Without --what, everything that the model has is written.
    """
    check_what(request.what)
    source = source_of(read_source(request))
    for what in [request.what] if request.what else kinds_of(source):
        written = export_saved_model(source, what, request.output_dir)
        manifest = verify_checksums(written)
        gap = manifest["max_difference"]
        print(f"{what}: {written}, greatest difference from the model {gap:.1e}")
    return request.output_dir
