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
from electra_tf.export.finetuned_task import ExportedTask
from electra_tf.export.request import ExportRequest
from electra_tf.finetune.tag_schemes import PLAIN
from electra_tf.inference.finetuned import PROBLEMS
from electra_tf.interop import huggingface, networks, readers, tf1, verification
from electra_tf.interop.cards import UNSTATED, Publication
from electra_tf.interop.networks import ENCODER, Network
from electra_tf.text.tf_packing import EncoderInputs

_SEGMENTS = networks.EMBEDDINGS + "token_type_embeddings"
# For transformers' GELU to cut numbers at an end: max(x, 0) is within 0.17 / _SHARP of
# gelu(_SHARP x) / _SHARP. A power of 2 costs no accuracy.
_SHARP = 2.0**20


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
    task: ExportedTask,
    output_dir: str | os.PathLike,
    log: Log = print,
    publication: Publication = UNSTATED,
) -> Path:
    """Writes a fine-tuned model for transformers, in a folder of its task's name.

    Raises `UserError`: 2 for a head that has no equivalent, else as
    `write_huggingface`.
    """
    name = task.facts.name
    if reason := _reason_against(task):
        raise UserError(
            f"{name} cannot be exported to Hugging Face: {reason}.\n"
            f"The encoder alone can: --init-checkpoint {task.folder} --what encoder."
        )
    stored = readers.read(task.folder, task.config.vocab_file, log=log)
    [network] = networks.split(stored, "encoder").values()
    weights = {v.path: np.asarray(v) for v in task.variables}
    network.tensors.update({k: v for k, v in weights.items() if k.startswith(ENCODER)})
    scope = f"task_specific/{name}/"
    head = {k.removeprefix(scope): v for k, v in weights.items() if k.startswith(scope)}
    network = _HEADS[task.facts.kind](task, network, head)
    if task.facts.kind == "tagging":
        log("Segment 0 is written as segment 1, which this tagger was trained with.")
    checked = _check(task, network, stored.vocab.pad_id)
    facts = {
        "task": task.settings,
        "run": task.config.model_name,  # "model" is the folder in it
        "labels": list(task.facts.labels),
    }
    return huggingface.write_networks(
        {name: network}, stored, output_dir, log, publication, checked, facts
    )


def _reason_against(task: ExportedTask) -> str | None:
    """Why transformers cannot represent the head; None if it can."""
    facts, config = task.facts, task.config
    width, labels = config.model_config().hidden_size, len(facts.labels)
    if facts.kind in PROBLEMS and 2 * labels > width:
        return (
            f"ElectraForSequenceClassification has a GELU between two layers {width} "
            f"wide, which carries {width // 2} labels; this task has {labels}"
        )
    if facts.kind == "qa" and config.joint_prediction:
        return (
            "ElectraForQuestionAnswering scores start and end apart, this head the "
            'end by the start ("joint_prediction": false trains one that can)'
        )
    if facts.kind == "qa" and config.answerable_classifier and facts.has_impossible:
        return (
            "ElectraForQuestionAnswering has no logit of its own for questions without "
            'an answer ("answerable_classifier": false trains a head that can)'
        )
    return None


def _tags(task: ExportedTask, network: Network, head) -> Network:
    """Taggers are trained with segment 1 throughout; transformers gives segment 0.

    So all rows of the segment table are written as row 1. Pipelines of transformers
    join B- and I- to names, which S- and E- would split: two outputs may have one name.
    """
    tensors = network.tensors | {
        f"{networks.CLASSIFIER}{k[6:]}": v for k, v in head.items()
    }
    tensors[_SEGMENTS] = np.repeat(tensors[_SEGMENTS][1:2], len(tensors[_SEGMENTS]), 0)
    labels = task.facts.labels
    if task.facts.scheme != PLAIN:
        letters = {"S-": "B-", "E-": "I-"}
        labels = tuple(letters.get(tag[:2], tag[:2]) + tag[2:] for tag in labels)
    return network._replace(tensors=tensors, labels=labels)


def _labels(task: ExportedTask, network: Network, head) -> Network:
    """A dense layer as two with GELU between, by x = gelu(x) - gelu(-x)."""
    kernel, bias = head["dense/kernel"], head["dense/bias"]
    first = np.concatenate([kernel, -kernel], 1), np.concatenate([bias, -bias])
    one = np.eye(len(bias))
    last = np.concatenate([one, -one]), np.zeros(len(bias))
    return _two_layers(task, network, first, last, task.facts.labels)


def _number(task: ExportedTask, network: Network, head) -> Network:
    """A share cut to 0 ... 1, on the task's scale: max(x, 0) - max(x - 1, 0)."""
    kernel, bias = head["dense/kernel"] * _SHARP, head["dense/bias"] * _SHARP
    first = np.concatenate([kernel, kernel], 1), np.concatenate([bias, bias - _SHARP])
    step = (task.facts.highest - task.facts.lowest) / _SHARP
    last = np.array([[step], [-step]]), np.array([task.facts.lowest])
    return _two_layers(task, network, first, last, (task.facts.name,))


def _two_layers(task, network: Network, first, last, labels) -> Network:
    """A head with GELU between; its units that are not needed are 0."""
    names = f"{networks.CLASSIFIER}dense/", networks.TEXT_CLASSIFIER
    if task.facts.kind == "multiple_choice":
        names = networks.SUMMARY, networks.CLASSIFIER
    width = network.shape.hidden_size
    spare = width - len(first[1])
    arrays = {
        f"{names[0]}kernel": np.pad(first[0], ((0, 0), (0, spare))),
        f"{names[0]}bias": np.pad(first[1], (0, spare)),
        f"{names[1]}kernel": np.pad(last[0], ((0, spare), (0, 0))),
        f"{names[1]}bias": last[1],
    }
    return network._replace(
        tensors=network.tensors | {k: np.float32(v) for k, v in arrays.items()},
        labels=tuple(labels),
        problem_type=PROBLEMS.get(task.facts.kind),
        num_texts=task.facts.num_texts,
    )


def _spans(task: ExportedTask, network: Network, head) -> Network:
    """The start's and the end's layer side by side."""
    arrays = {
        f"{networks.SPANS}{part}": np.concatenate(
            [head[f"dense/{part}"], head[f"dense_1/{part}"]], -1
        )
        for part in ("kernel", "bias")
    }
    return network._replace(tensors=network.tensors | arrays)


_HEADS = {"tagging": _tags, "qa": _spans, **dict.fromkeys(PROBLEMS, _labels)}
_HEADS |= {"regression": _number, "multiple_choice": _labels}


def _check(task: ExportedTask, network: Network, pad_id: int):
    """Compares the converted head with the original one."""
    batch = verification.fixed_batch(network.shape, pad_id)
    [ours] = networks.outputs([network], batch)
    ids, mask, types = map(tf.constant, batch.values())
    facts, counts = task.facts, None
    if facts.kind == "tagging":
        types, counts = mask, batch["input_mask"]
    found = task.outputs(EncoderInputs(ids, mask, types))
    if facts.kind == "regression":
        share = np.clip(found["predictions"], 0, 1)[:, None]
        expected = facts.lowest + share * (facts.highest - facts.lowest)
    elif facts.kind == "qa":
        # At other positions this head has a penalty; transformers' pipeline omits them.
        counts = batch["input_mask"] * batch["segment_ids"]
        counts[:, 0] = 1
        expected = np.stack([found["start_logits"], found["end_logits"]], -1)
    else:
        expected = found["logits"].numpy()
        expected = expected[:, None] if expected.ndim == 1 else expected  # of a choice
    return verification.compare(
        "electra_tf as fine-tuned", {"logits": expected}, ours, counts
    )
