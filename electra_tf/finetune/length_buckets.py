# SPDX-License-Identifier: Apache-2.0
"""The lengths that batches are padded to, so that long padding is not computed.

Which examples form a batch does not depend on them, and padding changes no output; but
XLA compiles the step anew for each length, so a run under XLA gets two at most.
"""

from __future__ import annotations

import math

import numpy as np

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.pretrain.pretrain_data import batch_indices

# Lengths are multiples of this: products of odd sizes are slow.
MULTIPLE = 8
# Without XLA any number of lengths is free; finer steps gain little.
STEP = 16
# With XLA a second length pays from so many steps on, and from this gain on.
MIN_STEPS = 200
MIN_GAIN = 0.1
# Batches that are looked at to choose the second length.
SAMPLE = 2000


def training_buckets(
    config: FinetuningConfig,
    lengths: np.ndarray,
    *,
    steps: int,
    seed: int,
    is_compiled: bool,
) -> tuple[int, ...]:
    """The lengths for a training run of `steps` batches.

    Args:
      lengths: int [n], tokens of each example.
    """
    if config.length_buckets is not None:
        return given(config)
    longest = _rounded(int(lengths.max()), config)
    if config.gradient_accumulation_steps > 1:
        return (longest,)  # its parts are cut from batches of one known length
    if not is_compiled:
        return _all_up_to(longest, config)
    maxima = np.array(
        [
            lengths[
                batch_indices(step, config.train_batch_size, len(lengths), seed)
            ].max()
            for step in range(min(steps, SAMPLE))
        ]
    )
    candidates = range(_rounded(1, config), longest, MULTIPLE)
    costs = {c: np.where(maxima <= c, c, longest).mean() for c in candidates}
    if costs and steps >= MIN_STEPS:
        best = min(costs, key=costs.get)
        if costs[best] < (1 - MIN_GAIN) * longest:
            return (best, longest)
    return (longest,)


def evaluation_buckets(
    config: FinetuningConfig, lengths: np.ndarray
) -> tuple[int, ...]:
    """The lengths for an evaluation, which is not compiled."""
    if config.length_buckets is not None:
        return given(config)
    return _all_up_to(_rounded(int(lengths.max()), config), config)


def given(config: FinetuningConfig) -> tuple[int, ...]:
    """The lengths that the user chose, and max_seq_length."""
    shorter = {n for n in config.length_buckets if n < config.max_seq_length}
    return (*sorted(shorter), config.max_seq_length)


def _all_up_to(longest: int, config: FinetuningConfig) -> tuple[int, ...]:
    first = _rounded(STEP, config)
    return (*range(first, longest, STEP), longest)


def _rounded(length: int, config: FinetuningConfig) -> int:
    """Up to a multiple; long enough for the beam of question answering."""
    length = max(length, min(config.beam_size, config.max_seq_length))
    return min(math.ceil(length / MULTIPLE) * MULTIPLE, config.max_seq_length)
