# SPDX-License-Identifier: Apache-2.0
"""Where a fine-tuning run takes its weights from.

A run directory of this project (its newest intact checkpoint), a directory that the
original program wrote, or a checkpoint prefix of either. TensorFlow is imported only
to read tensors.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.checkpoints import Checkpoints
from electra_tf.errors import UserError
from electra_tf.stored_tensors import assign_from, stored_shapes

ENCODER = "electra/"


class Source(NamedTuple):
    """A checkpoint and what is known of the run it is from."""

    prefix: str
    identity: dict[str, Any]  # {} for the original's checkpoints


def find_source(path: str, log: Callable[[str], None]) -> Source:
    """The checkpoint that `init_checkpoint` names.

    Raises `UserError` when there is none, 65 when all are damaged.
    """
    if os.path.isdir(path):
        directory = Path(path)
        ours = any(re.fullmatch(r"model\.ckpt-\d+\.json", n) for n in os.listdir(path))
        pointer = directory / "checkpoint"
        if not ours and pointer.is_file():
            return Source(_pointed_at(pointer), {})
        checkpoints = Checkpoints(directory, read_only=True, log=log)
        newest = checkpoints.newest_intact()
        if newest is None:
            raise UserError(
                f"init_checkpoint {path} holds no checkpoint.\nCheck --data-dir and "
                '--model-name; "init_checkpoint": null trains from random weights.'
            )
        return Source(checkpoints.prefix(newest.step), newest.identity)
    if not os.path.isfile(path + ".index"):
        raise UserError(
            f"init_checkpoint {path} is neither a directory nor a checkpoint prefix.\n"
            'Check --data-dir and --model-name; "init_checkpoint": null trains from '
            "random weights."
        )
    try:
        with open(path + ".json", encoding="utf-8") as file:
            return Source(path, json.load(file)["identity"])
    except (OSError, ValueError, KeyError):
        return Source(path, {})


def _pointed_at(pointer: Path) -> str:
    """What TensorFlow's text file `checkpoint` names, wherever it has been moved."""
    found = re.search(r'^model_checkpoint_path: "(.*)"', pointer.read_text(), re.M)
    if not found:
        raise UserError(f"{pointer} names no checkpoint; give a checkpoint prefix.")
    return str(pointer.parent / os.path.basename(found[1]))


def check_vocabulary(source: Source, sha256: str, vocab_file: str) -> None:
    """Refuses weights that were trained with another vocabulary, if that is known."""
    theirs = source.identity.get("vocab_sha256", sha256)
    if theirs != sha256:
        raise UserError(
            f"{source.prefix} was trained with another vocabulary than {vocab_file}: "
            f"sha256 {theirs[:12]}... there, {sha256[:12]}... here.\nSet vocab_file."
        )


def load_encoder(source: Source, variables: Mapping[str, Any], model_size: str) -> None:
    """Assigns the encoder's weights; heads keep theirs.

    Raises `UserError` naming the first variable whose shape differs, or is absent.
    """
    encoder = {k: v for k, v in variables.items() if k.startswith(ENCODER)}
    _load(source, encoder, model_size)


def load_all(source: Source, variables: Mapping[str, Any], model_size: str) -> None:
    """Assigns encoder and heads, from a fine-tuned model.

    Raises `UserError` as `load_encoder` does.
    """
    if not any(name.startswith("task_specific/") for name in _shapes(source)):
        raise UserError(
            f"{source.prefix} is not fine-tuned: it has no task_specific/ variables.\n"
            "With do_train false, init_checkpoint is a fine-tuned model's directory."
        )
    _load(source, variables, model_size)


def _shapes(source: Source) -> dict[str, list[int]]:
    return stored_shapes(source.prefix)


def _load(source: Source, variables: Mapping[str, Any], model_size: str) -> None:
    shapes = _shapes(source)
    for name, variable in variables.items():
        here, there = list(variable.shape), shapes.get(name)
        if there is not None and there != here:
            raise UserError(
                f"{source.prefix} is a model of another size: {name} has shape {there} "
                f"there, {here} here.\nmodel_size is {model_size!r}; set it, "
                "model_hparam_overrides and embedding_size as in pre-training."
            )
    assign_from(source.prefix, variables)
