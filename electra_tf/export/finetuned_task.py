# SPDX-License-Identifier: Apache-2.0
"""A task of a fine-tuned model as a SavedModel, and for transformers."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from electra_tf.console import Log
from electra_tf.errors import UserError
from electra_tf.export import ExportRequest, signatures
from electra_tf.export.signatures import Servable
from electra_tf.finetune.results import CONFIG, hparams_in
from electra_tf.inference.finetuned import FinetunedModel, read_trial
from electra_tf.interop import huggingface, networks, verification
from electra_tf.interop.cards import UNSTATED, Publication
from electra_tf.interop.networks import ENCODER, Network
from electra_tf.interop.task_heads import TransformersHead
from electra_tf.paths import escape
from electra_tf.storage.remote import expand, fetch_all
from electra_tf.text.tokenization import PackedTexts

_TRIAL = re.compile(r"_[0-9]+$")  # ends the name of its folder; a copy's goes on


def servable(model: FinetunedModel) -> Servable:
    """The content of a SavedModel."""
    task, head, compute = model.reader, model.layer.head, model.head_outputs
    tokenizer = signatures.tf_tokenizer(model)
    specs = [
        tf.TensorSpec(shape, tf.string, name=name)
        for name, shape in head.text_shapes(task).items()
    ]

    @tf.function(autograph=False, input_signature=specs)
    def of_texts(*texts):
        pairs = zip(texts, specs, strict=True)
        texts = [tf.ensure_shape(text, spec.shape) for text, spec in pairs]
        return head.answer_texts(task, tokenizer, compute, *texts)

    # In half precision the best change with the order of the operations.
    is_exact = model.precision == "float32"
    asked = head.probes(task, signatures.PROBES)
    check = signatures.check_of_texts(of_texts, asked, is_exact)
    ids = functools.partial(head.answer_ids, task, compute)
    parts = model.variables, of_texts, ids, check, task.settings()
    return signatures.servable(model, *parts)


def trial_dir_of(request: ExportRequest) -> Path:
    """The directory of the fine-tuned model that export_model.py was asked for.

    Raises `UserError` when a run has none for the task, or several, and for hparams.
    """
    if request.hparams:
        raise UserError(
            f"--hparams does not go with --what {request.what}: a fine-tuned model has "
            f"its own, in {CONFIG} of its folder."
        )
    if request.init_checkpoint:
        return Path(request.init_checkpoint)
    parent = Path(request.model_dir) / "finetuning_models"
    tasks = {
        path.parent: hparams_in(path.parent).get("task_names", [])
        for path in map(Path, fetch_all(expand(f"{escape(str(parent))}/*/{CONFIG}")))
        if _TRIAL.search(path.parent.name)
    }
    found = [folder for folder, names in tasks.items() if request.what in names]
    if len({folder.name.rpartition("_")[0] for folder in found}) == 1:
        return min(found, key=lambda folder: int(folder.name.rpartition("_")[2]))
    if found:
        names = ", ".join(folder.name for folder in found)
        raise UserError(
            f"{parent} holds several models for {request.what}: {names}.\n"
            "Give one as --init-checkpoint, without --data-dir and --model-name."
        )
    there = sorted({name for names in tasks.values() for name in names})
    raise UserError(
        f"--what {request.what!r}: no part of a pre-trained model, and no task that "
        f"{request.model_dir} was fine-tuned on ({', '.join(there) or 'none'})."
    )


def task_of(request: ExportRequest, precision: str = "float32") -> FinetunedModel:
    """The task that export_model.py was asked for."""
    folder = trial_dir_of(request)
    vocab_file = request.vocab_file
    return read_trial(folder, request.what, precision, vocab_file=vocab_file)


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
    ours = networks.outputs(network, batch)
    segments, mask = row.segments_and_mask(batch)
    inputs = batch["input_ids"], batch["input_mask"], segments
    outputs = model.head_outputs(PackedTexts(*map(tf.constant, inputs)))
    expected = {"logits": row.expected(model.reader, outputs)}
    return verification.compare("electra_tf as fine-tuned", expected, ours, mask)
