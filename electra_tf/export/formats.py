# SPDX-License-Identifier: Apache-2.0
"""What export_model.py calls: a request of its command line to a written folder.

A request has model_dir (of a run) or init_checkpoint, vocab_file, hparams, what and
output_dir.
"""

from __future__ import annotations

from pathlib import Path

from electra_tf.interop import (
    huggingface,
    keras_hub,
    networks,
    output_folder,
    sources,
    tf1,
)
from electra_tf.interop.stored_model import StoredModel


def read_source(request) -> StoredModel:
    """The model that a request names."""
    path = request.model_dir or request.init_checkpoint
    return sources.read(path, request.vocab_file, request.hparams)


def write_tf1(request) -> Path:
    """An original checkpoint."""
    output_folder.check_free(request.output_dir)
    return tf1.write(read_source(request), request.what or "all", request.output_dir)


def write_huggingface(request) -> Path:
    """Directories of transformers, one for each network, or that of a tagger."""
    output_folder.check_free(request.output_dir)
    if request.what and request.what not in networks.WHAT:
        from electra_tf.export import finetuned, token_classifier

        folder = finetuned.trial_dir_of(request)
        task = finetuned.read(folder, request.what)
        return token_classifier.write(task, folder, request.output_dir)
    stored = read_source(request)
    return huggingface.write(stored, request.what or "all", request.output_dir)


def write_keras_hub(request) -> Path:
    """Preset directories of KerasHub, one for each encoder."""
    output_folder.check_free(request.output_dir)
    stored = read_source(request)
    return keras_hub.write(stored, request.what or "all", request.output_dir)
