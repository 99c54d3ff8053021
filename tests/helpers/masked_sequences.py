# SPDX-License-Identifier: Apache-2.0
"""Sequences of words to mask, large enough for statistics."""

import math

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.pretrain import masking

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB_SIZE = 1000
LENGTH = 128
SLOTS = 19  # int((0.15 + 0.005) * 128)
MODES = ("original", "fixed")


def sequences(rows, length=LENGTH, seed=0):
    """Unpadded sentence pairs of words: [CLS] a [SEP] b [SEP]."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, length // 2], ids[:, -1] = CLS, SEP, SEP
    return as_batch(ids, np.ones_like(ids))


def as_batch(ids, input_mask):
    ids, input_mask = np.asarray(ids, np.int32), np.asarray(input_mask, np.int32)
    return {
        "input_ids": tf.constant(ids),
        "input_mask": tf.constant(input_mask),
        "segment_ids": tf.zeros_like(ids),
    }


def settings_of(
    mode="original",
    slots=SLOTS,
    mask_prob=0.15,
    special_ids=(CLS, SEP, MASK),
    continuations=None,
    **hparams,
):
    """Masking with a number of slots, by default of these sequences."""
    length = math.ceil(slots / (mask_prob + 0.005))
    hparams |= {"mask_prob": mask_prob, "max_seq_length": length}
    config = PretrainingConfig().replaced(repeated_masks=mode, **hparams)
    assert config.max_predictions_per_seq == slots
    return masking.Masking(config, special_ids, continuations)


def mask_tensors(batch, seed=1, step=0, *args, first_row=0, **settings):
    """`masking.mask_batch`, with the special tokens of these sequences."""
    settings = settings_of(*args, **settings)
    return masking.mask_batch(batch, seed, step, settings, first_row)


def mask(batch, *args, **kwargs):
    """What `mask_tensors` makes of a batch, as arrays."""
    masked = mask_tensors(batch, *args, **kwargs)
    return {name: value.numpy() for name, value in masked.items()}
