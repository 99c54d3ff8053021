# SPDX-License-Identifier: Apache-2.0
"""Replays recordings of the original's fine-tuning program (golden/finetune/*).

The encoder's weights are those of golden/pretrain/electra_tiny, found beside the
recording's directory; features and the heads' first weights are the recorded ones.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.classification import ClassHead, NumberHead
from electra_tf.finetune.model import build_finetuning_model
from electra_tf.finetune.qa import SpanHead
from electra_tf.finetune.tagging import TagHead
from electra_tf.finetune.task import Head
from electra_tf.train.optimization import create_finetuning_optimizer
from tests.parity.pretraining import (
    RecordedNorm,
    gradient_rows,
    gradients_of,
    has_no_gradient,
)
from tests.parity.rows import Row, compare, forward_row, read_json

# Logits carry a penalty of 1000 where no answer can be: float32 has 1e-4 left there.
PENALISED = ("start_logits", "end_logits")
# Means of squared gradients and the like agree this far; see golden's README.
STEPS_ATOL = 2e-6


class Recording:
    """What one directory holds."""

    def __init__(self, directory: str):
        self.description = read_json(directory, "config.json")
        self.arrays = np.load(os.path.join(directory, "golden.npz"))
        self.config = FinetuningConfig.from_hparams(
            tempfile.gettempdir(), "parity", self.description["hparams"]
        )
        root = os.path.dirname(os.path.dirname(os.path.abspath(directory)))
        prefix = os.path.join(root, "pretrain", "electra_tiny", "init.ckpt")
        self.checkpoint = tf.train.load_checkpoint(prefix)
        self.name = self.description["task"]

    def model(self):
        """The model with dropout off, in its recorded first state."""
        model = build_finetuning_model(self.config, {self.name: self._head()})
        for variable in model.trainable_variables:
            path = variable.path
            if f"task_init/{path}" in self.arrays:
                variable.assign(self.arrays[f"task_init/{path}"])
            else:
                variable.assign(self.checkpoint.get_tensor(path))
        return model

    def _head(self) -> Head:
        outputs = {k.rpartition("/")[2] for k in self.arrays if "train_out/" in k}
        if "start_logits" in outputs:
            return SpanHead.stored(None, self.config)
        if "targets" in outputs:
            return NumberHead()
        kind = TagHead if "labels_mask" in outputs else ClassHead
        return kind(self.arrays["train_out/logits"].shape[-1])

    def batch(self, mode: str) -> dict[str, tf.Tensor]:
        """Its features; the original has "_" where there is ":" here."""
        prefix, own = f"{mode}_features/", f"{self.name}_"
        found = {}
        for key in self.arrays.files:
            if key.startswith(prefix):
                name = key.removeprefix(prefix)
                if name.startswith(own):
                    name = f"{self.name}:{name.removeprefix(own)}"
                found[name] = tf.constant(self.arrays[key])
        return found


def replay(directory: str) -> Iterator[Row]:
    """Compares what one directory recorded of model, gradients and three steps."""
    recording = Recording(directory)
    model = recording.model()
    ours = {v.path for v in model.trainable_variables}
    theirs = {v["name"] for v in recording.description["variables"]}
    yield Row("variables/names", float(len(ours ^ theirs)), 0.0)
    for mode in ("train", "eval"):
        yield from _outputs(recording, model, mode)
    yield from _gradients(recording, model)
    if "layerwise_lr" in recording.description:
        yield from _layerwise_rates(recording)
    if "steps/total_loss" in recording.arrays:
        yield from _steps(recording)


def _outputs(recording, model, mode: str) -> Iterator[Row]:
    """Every recorded output of the head; task_id is ours to count padding by."""
    output = model(recording.batch(mode), training=mode == "train")
    prefix = f"{mode}_out/"
    for key in recording.arrays.files:
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or name in ("global_norm", "global_norm_dense"):
            continue
        golden = recording.arrays[key]
        if name == "total_loss":
            yield forward_row(f"{mode}/{name}", output.total_loss, golden)
        elif name == "task_id":
            ids = recording.batch(mode)["task_id"]
            yield compare(f"{mode}/{name}", ids, golden)
        else:
            ours = output.outputs[recording.name][name]
            if name in PENALISED:
                yield compare(f"{mode}/{name}", ours, golden, atol=1e-3)
            elif name.endswith("_index") or name in ("predictions", "eid"):
                yield from _choices(recording, mode, name, ours, golden)
            else:
                yield forward_row(f"{mode}/{name}", ours, golden)


def _choices(recording, mode, name, ours, golden) -> Iterator[Row]:
    """Indices, exact; where a penalty makes scores equal, any order is right."""
    key = f"{mode}_out/{name.replace('_index', '_log_probs')}"
    if name.endswith("_index") and key in recording.arrays:
        possible = recording.arrays[key] > -500
        ours, golden = ours.numpy() * possible, golden * possible
    if golden.dtype.kind == "f":
        yield forward_row(f"{mode}/{name}", ours, golden)
    else:
        yield compare(f"{mode}/{name}", ours, golden)


def _has_no_gradient(recording, path: str) -> bool:
    """Whether the true gradient is 0: a bias that shifts all logits of a softmax."""
    if has_no_gradient(path):
        return True
    shifts = [f"task_specific/{recording.name}/{n}/bias" for n in ("dense", "dense_1")]
    return "train_out/start_logits" in recording.arrays and path in shifts


def _gradients(recording, model) -> Iterator[Row]:
    _, gradients = gradients_of(model, recording.batch("train"), training=True)
    arrays = recording.arrays
    golden = {
        key.removeprefix("grads/"): arrays[key]
        for key in arrays.files
        if key.startswith("grads/")
    }
    yield from gradient_rows(
        model.trainable_variables,
        gradients,
        golden,
        arrays["train_out/global_norm_dense"],
        functools.partial(_has_no_gradient, recording),
    )


def _optimizer(recording):
    steps = recording.description["num_train_steps"]
    return create_finetuning_optimizer(recording.config, steps)


def _layerwise_rates(recording) -> Iterator[Row]:
    optimizer = _optimizer(recording)
    for recorded in recording.description["layerwise_lr"]:
        name, rates = recorded["name"], recorded["lr_steps"]
        factor = optimizer.layer_factor(name)
        ours = [float(optimizer._learning_rate(k)) * factor for k in range(len(rates))]
        yield compare(f"learning_rate/{name}", ours, rates, rtol=1e-6, atol=1e-10)


def _steps(recording) -> Iterator[Row]:
    golden, model = recording.arrays, recording.model()
    batch = recording.batch("train")
    variables = model.trainable_variables
    norms = golden["steps/global_norm"]
    optimizer = RecordedNorm(_optimizer(recording), norms, variables)
    for step, golden_norm in enumerate(golden["steps/global_norm_dense"]):
        output, gradients = gradients_of(model, batch, training=True)
        loss = golden["steps/total_loss"][step]
        yield forward_row(f"steps/{step}/total_loss", output.total_loss, loss)
        optimizer.apply(gradients, variables)
        norm = optimizer.true_norm
        yield compare(f"steps/{step}/global_norm", norm, golden_norm, rtol=2e-5)
    after = model(batch, training=True).total_loss
    yield forward_row("steps/total_loss_after", after, golden["steps/total_loss_after"])
    for variable in variables:
        key = f"values/{variable.path}"
        if key in golden:
            yield compare(f"steps/{key}", variable, golden[key], atol=STEPS_ATOL)
