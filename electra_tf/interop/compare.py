# SPDX-License-Identifier: Apache-2.0
"""Does a model fit a run? One rule for every purpose; all differences in one error.

Compared is what the files of the model say, without TensorFlow; only the original's
checkpoints have to be opened for their shape.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import SIZES, model_config
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.interop import shapes
from electra_tf.interop.readers import SHAPE, CheckpointInfo
from electra_tf.storage.checkpoints import differences
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

RESUME, EVALUATE, WARM_START, FINETUNE = "resume", "evaluate", "warm start", "fine-tune"
# How a model came about, which does not matter to its evaluation.
_COURSE = {"stage_one_steps", "init_discriminator", "init_generator"}
# A longer table of positions can be filled.
_FILLED = {"max_position_embeddings"}

_OF_TEXT = ("embedding_size", "do_lower_case")  # hparams beside the encoder's shape

Difference = tuple[str, Any, Any]  # hparam, there, here


def compare(
    model: CheckpointInfo, config: PretrainingConfig | FinetuningConfig, purpose: str
) -> list[Difference]:
    """Where the files of a model say something else than the config of a run.

    Args:
      purpose: RESUME or EVALUATE, as it is; WARM_START, from weights whose objective,
        vocabulary and length may be others; FINETUNE, from its encoder.
    """
    if isinstance(config, FinetuningConfig):
        here = dataclasses.asdict(config.model_config())
        here |= {name: getattr(config, name) for name in _OF_TEXT}
        there = model.shape()
        if (cased := lower_cases(model)) is not None:
            there = there | {"do_lower_case": cased}
        return differences(there, {name: here[name] for name in there})
    if "objective" in model.identity:  # a run of pre-training
        there = {k: v for k, v in model.identity.items() if k != "vocab_sha256"}
    else:
        source = f"the files of {model.origin}"
        there = shapes.identity_by(config, model.settings.hparams, source)
    found = differences(there, config.identity())
    if purpose == WARM_START:
        return [one for one in found if one[0] in {*SHAPE} - _FILLED]
    return [one for one in found if purpose != EVALUATE or one[0] not in _COURSE]


def check(
    model: CheckpointInfo,
    config: PretrainingConfig | FinetuningConfig,
    vocab: Vocabulary,
    purpose: str,
) -> None:
    """Raises a `UserError` with all differences and the hparams that fit."""
    if purpose != WARM_START:
        _check_vocabulary(model, vocab)
    if found := compare(model, config, purpose):
        fitting = shapes.as_hparams((name, there) for name, there, _ in found)
        if purpose == FINETUNE and any(name in SHAPE for name, _, _ in found):
            fitting = fitting | shape_hparams(model.shape())
        text = "; ".join(f"{k} is {old!r} there, {new!r} here" for k, old, new in found)
        raise UserError(
            f"{model.origin} is another model than this run's: {text}.\n"
            f"These hparams fit it: {json.dumps(fitting)}"
        )
    ours = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    theirs = model.settings.tokenizer_config
    if purpose == FINETUNE and theirs and not theirs.equivalent(ours):
        raise UserError(
            f"{model.origin} reads text that is {theirs}, {vocab.path} text that is "
            f"{ours}.\nSet strip_accents in {vocab.path}.json as it was there."
        )


def _check_vocabulary(model: CheckpointInfo, vocab: Vocabulary) -> None:
    """Raises a `UserError` if the weights are not those of this vocabulary."""
    sha256, theirs = model.vocab_sha256, model.settings.vocab_file
    advice = "Set vocab_file."
    if theirs and os.path.isfile(theirs) and Vocabulary.load(theirs).sha256 == sha256:
        advice = f"These hparams fit it: {json.dumps({'vocab_file': theirs})}"
    vocab.check_same(sha256, f"{model.origin} was trained", advice)


def lower_cases(model: CheckpointInfo) -> bool | None:
    """do_lower_case as far as a model says it."""
    tokenizer = model.settings.tokenizer_config
    stored = tokenizer.do_lower_case if tokenizer else None
    return model.identity.get("do_lower_case", stored)


def shape_hparams(shape: Mapping[str, Any], size: str | None = None) -> dict[str, Any]:
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
