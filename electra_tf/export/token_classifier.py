# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned taggers as Hugging Face's ElectraForTokenClassification.

The heads of other tasks have no equal there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from electra_tf.errors import UserError
from electra_tf.export.finetuned import FinetunedSource
from electra_tf.interop import huggingface, networks, sources
from electra_tf.interop.networks import CLASSIFIER, EMBEDDINGS, ENCODER

_SEGMENTS = EMBEDDINGS + "token_type_embeddings"
_REASONS = {
    "classification": "ElectraForSequenceClassification has a layer more than its head",
    "regression": "ElectraForSequenceClassification has a layer more than its head",
    "qa": "ElectraForQuestionAnswering knows no joint prediction and no null answers",
}


def write(
    task: FinetunedSource,
    folder: str | os.PathLike,
    output_dir: str | os.PathLike,
    log: Callable[[str], None] = print,
) -> Path:
    """Writes a tagger into a directory below `output_dir`, named after its task.

    Taggers are trained with segment 1 throughout; transformers gives segment 0. So both
    rows of the segment table are written as row 1.

    Args:
      folder: the fine-tuned model's.

    Raises `UserError`: 2 for another kind of task, else as `huggingface.write`.
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
