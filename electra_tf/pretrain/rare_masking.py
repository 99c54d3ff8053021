# SPDX-License-Identifier: Apache-2.0
"""Rare tokens masked more often than frequent ones.

Among the negative results of the ELECTRA paper (appendix H), there for BERT. As many
tokens are masked as without it; which ones, is drawn in proportion to their weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.data import token_counts


def settings(config, vocab_size: int) -> dict[str, Any]:
    """What `masking.mask_batch` is told of rare tokens in training; {} for nothing.

    Args:
      config: a PretrainingConfig, whose data say how often each token is there.
    """
    if not config.rare_mask_power:
        return {}
    counts = token_counts.of_data(config.pretrain_tfrecords, vocab_size)
    return {"token_weights": token_weights(counts, config.rare_mask_power)}


def token_weights(counts: np.ndarray, power: float) -> np.ndarray:
    """count ** -power for each token, float32 [V]; the mean over the data is 1.

    Args:
      counts: how often each token is in the data; 0 counts as 1.
    """
    counts = np.maximum(counts, 1).astype(np.float64)
    weights = counts**-power
    return np.float32(weights * (counts.sum() / (counts * weights).sum()))


def draw_keys(uniform: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Numbers in [0, 1] whose k greatest are a draw in proportion to weights.

    Without replacement, as if drawn one after the other: so are the k smallest of
    exponential variables of these rates (Efraimidis and Spirakis, 2006).

    Args:
      uniform: float32 in [0, 1).
      weights: float32 > 0 of the same shape.
    """
    # w / (w + e) falls with e / w, and keeps small differences of either apart.
    return weights / (weights - tf.math.log(uniform))
