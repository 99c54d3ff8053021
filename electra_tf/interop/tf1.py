# SPDX-License-Identifier: Apache-2.0
"""The original program's checkpoints (`model.ckpt-N.{index,data-*}`), in and out.

Our variables have the original's names, so the name table is the identity; beside the
weights a checkpoint has `global_step` and two Adam slots per weight.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.hparams import PLACE
from electra_tf.config.objectives import GENERATORS, OBJECTIVES
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import silent
from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.interop import checkpoint, verification
from electra_tf.interop.checkpoint import (
    STEP,
    CheckpointInfo,
    Opened,
    StoredModel,
    as_float32,
)
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.checkpoints import (
    SLOTS,
    StoredTensors,
    of_checkpoint,
    write_tensors,
)
from electra_tf.storage.manifest import (
    POINTER,
    format_of,
    name_of,
    pointed_at,
    pointer_to,
    read_json,
)
from electra_tf.text.vocabulary import read_settings, write_settings, write_tokens

HPARAMS, VOCABULARY = "hparams.json", "vocab.txt"
FORMAT = "tf1"
_ORIGINAL_ACTIVATIONS = ("gelu", "relu", "tanh", "linear")  # the first by default
_PLACES = {
    field.name
    for field in dataclasses.fields(PretrainingConfig)
    if field.metadata["role"] is PLACE
}
# Tensors of runs alone, not of the original (mixed precision).
OURS = re.compile(r"loss_scale(/good_steps)?$")
# What optimizers and loss scalers of other programs leave beside the weights.
_OPTIMIZERS = re.compile(
    r"(.*/)?((current_)?loss_scale|(num_)?(good|bad)_steps|beta[12]_power(_\d+)?"
    r"|learning_rate)$|.*/(Adam(_1)?|lamb_[mv]|Momentum)$"
)
ENCODER, GENERATOR = "electra/", "generator/"
_EMBEDDINGS = f"{ENCODER}embeddings/"
RESIDUAL = "_residual"  # as in model/encoder.py, which needs TensorFlow


def is_prefix(path: str | os.PathLike) -> bool:
    """Whether a path names a checkpoint, without its `.index`."""
    return os.path.isfile(f"{os.fspath(path)}.index")


def prefix_in(directory: str | os.PathLike) -> str | None:
    """The checkpoint that a directory's file `checkpoint` or its only index names."""
    directory = Path(directory)
    name = pointed_at(directory)
    if name and is_prefix(directory / name):
        return str(directory / name)
    indexes = sorted(directory.glob("*.index"))
    if len(indexes) > 1:
        raise UserError(
            f"{directory} holds {len(indexes)} checkpoints, and no file `checkpoint` "
            f"names one.\nGive one as prefix, such as {str(indexes[0])[:-6]}."
        )
    return str(indexes[0])[:-6] if indexes else None


def is_original(directory: Path) -> bool:
    """Whether the original wrote a directory's checkpoints, or `write_tf1` did.

    The original leaves the graph beside each, which no run of this project does.
    """
    if prefix_in(directory) is None:
        return False
    return format_of(directory) == FORMAT or any(directory.glob("*.meta"))


def info(prefix: str) -> CheckpointInfo:
    """A checkpoint, by what lies beside it."""
    folder = Path(prefix).parent
    path, vocab_file = folder / HPARAMS, str(folder / VOCABULARY)
    hparams = read_json(path) if path.is_file() else {}
    hparams = PretrainingConfig.checked(hparams, str(path))
    has_vocabulary = os.path.isfile(vocab_file)
    return CheckpointInfo(
        origin=prefix,
        known=checkpoint.fields_of_hparams(hparams),
        tokenizer_config=read_settings(vocab_file) if has_vocabulary else None,
        vocab_file=vocab_file if has_vocabulary else None,
        open=lambda: Opened(tensors_of(prefix)),
    )


def tensors_of(prefix: str) -> StoredTensors:
    """The tensors of a checkpoint, as all programs but the run itself know them.

    What a run learns as a residual (`embedding_sharing` disentangled) is the sum, under
    the usual name. The optimizer does not know the sum, so its slots are left out.

    Raises `UserError` (65), also on reading one, for damaged files.
    """
    import tensorflow as tf

    stored = of_checkpoint(prefix)
    residuals = [name for name in stored.shapes if name.endswith(RESIDUAL)]
    terms = {name.removesuffix(RESIDUAL): name for name in residuals}

    def get(name: str) -> np.ndarray:
        if name in terms:
            return get(_base(name)) + get(terms[name])
        try:
            return as_float32(stored.get(name))
        except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{prefix}: {name} cannot be read: {reason_of(error)}\nThe file is "
                "damaged or cut off; copy it again.",
                EXIT_DAMAGED,
            ) from None

    left_out = (RESIDUAL, *SLOTS) if terms else ()
    shapes = {
        name: shape
        for name, shape in stored.shapes.items()
        if not name.endswith(left_out) and not _OPTIMIZERS.match(name)
    }
    sums = {name: stored.shapes[residual] for name, residual in terms.items()}
    return StoredTensors(prefix, shapes | sums, get)


def as_residuals(stored: StoredTensors, names: Iterable[str]) -> StoredTensors:
    """The reverse: a stored model's tensors for the variables `names` of a run.

    Where the generator has no table of its own, it shares the discriminator's.
    """
    terms = {n: n.removesuffix(RESIDUAL) for n in names if n.endswith(RESIDUAL)}
    if not terms:
        return stored
    shapes, shared = dict(stored.shapes), {}
    for name in (n for n in stored.shapes if n.startswith(_EMBEDDINGS)):
        if shapes.get(_base(name)) != shapes[name]:
            shapes[_base(name)], shared[_base(name)] = shapes[name], name
    for residual, name in terms.items():
        if name in stored.shapes:
            shapes[residual] = shapes.pop(name)

    def get(name: str) -> np.ndarray:
        if name in terms:
            return stored.get(terms[name]) - get(_base(terms[name]))
        return stored.get(shared.get(name, name))

    return StoredTensors(stored.origin, shapes, get)


def _base(name: str) -> str:
    """The generator's table to the discriminator's."""
    return name.replace(ENCODER, GENERATOR, 1)


def write_tf1(
    stored: StoredModel,
    what: str,
    output_dir: str | os.PathLike,
    log: Callable[[str], None] = print,
) -> Path:
    """Writes the whole model as the original would: checkpoint, vocabulary, pointer.

    Beside it `hparams.json`, a `--config` for this project. A model that the original
    does not have is written all the same, since no other format holds
    it whole, and logged.

    Raises `UserError` when the directory is in use or cannot be written, 65 when what
    was written differs.
    """
    if what not in ("all", ""):
        raise UserError(
            f"--what {what}: --format tf1 holds the whole model; leave --what out."
        )
    with atomic_folder(output_dir) as folder:
        prefix = folder / name_of(stored.step)
        save_tensors(prefix, stored)
        (folder / POINTER).write_text(pointer_to([prefix.name]))
        vocab = write_tokens(folder / VOCABULARY, stored.vocab.tokens)
        write_settings(vocab, stored.tokenizer_config)
        # Of the hparams those that are known: what reading assumes is left out.
        hparams = {k: v for k, v in stored.known.items() if k not in _PLACES}
        hparams["do_lower_case"] = stored.tokenizer_config.do_lower_case
        text = json.dumps(checkpoint.hparams_of_fields(hparams.items()), indent=2)
        (folder / HPARAMS).write_text(f"{text}\n", encoding="utf-8")
        again = info(str(prefix)).read(log=silent, slots=True)
        results = verification.identical(stored, again)
        needed, cannot = _hparams_for_original(stored), _not_in_original(stored)
        facts = {"original": {"model_hparam_overrides": needed, "cannot": cannot}}
        verification.write_manifest(folder, stored, FORMAT, "all", results, facts)
    verification.show(results, log)
    for reason in cannot:
        log(f"electra_tf alone computes what this model does: {reason}.")
    if needed:
        log(
            "No weight shows it, so the original needs it in its hparams: "
            f'{{"model_hparam_overrides": {json.dumps(needed)}}}'
        )
    if not stored.slots:
        log("No Adam slots: the original can fine-tune from it, not train it further.")
    return Path(output_dir)


def _not_in_original(stored: StoredModel) -> list[str]:
    """Why the original program would not compute what a model does."""
    config, tokenizer = stored.config, stored.tokenizer_config
    objective, generator = config.objective, config.generator
    act, strips = config.model_config().hidden_act, tokenizer.strip_accents
    reasons = {
        f"hidden_act is {act}, the original's gelu is the exact one": (
            act not in _ORIGINAL_ACTIVATIONS
        ),
        "the original strips accents where it lower-cases": (
            tokenizer.do_lower_case and not strips
        ),
        f"the original has no objective {objective}": (
            not OBJECTIVES[objective].is_original
        ),
        f"the original has no {generator} generator": (
            not GENERATORS[generator].is_original
        ),
        "the original has no embedding_sharing disentangled": (
            config.embedding_sharing == "disentangled"
        ),
    }
    return [reason for reason, applies in reasons.items() if applies]


def _hparams_for_original(stored: StoredModel) -> dict[str, Any]:
    """The `model_hparam_overrides` that the original needs beside the sizes."""
    shape, found = stored.config.model_config(), {}
    if shape.num_attention_heads != max(1, shape.hidden_size // 64):
        found["num_attention_heads"] = shape.num_attention_heads
    if shape.hidden_act in _ORIGINAL_ACTIVATIONS[1:]:
        found["hidden_act"] = shape.hidden_act
    return found


def save_tensors(prefix: str | os.PathLike, stored: StoredModel) -> None:
    """Writes weights, slots and step; raises `OSError`."""
    step = {STEP: np.asarray(stored.step, np.int64)}
    write_tensors(prefix, {**stored.tensors, **stored.slots, **step})
