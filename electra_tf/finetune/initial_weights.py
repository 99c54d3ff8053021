# SPDX-License-Identifier: Apache-2.0
"""The weights that a fine-tuning run starts from: found, checked, loaded.

Any model that `interop.sources` finds will do. What does not fit is refused before
TensorFlow is imported, except for the original's checkpoints, whose weights have to
tell their shape.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import SIZES, model_config
from electra_tf.errors import UserError
from electra_tf.interop import shapes, sources
from electra_tf.interop.sources import FoundModel
from electra_tf.interop.stored_model import check_casing
from electra_tf.storage.remote import fetch_once
from electra_tf.storage.stored_tensors import StoredTensors
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

ENCODER = "electra/"


def find(path: str, log: Callable[[str], None]) -> FoundModel:
    """The model that `init_checkpoint` names.

    Raises `UserError` when there is none, 65 when all checkpoints of a run are damaged.
    """
    try:
        return sources.find(path, log)
    except sources.NoModelError as error:
        raise UserError(
            f"init_checkpoint {error}\nCheck --data-dir and "
            '--model-name; "init_checkpoint": null trains from random weights.'
        ) from None


def check(model: FoundModel, config: FinetuningConfig, vocab: Vocabulary) -> None:
    """Refuses a model of another vocabulary or shape than this run's.

    Raises `UserError` with both values and the hparams that fit.
    """
    sha256, advice = model.vocab_sha256, "Set vocab_file."
    theirs = model.settings.vocab_file
    if theirs and os.path.isfile(theirs) and Vocabulary.load(theirs).sha256 == sha256:
        advice = f"These hparams fit it: {json.dumps({'vocab_file': theirs})[1:-1]}"
    vocab.check_same(sha256, f"{model.origin} was trained", advice)
    ours = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    tokenizer = model.settings.tokenizer_config or ours
    cased = _is_lower(model)
    if cased not in (None, config.do_lower_case):
        raise UserError(
            f"{model.origin} was trained with do_lower_case {cased}, this run has "
            f"{config.do_lower_case}.\nThese hparams fit it: "
            f'"do_lower_case": {json.dumps(cased)}'
        )
    if not tokenizer.equivalent(ours):
        raise UserError(
            f"{model.origin} reads text that is {tokenizer}, {vocab.path} text that is "
            f"{ours}.\nSet strip_accents in {vocab.path}.json as it was there."
        )
    _check_shape(model, config)


def hparams_of(
    model: FoundModel,
    explicit: Mapping[str, Any],
    vocab_file: str,
    log: Callable[[str], None],
) -> dict[str, Any]:
    """What a model says of its shape, casing and vocabulary, as hparams.

    Args:
      explicit: the hparams that the user has set; those of the shape must agree.
      vocab_file: where the vocabulary usually is; the model's own is taken where there
        is none.

    Raises `UserError` as `check` does.
    """
    shape = model.shape()
    given = explicit.get("model_hparam_overrides", {})
    size = explicit.get("model_size")
    here = {**(SIZES[size] if size else {}), **given}
    if explicit.get("embedding_size"):
        here["embedding_size"] = explicit["embedding_size"]
    _compare(model, shape, {k: v for k, v in here.items() if k in shape})
    found = _hparams_for(shape, size)
    others = {k: v for k, v in given.items() if k not in shape}
    overrides = found.get("model_hparam_overrides", {}) | others
    found["model_hparam_overrides"] = overrides
    if "num_attention_heads" not in {*shape, *given}:
        log(shapes.note_of_heads(shape["hidden_size"], model.origin))
    if "do_lower_case" not in explicit and (cased := _is_lower(model)) is not None:
        found["do_lower_case"] = cased
    theirs = model.settings.vocab_file
    if "vocab_file" not in explicit and theirs and not os.path.isfile(vocab_file):
        # A trial says it to whoever reads it, from whatever directory.
        found["vocab_file"] = os.path.abspath(theirs)
        log(f"Note: {vocab_file} does not exist; the vocabulary is {theirs}.")
    words = explicit.get("vocab_file") or found.get("vocab_file") or vocab_file
    words = fetch_once(words)
    if "do_lower_case" not in explicit and os.path.isfile(words):
        check_casing(model.settings, Vocabulary.load(words), model.origin)
    return found


def _is_lower(model: FoundModel) -> bool | None:
    """do_lower_case as far as a model says it."""
    tokenizer = model.settings.tokenizer_config
    said = tokenizer.do_lower_case if tokenizer else None
    return model.identity.get("do_lower_case", said)


def _check_shape(model: FoundModel, config: FinetuningConfig) -> None:
    here = dataclasses.asdict(config.model_config())
    _compare(model, model.shape(), here | {"embedding_size": config.embedding_size})


def _compare(model: FoundModel, shape, here: Mapping[str, Any]) -> None:
    for name, value in shape.items():
        if value != here.get(name, value):
            fitting = json.dumps(_hparams_for(shape))[1:-1]
            raise UserError(
                f"{model.origin} is a model of another shape: {name} is {value!r} "
                f"there, {here[name]!r} here.\nLeave the shape out of the hparams: the "
                f"checkpoint knows it. These hparams fit it: {fitting}"
            )


def _hparams_for(shape: Mapping[str, Any], size: str | None = None) -> dict[str, Any]:
    """The hparams with the fewest overrides that give a shape."""
    width = shape["hidden_size"]
    found = []
    for name in [size] if size else SIZES:
        preset = SIZES[name]
        usual = dataclasses.asdict(model_config(name, 1, {"hidden_size": width}))
        usual["hidden_size"] = preset["hidden_size"]
        overrides = {k: v for k, v in shape.items() if v != usual.get(k, v)}
        hparams = {"model_size": name, "embedding_size": shape["embedding_size"]}
        if overrides:
            hparams["model_hparam_overrides"] = overrides
        found.append((len(overrides), hparams))
    return min(found, key=lambda pair: pair[0])[1]


def load_encoder(tensors: StoredTensors, variables: Mapping[str, Any]) -> None:
    """Assigns the encoder's weights; heads keep theirs.

    Raises `UserError` naming the first variable that is absent or of another shape.
    """
    encoder = {k: v for k, v in variables.items() if k.startswith(ENCODER)}
    tensors.assign_to(encoder)


def load_all(
    model: FoundModel, variables: Mapping[str, Any], log: Callable[[str], None]
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
