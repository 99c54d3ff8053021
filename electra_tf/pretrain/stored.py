# SPDX-License-Identifier: Apache-2.0
"""Pre-trained models in files, read whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Log
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop.checkpoint import HEADS, CheckpointInfo, StoredModel
from electra_tf.text.vocabulary import Vocabulary


def read(
    found: CheckpointInfo,
    vocab_file: str | None = None,
    hparams: Mapping[str, Any] | None = None,
    log: Log = print,
    slots: bool = False,
    strict: bool = True,
) -> StoredModel:
    """The whole model at a path, by what `interop.readers.find` found there.

    Args:
      vocab_file, hparams, log, slots: as of `CheckpointInfo.read`.
      strict: whether another result of the library that wrote it is an error.

    Raises `UserError`: 2 when something does not fit, 65 when weights are missing,
    unexpected or of a wrong shape.
    """
    stored = found.read(vocab_file, hparams, log, slots)
    _check_complete(stored)
    found.compare_with_library(log, strict)
    return stored


def shapes_of(
    config: PretrainingConfig, vocab: Vocabulary
) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a config's weights, none of which is made."""
    import tensorflow as tf

    from electra_tf.pretrain.pretraining import build_pretrainer

    # Layers know their shapes. In a tf.Graph each variable would take 20 operations.
    one_for_all = tf.Variable(0.0)
    with tf.variable_creator_scope(lambda *_, **__: one_for_all):
        variables = build_pretrainer(config, vocab, at_rest=True).variables
    return {v.path: tuple(v.shape) for v in variables}


def _check_complete(stored: StoredModel) -> None:
    """Raises `UserError` (65) unless each part has all its weights, in their shapes."""
    expected = shapes_of(stored.config, stored.vocab)
    if not any(name.startswith(HEADS) for name in stored.tensors):
        expected = {k: v for k, v in expected.items() if not k.startswith(HEADS)}
    problems = [f"{k} is missing" for k in sorted(expected.keys() - stored.tensors)]
    for name, array in sorted(stored.tensors.items()):
        if name not in expected:
            problems.append(f"{name} is unexpected")
        elif array.shape != expected[name]:
            there, here = list(array.shape), list(expected[name])
            problems.append(f"{name} has shape {there}, its place has {here}")
        elif not np.isfinite(array).all():
            problems.append(f"{name} is not finite")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(
            f"{stored.origin} is not a whole model: {problems[0]}{more}.\n"
            "Is it an ELECTRA model, and do hparams and the files beside it fit?",
            EXIT_DAMAGED,
        )
