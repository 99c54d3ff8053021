# SPDX-License-Identifier: Apache-2.0
"""Models in the formats of other programs: pre-trained ones, and fine-tuned taggers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from electra_tf.errors import UserError
from electra_tf.export import finetuned
from electra_tf.export.finetuned import ExportedTask
from electra_tf.export.formats import ExportRequest
from electra_tf.interop import huggingface, keras_hub, networks, sources, tf1
from electra_tf.interop.networks import CLASSIFIER, EMBEDDINGS, ENCODER

_SEGMENTS = EMBEDDINGS + "token_type_embeddings"
# Why the heads of other tasks have no equivalent at Hugging Face.
_REASONS = {
    "classification": "ElectraForSequenceClassification has a layer more than its head",
    "multilabel": "ElectraForSequenceClassification has a layer more than its head",
    "regression": "ElectraForSequenceClassification has a layer more than its head",
    "qa": "ElectraForQuestionAnswering knows no joint prediction and no null answers",
}


def export_tf1(request: ExportRequest) -> Path:
    """An original checkpoint."""
    what = request.what or "all"
    return tf1.write_tf1(request.read_model(), what, request.output_dir)


def export_keras_hub(request: ExportRequest) -> Path:
    """Preset directories of KerasHub, one for each encoder."""
    what = request.what or "all"
    return keras_hub.write_keras_hub(request.read_model(), what, request.output_dir)


def export_huggingface(request: ExportRequest) -> Path:
    """Directories of transformers, one for each network, or that of a tagger."""
    what = request.what or "all"
    if what in networks.WHAT:
        stored = request.read_model()
        return huggingface.write_huggingface(stored, what, request.output_dir)
    folder = finetuned.trial_dir_of(request)
    task = finetuned.read_task(folder, what)
    return write_token_classifier(task, folder, request.output_dir)


def write_token_classifier(
    task: ExportedTask,
    folder: str | os.PathLike,
    output_dir: str | os.PathLike,
    log: Callable[[str], None] = print,
) -> Path:
    """Writes a tagger as ElectraForTokenClassification, in a folder of its task's name.

    Taggers are trained with segment 1 throughout; transformers gives segment 0. So both
    rows of the segment table are written as row 1.

    Args:
      folder: the fine-tuned model's.

    Raises `UserError`: 2 for another kind of task, else as `write_huggingface`.
    """
    name = task.facts.name
    if task.facts.kind != "tagging":
        raise UserError(
            f"{name} cannot be exported to Hugging Face: {_REASONS[task.facts.kind]}.\n"
            f"The encoder alone can: --init-checkpoint {folder} --what encoder."
        )
    stored = sources.read(folder, task.config.vocab_file, log=log)
    [network] = networks.split(stored, "encoder").values()
    weights = {v.path: np.asarray(v) for v in task.variables}
    head = f"task_specific/{name}/dense/"
    tensors = {k: v for k, v in weights.items() if k.startswith(ENCODER)}
    tensors |= {
        k.replace(head, CLASSIFIER): v for k, v in weights.items() if k.startswith(head)
    }
    tensors[_SEGMENTS] = np.repeat(tensors[_SEGMENTS][1:2], len(tensors[_SEGMENTS]), 0)
    log("Segment 0 is written as segment 1, which this tagger was trained with.")
    network = network._replace(tensors=tensors, labels=task.facts.labels)
    return huggingface.write_networks({name: network}, stored, output_dir, log)
