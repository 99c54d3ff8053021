# SPDX-License-Identifier: Apache-2.0
"""The original program's checkpoints (`model.ckpt-N.{index,data-*}`), in and out.

Our variables have the original's names, so the name table is the identity; beside the
weights a checkpoint has `global_step` and two Adam slots per weight.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from electra_tf.config.hparams import PLACE, names_in_roles, without_left
from electra_tf.config.objectives import GENERATORS, OBJECTIVES
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Log, silent
from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.interop import checkpoint, electra, verification
from electra_tf.interop.checkpoint import CheckpointInfo, StoredModel
from electra_tf.interop.networks import EMBEDDINGS, ENCODER, check_block
from electra_tf.storage import checkpoints, manifest
from electra_tf.storage.atomic_folder import atomic_folder
from electra_tf.storage.checkpoints import StoredTensors
from electra_tf.text.vocabulary import read_settings, write_settings, write_tokens

HPARAMS, VOCABULARY = "hparams.json", "vocab.txt"
FORMAT = "tf1"
_PLACES = names_in_roles(PretrainingConfig, PLACE)
# Tensors of runs alone, not of the original (mixed precision).
OURS = re.compile(r"loss_scale(/good_steps)?$")
# Tensors of other programs' optimizers and loss scalers.
_OPTIMIZERS = re.compile(
    r"(.*/)?((current_)?loss_scale|(num_)?(good|bad)_steps|beta[12]_power(_\d+)?"
    r"|learning_rate)$|.*/(Adam(_1)?|lamb_[mv]|Momentum)$"
)
RESIDUAL = "_residual"  # as in model/encoder.py, which needs TensorFlow


def is_prefix(path: str | os.PathLike) -> bool:
    """Whether a path names a checkpoint, without its `.index`."""
    return os.path.isfile(f"{os.fspath(path)}.index")


def prefix_in(directory: str | os.PathLike) -> str | None:
    """The checkpoint that a directory's file `checkpoint` or its only index names."""
    directory = Path(directory)
    name = manifest.pointed_at(directory)
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
    return manifest.format_of(directory) == FORMAT or any(directory.glob("*.meta"))


def info(prefix: str) -> CheckpointInfo:
    """A checkpoint, by the files beside it."""
    folder = Path(prefix).parent
    path, vocab_file = folder / HPARAMS, str(folder / VOCABULARY)
    hparams = without_left(manifest.read_json_if_there(path))
    hparams = PretrainingConfig.checked(hparams, str(path))
    has_vocabulary = os.path.isfile(vocab_file)
    return CheckpointInfo(
        origin=prefix,
        known=checkpoint.fields_of_hparams(hparams),
        tokenizer_config=read_settings(vocab_file) if has_vocabulary else None,
        vocab_file=vocab_file if has_vocabulary else None,
        open=lambda log: tensors_of(prefix),
    )


def tensors_of(prefix: str) -> StoredTensors:
    """The tensors of a checkpoint, with residuals added to their tables.

    A table that a run learns as a residual (`embedding_sharing` disentangled) is the
    sum, under the usual name. Slots belong to the residual, so they are left out.

    Raises `UserError` (65), also on reading one, for damaged files.
    """
    import tensorflow as tf

    stored = checkpoints.of_checkpoint(prefix)
    residuals = [name for name in stored.shapes if name.endswith(RESIDUAL)]
    terms = {name.removesuffix(RESIDUAL): name for name in residuals}

    def get(name: str) -> np.ndarray:
        if name in terms:
            return get(_base(name)) + get(terms[name])
        try:
            return checkpoint.as_float32(stored.get(name))
        except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{prefix}: {name} cannot be read: {reason_of(error)}\nThe file is "
                "damaged or cut off; copy it again.",
                EXIT_DAMAGED,
            ) from None

    left_out = (RESIDUAL, *checkpoints.SLOTS) if terms else ()
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
    for name in (n for n in stored.shapes if n.startswith(EMBEDDINGS)):
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
    return name.replace(ENCODER, "generator/", 1)


def write_tf1(
    stored: StoredModel, what: str, output_dir: str | os.PathLike, log: Log = print
) -> Path:
    """Writes the whole model as the original would: checkpoint, vocabulary, pointer.

    `hparams.json` beside it is a `--config` for this project. A model that the original
    lacks is written all the same, with a note: no other format holds it whole.

    Raises `UserError` when the directory is in use or cannot be written, 65 when what
    was written differs.
    """
    del what  # It holds the whole model.
    check_block(stored.config.model_config(), FORMAT, [electra.BLOCK])
    with atomic_folder(output_dir) as folder:
        prefix = folder / manifest.name_of(stored.step)
        save_tensors(prefix, stored)
        (folder / manifest.POINTER).write_text(manifest.pointer_to([prefix.name]))
        vocab = write_tokens(folder / VOCABULARY, stored.vocab.tokens)
        write_settings(vocab, stored.tokenizer_config)
        # Only known hparams: assumed ones are left out.
        hparams = {k: v for k, v in stored.known.items() if k not in _PLACES}
        hparams["do_lower_case"] = stored.tokenizer_config.do_lower_case
        text = json.dumps(checkpoint.hparams_of_fields(hparams.items()), indent=2)
        (folder / HPARAMS).write_text(f"{text}\n", encoding="utf-8")
        again = info(str(prefix)).read(log=silent, slots=True)
        results = verification.identical(stored, again)
        needed, cannot = _beyond_original(stored)
        facts = verification.facts_of(stored, FORMAT, "all")
        facts["original"] = {"model_hparam_overrides": needed, "cannot": cannot}
        verification.write_manifest(folder, facts, results)
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


def _beyond_original(stored: StoredModel) -> tuple[dict[str, Any], list[str]]:
    """Returns (the `model_hparam_overrides` that the original needs, what it lacks)."""
    config, tokenizer = stored.config, stored.tokenizer_config
    shape = config.model_config()
    needed, cannot = {}, []
    if shape.num_attention_heads != max(1, shape.hidden_size // 64):
        needed["num_attention_heads"] = shape.num_attention_heads
    if shape.hidden_act == "gelu_tanh":
        cannot.append("hidden_act is gelu_tanh, the original's gelu is the exact one")
    elif shape.hidden_act != "gelu":
        needed["hidden_act"] = shape.hidden_act
    if tokenizer.do_lower_case and not tokenizer.strip_accents:
        cannot.append("the original strips accents where it lower-cases")
    for name, is_known in (
        ("objective", OBJECTIVES[config.objective].is_original),
        ("generator", GENERATORS[config.generator].is_original),
        ("embedding_sharing", config.embedding_sharing != "disentangled"),
    ):
        if not is_known:
            cannot.append(f"the original has no {name} {getattr(config, name)}")
    return needed, cannot


def save_tensors(prefix: str | os.PathLike, stored: StoredModel) -> None:
    """Writes weights, slots and step; raises `OSError`."""
    step = {checkpoint.STEP: np.asarray(stored.step, np.int64)}
    checkpoints.write_tensors(prefix, {**stored.tensors, **stored.slots, **step})
