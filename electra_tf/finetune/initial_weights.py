# SPDX-License-Identifier: Apache-2.0
"""Where a fine-tuning run takes its weights from.

A run directory of this project (its newest intact checkpoint), a directory that the
original program wrote, or a checkpoint prefix of either. TensorFlow is imported only
to read the original's.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf import startup
from electra_tf.config import from_shapes
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import SIZES, model_config
from electra_tf.errors import UserError
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.stored_tensors import assign_from, stored_shapes
from electra_tf.text.vocabulary import Vocabulary

ENCODER = "electra/"
# What makes weights those of another model. The last two leave no trace in the weights,
# so that of the original's checkpoints they are not known.
_SHAPE = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "embedding_size",
    "max_position_embeddings",
    "type_vocab_size",
    "num_attention_heads",
    "hidden_act",
)


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


def check(source: Source, config: FinetuningConfig, vocab: Vocabulary) -> None:
    """Refuses weights of another vocabulary or shape than this run's.

    Raises `UserError` with both values; for a shape also the hparams that fit.
    """
    theirs = source.identity.get("vocab_sha256", vocab.sha256)
    if theirs != vocab.sha256:
        raise UserError(
            f"{source.prefix} was trained with another vocabulary than "
            f"{config.vocab_file}: sha256 {theirs[:12]}... there, "
            f"{vocab.sha256[:12]}... here.\nSet vocab_file."
        )
    cased = source.identity.get("do_lower_case", config.do_lower_case)
    if cased != config.do_lower_case:
        raise UserError(
            f"{source.prefix} was trained with do_lower_case {cased}, this run has "
            f"{config.do_lower_case}."
        )
    shape = _shape(source)
    ours = dataclasses.asdict(config.model_config())
    ours["embedding_size"] = config.embedding_size
    for name, value in shape.items():
        if value != ours[name]:
            fitting = json.dumps(_hparams_for(shape))[1:-1]
            raise UserError(
                f"{source.prefix} is a model of another shape: {name} is {value!r} "
                f"there, {ours[name]!r} here.\nThese hparams fit it: {fitting}"
            )


def _shape(source: Source) -> dict[str, Any]:
    """Of the encoder: fields of ModelConfig, and embedding_size."""
    known = {name: source.identity[name] for name in _SHAPE if name in source.identity}
    if known:
        return known
    startup.import_tensorflow()
    found = from_shapes.hparams_of(stored_shapes(source.prefix), source.prefix)
    return found["model_hparam_overrides"] | {"embedding_size": found["embedding_size"]}


def _hparams_for(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The hparams with the fewest overrides that give a shape."""
    width = shape["hidden_size"]
    found = []
    for size, preset in SIZES.items():
        usual = dataclasses.asdict(model_config(size, 1, {"hidden_size": width}))
        usual["hidden_size"] = preset["hidden_size"]
        overrides = {k: v for k, v in shape.items() if v != usual.get(k, v)}
        hparams = {"model_size": size, "embedding_size": shape["embedding_size"]}
        if overrides:
            hparams["model_hparam_overrides"] = overrides
        found.append((len(overrides), hparams))
    return min(found, key=lambda pair: pair[0])[1]


def load_encoder(source: Source, variables: Mapping[str, Any]) -> None:
    """Assigns the encoder's weights; heads keep theirs.

    Raises `UserError` naming the first variable that is absent or of another shape.
    """
    encoder = {k: v for k, v in variables.items() if k.startswith(ENCODER)}
    assign_from(source.prefix, encoder)


def load_all(source: Source, variables: Mapping[str, Any]) -> None:
    """Assigns encoder and heads, from a fine-tuned model.

    Raises `UserError` as `load_encoder` does.
    """
    names = stored_shapes(source.prefix)
    if not any(name.startswith("task_specific/") for name in names):
        raise UserError(
            f"{source.prefix} is not fine-tuned: it has no task_specific/ variables.\n"
            "With do_train false, init_checkpoint is a fine-tuned model's directory."
        )
    assign_from(source.prefix, variables)
