# SPDX-License-Identifier: Apache-2.0
"""Hparams of pre-training that others imply, unless they are set by hand."""

from typing import Any

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
