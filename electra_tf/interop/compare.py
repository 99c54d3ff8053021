# SPDX-License-Identifier: Apache-2.0
"""Does a checkpoint fit a run? One rule for every purpose, all differences at once.

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
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.interop import fields
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.interop.fields import SHAPE, Difference
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

RESUME, EVALUATE, WARM_START, FINETUNE = "resume", "evaluate", "warm start", "fine-tune"
# Fields that do not count: how a model was trained, which does not matter to its
# evaluation; a longer table of positions can be filled.
_IGNORED = {
    EVALUATE: {"stage_one_steps", "init_discriminator", "init_generator"},
    WARM_START: {"max_position_embeddings"},
}


def compare(
    info: CheckpointInfo, config: PretrainingConfig | FinetuningConfig, purpose: str
) -> list[Difference]:
    """Where a checkpoint and the config of a run differ, as far as its files say it.

    Args:
      purpose: RESUME or EVALUATE: the same model; WARM_START: weights whose objective,
        vocabulary and length may differ; FINETUNE: the encoder.
    """
    there = info.shape if purpose == FINETUNE else info.known
    if purpose == WARM_START:
        there = {name: there[name] for name in SHAPE if name in there}
    elif info.do_lower_case is not None:
        there = there | {"do_lower_case": info.do_lower_case}
    here = dataclasses.asdict(config.model_config()) | config.identity()
    here |= {
        name: getattr(config, name) for name in ("embedding_size", "do_lower_case")
    }
    ignored = _IGNORED.get(purpose, ())
    return [d for d in fields.differences(there, here) if d[0] not in ignored]


def check(
    info: CheckpointInfo,
    config: PretrainingConfig | FinetuningConfig,
    vocab: Vocabulary,
    purpose: str,
) -> None:
    """Raises a `UserError` with all differences and the hparams that fit."""
    found = compare(info, config, purpose)
    fitting = fields.as_hparams((name, there) for name, there, _ in found)
    if purpose == FINETUNE and any(name in SHAPE for name, _, _ in found):
        fitting |= fields.size_hparams(info.shape)
    reasons, remedies = [text_of(found)] if found else [], []
    sha256, theirs = info.vocab_sha256, info.vocab_file
    if purpose != WARM_START and sha256 not in (None, vocab.sha256):
        reasons.append(
            f"it was trained with another vocabulary than {vocab.path}: sha256 "
            f"{sha256:.16}... there, {vocab.sha256:.16}... here"
        )
        is_file = theirs and os.path.isfile(theirs)
        if is_file and Vocabulary.load(theirs).sha256 == sha256:
            fitting["vocab_file"] = theirs
        else:
            remedies.append("Set vocab_file to its vocabulary.")
    ours = resolve_settings(vocab, do_lower_case=config.do_lower_case)
    stored = info.tokenizer_config
    same_case = stored and stored.do_lower_case == ours.do_lower_case
    if purpose == FINETUNE and same_case and not stored.equivalent(ours):
        reasons.append(f"its text is {stored} there, {ours} here")
        remedies.append(f"Set strip_accents in {vocab.path}.json as it was there.")
    if fitting:
        remedies.append(f"These hparams fit it: {json.dumps(fitting)}")
    if reasons:
        raise UserError(
            f"{info.origin} is another model than this run's: {'; '.join(reasons)}.\n"
            f"{' '.join(remedies)}"
        )


def text_of(found: list[Difference]) -> str:
    """Differences for a message."""
    return "; ".join(f"{k} is {old!r} there, {new!r} here" for k, old, new in found)


def finetuning_hparams(
    info: CheckpointInfo, explicit: Mapping[str, Any]
) -> dict[str, Any]:
    """What a checkpoint says of shape and casing, as hparams of a fine-tuning run.

    Raises a `UserError` with all hparams of `explicit` that give another shape.
    """
    shape = info.shape
    size, given = explicit.get("model_size"), fields.of_hparams(explicit, False)
    if found := fields.differences(shape, given):
        raise UserError(
            f"{info.origin} is another model: {text_of(found)}.\nLeave the shape out: "
            "the checkpoint decides it. These hparams fit it: "
            f"{json.dumps(fields.size_hparams(shape))}"
        )
    found = fields.size_hparams(shape, size)
    more = explicit.get("model_hparam_overrides", {})
    found["model_hparam_overrides"] = more | found.get("model_hparam_overrides", {})
    if "do_lower_case" not in explicit and info.do_lower_case is not None:
        found["do_lower_case"] = info.do_lower_case
    return found
