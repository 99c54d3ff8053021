# SPDX-License-Identifier: Apache-2.0
"""Models in the formats of other programs: pre-trained ones, and fine-tuned ones."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.console import Log
from electra_tf.errors import UserError
from electra_tf.export import finetuned_task
from electra_tf.export.request import ExportRequest
from electra_tf.inference.finetuned import FinetunedModel
from electra_tf.interop import huggingface, networks, readers, tf1, verification
from electra_tf.interop.cards import UNSTATED, Publication
from electra_tf.interop.networks import ENCODER, Network
from electra_tf.interop.task_heads import TransformersHead
from electra_tf.text.tf_packing import EncoderInputs


def export(request: ExportRequest) -> Path:
    """A folder for each network, or one of a task or of a TF1 checkpoint."""
    what, is_tf1 = request.what or "all", request.format == tf1.FORMAT
    if request.format == huggingface.FORMAT and what not in networks.WHAT:
        task = finetuned_task.task_of(request)
        return write_task(task, request.output_dir, publication=request.publication)
    stored = request.read_model(slots=is_tf1)
    write: Callable = readers.WRITERS[request.format]
    more = {} if is_tf1 else {"publication": request.publication}  # It has no card.
    return write(stored, what, request.output_dir, **more)


def write_task(
    model: FinetunedModel,
    output_dir: str | os.PathLike,
    log: Log = print,
    publication: Publication = UNSTATED,
) -> Path:
    """Writes a fine-tuned model for transformers, in a folder of its task's name.

    Raises `UserError`: 2 for a head that has no equivalent, else as
    `write_huggingface`.
    """
    task, config = model.reader, model.config
    heads = huggingface.family_of(config.model_config()).HEADS
    name, row = task.name, heads.get(task.head.kind)
    reason = "transformers has no such head"
    if row is None or (reason := row.reason_against(task)):
        raise UserError(
            f"{name} cannot be exported to Hugging Face: {reason}.\n"
            f"The encoder alone can: --init-checkpoint {model.folder} --what encoder."
        )
    stored = model.stored(log)
    [network] = networks.split(stored, "encoder").values()
    weights = {v.path: np.asarray(v) for v in model.variables}
    encoder = {k: v for k, v in weights.items() if k.startswith(ENCODER)}
    scope = f"task_specific/{name}/"
    head = {k.removeprefix(scope): v for k, v in weights.items() if k.startswith(scope)}
    tensors = row.write(task, network.tensors | encoder, head)
    labels, num_texts = row.labels(task), task.num_texts
    network = Network(*network[:2], tensors, row, labels, num_texts)
    checked = _check(model, network, row, stored.vocab.pad_id)
    facts = {
        "task": task.settings(),
        "run": config.model_name,  # "model" is the folder in it
        "labels": list(task.labels),
    }
    return huggingface.write_networks(
        {name: network}, stored, output_dir, log, publication, checked, facts
    )


def _check(model: FinetunedModel, network: Network, row: TransformersHead, pad_id: int):
    """Compares the converted head with the original one."""
    batch = verification.fixed_batch(network.shape, pad_id)
    [ours] = networks.outputs([network], batch)
    segments, mask = row.segments_and_mask(batch)
    inputs = batch["input_ids"], batch["input_mask"], segments
    outputs = model.head_outputs(EncoderInputs(*map(tf.constant, inputs)))
    expected = {"logits": row.expected(model.reader, outputs)}
    return verification.compare("electra_tf as fine-tuned", expected, ours, mask)
