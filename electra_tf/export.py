# SPDX-License-Identifier: Apache-2.0
"""SavedModels of a pre-trained model, for serving and for building upon."""

from __future__ import annotations

import os
from pathlib import Path

from electra_tf.errors import UserError
from electra_tf.serving import encoder, fill_mask, judges, writing
from electra_tf.serving.exported import Source
from electra_tf.vocabulary import resolve_settings

WHAT = {
    "encoder": encoder.encoder,
    "preprocessor": encoder.preprocessor,
    "detector": judges.detector,
    "generator": fill_mask.generator,
    "scorer": judges.scorer,
}


def source_of(model) -> Source:
    """What to export of a PretrainedModel (see `electra_tf.load`)."""
    config = model.config
    return Source(
        name=config.model_name,
        vocab=model.vocab,
        tokenizer_config=resolve_settings(
            model.vocab, do_lower_case=config.do_lower_case
        ),
        max_seq_length=config.max_seq_length,
        pretrainer=model.pretrainer,
        facts={},
    )


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
    if what not in WHAT:
        raise UserError(f"--what {what!r} is none of {', '.join(WHAT)}.")
    return writing.write(WHAT[what](source), source, what, output_dir)
