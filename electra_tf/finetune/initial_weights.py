# SPDX-License-Identifier: Apache-2.0
"""The weights that a fine-tuning run starts from: found, checked, loaded.

Any model that `interop.readers` finds will do. What does not fit is refused before
TensorFlow is imported, except for the original's checkpoints, whose weights have to
tell their shape.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from electra_tf.errors import UserError
from electra_tf.interop import fields, readers
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.storage.checkpoints import StoredTensors
from electra_tf.storage.remote import fetch_once
from electra_tf.text.vocabulary import Vocabulary

ENCODER = "electra/"


def find(path: str, log: Callable[[str], None]) -> CheckpointInfo:
    """The model that `init_checkpoint` names.

    Raises `UserError` when there is none, 65 when all checkpoints of a run are damaged.
    """
    try:
        return readers.find(path, log)
    except readers.NoModelError as error:
        raise UserError(
            f"init_checkpoint {error}\nCheck --data-dir and "
            '--model-name; "init_checkpoint": null trains from random weights.'
        ) from None


def hparams_of(
    model: CheckpointInfo,
    explicit: Mapping[str, Any],
    vocab_file: str,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """The shape, casing and vocabulary of a model, as hparams.

    Args:
      explicit: the hparams that the user has set; those of the shape must agree.
      vocab_file: where the vocabulary usually is; the model's own is taken where there
        is none.

    Raises `UserError` for hparams of another shape.
    """
    found = model.finetuning_hparams(explicit)
    if "num_attention_heads" not in {*found["model_hparam_overrides"], *model.shape}:
        log(fields.note_of_heads(model.shape["hidden_size"], model.origin))
    theirs = model.vocab_file
    if "vocab_file" not in explicit and theirs and not os.path.isfile(vocab_file):
        # A trial stores it, and is read from any directory.
        found["vocab_file"] = os.path.abspath(theirs)
        log(f"Note: {vocab_file} does not exist; the vocabulary is {theirs}.")
    words = explicit.get("vocab_file") or found.get("vocab_file") or vocab_file
    words = fetch_once(words)
    if "do_lower_case" not in explicit and os.path.isfile(words):
        model.check_casing(Vocabulary.load(words))
    return found


def load_encoder(tensors: StoredTensors, variables: Mapping[str, Any]) -> None:
    """Assigns the encoder's weights; heads keep theirs.

    Raises `UserError` naming the first variable that is absent or of another shape.
    """
    encoder = {k: v for k, v in variables.items() if k.startswith(ENCODER)}
    tensors.assign_to(encoder)


def load_all(
    model: CheckpointInfo, variables: Mapping[str, Any], log: Callable[[str], None]
) -> None:
    """Assigns encoder and heads, from a fine-tuned model.

    Raises `UserError` as `load_encoder` does.
    """
    stored = model.tensors(log)
    tasks = _tasks_of(stored.shapes)
    if missing := sorted(_tasks_of(variables) - tasks):
        known = f"only on {', '.join(sorted(tasks))}" if tasks else "on no task"
        raise UserError(
            f"{model.origin} is not fine-tuned on {', '.join(missing)}, {known}.\n"
            "With do_train false, init_checkpoint is the directory of a model that is "
            "fine-tuned on all task_names; without it the run's own trials are "
            "evaluated."
        )
    stored.assign_to(variables)


def _tasks_of(names: Iterable[str]) -> set[str]:
    """Those of the variables that heads have, task_specific/<task>/..."""
    return {name.split("/")[1] for name in names if name.startswith("task_specific/")}
