# SPDX-License-Identifier: Apache-2.0
"""Hparams of pre-training that others imply, unless they are set by hand."""

from collections.abc import Mapping
from typing import Any

from electra_tf.config.generators import GENERATORS
from electra_tf.config.objectives import OBJECTIVES

# What else Table 6 of the paper changes with the size of the encoder.
SIZE_PRESETS: dict[str, dict[str, Any]] = {
    "small": {"embedding_size": 128},
    "base": {
        "generator_hidden_size": 0.33333,
        "max_seq_length": 512,
        "learning_rate": 2e-4,
        "train_batch_size": 256,
        "num_train_steps": 766_000,
    },
    "large": {
        "mask_prob": 0.25,
        "max_seq_length": 512,
        "learning_rate": 2e-4,
        "train_batch_size": 2048,
        "num_train_steps": 400_000,
    },
}
DEBUG_PRESET = {
    "train_batch_size": 8,
    "num_train_steps": 20,
    "eval_batch_size": 4,
    "iterations_per_loop": 1,
    "num_eval_steps": 2,
}


def implied_by(explicit: Mapping[str, Any]) -> dict[str, Any]:
    """What hparams that a user has set imply for others."""
    implied = dict(SIZE_PRESETS[explicit.get("model_size", "small")])
    objective = explicit.get("objective")
    if objective is None and explicit.get("electric_objective"):
        objective = "electric"
    if objective:
        implied |= OBJECTIVES[objective].original | OBJECTIVES[objective].presets
    if kind := explicit.get("generator"):
        implied.update(GENERATORS[kind].original or {"two_tower_generator": False})
    if explicit.get("mask_unit") == "word":
        implied["repeated_masks"] = "fixed"
    if explicit.get("embedding_sharing") == "untied":
        implied["untied_generator_embeddings"] = True
    elif (untied := explicit.get("untied_generator_embeddings")) is not None:
        implied["embedding_sharing"] = "untied" if untied else "shared"
    if explicit.get("debug"):
        implied.update(DEBUG_PRESET)
    return implied
