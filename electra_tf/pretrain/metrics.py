# SPDX-License-Identifier: Apache-2.0
"""The original's evaluation metrics, as sums that add up over batches and replicas."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from electra_tf.pretrain.generators import EPSILON
from electra_tf.pretrain.pretraining import PretrainingOutput

# tf.metrics.auc of the original: 200 thresholds, the outer two beyond 0 and 1.
NUM_THRESHOLDS = 200
_THRESHOLDS = np.concatenate(
    [[-1e-7], np.arange(1, NUM_THRESHOLDS - 1) / (NUM_THRESHOLDS - 1), [1 + 1e-7]]
).astype(np.float32)


def metric_sums(
    output: PretrainingOutput, batch: dict[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Sums and counts of one batch, float32 scalars and histograms.

    Add those of several batches, then call `finalize_metrics`.
    """
    weights = batch["masked_lm_weights"]
    ids, generated = batch["masked_lm_ids"], output.generated
    sums = {
        "masked": tf.reduce_sum(weights),
        "masked_correct": _count(generated.predictions == ids, weights),
        "masked_loss": tf.reduce_sum(generated.per_token_loss * weights),
        "sampled_correct": _count(output.sampled_ids == ids, weights),
        "batches": tf.ones([]),
        "loss": output.total_loss,
    }
    if output.judged is not None:
        sums |= _discriminator_sums(output, batch["input_mask"])
    return sums


def _count(flags: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.float32) * weights)


def _discriminator_sums(output, input_mask) -> dict[str, tf.Tensor]:
    judged = output.judged
    mask = tf.cast(input_mask, tf.float32)
    labels = tf.cast(output.is_replaced, tf.int32)
    right = judged.predictions == labels
    said = tf.cast(judged.predictions, tf.float32) * mask
    fake = tf.cast(labels, tf.float32) * mask
    return {
        "sequences": tf.cast(tf.shape(labels)[0], tf.float32),
        "disc_loss": tf.reduce_sum(judged.per_example_loss),
        "tokens": tf.reduce_sum(mask),
        "disc_correct": _count(right, mask),
        "disc_said": tf.reduce_sum(said),
        "disc_said_correct": _count(right, said),
        "disc_fake": tf.reduce_sum(fake),
        "disc_fake_correct": _count(right, fake),
        # The original's AUC counts padding as tokens of label 0 and probability 0.
        "auc": _histogram(judged.probs * mask, fake, tf.ones_like(mask)),
        "auc_tokens": _histogram(judged.probs, fake, mask),
    }


def _histogram(probs, labels, weights) -> tf.Tensor:
    """Weight of [negatives, positives] per number of thresholds below the score."""
    bucket = tf.searchsorted(_THRESHOLDS, tf.reshape(probs, [-1]), side="left")
    cell = bucket + (NUM_THRESHOLDS + 1) * tf.cast(tf.reshape(labels, [-1]), tf.int32)
    size = 2 * (NUM_THRESHOLDS + 1)
    sums = tf.math.unsorted_segment_sum(tf.reshape(weights, [-1]), cell, size)
    return tf.reshape(sums, [2, NUM_THRESHOLDS + 1])


def _auc(histogram: np.ndarray) -> float:
    """Area under the ROC curve by the trapezoidal rule over the thresholds."""
    # Scores above threshold i are those in buckets i + 1 and higher.
    above = np.cumsum(histogram[:, ::-1].astype(np.float64), axis=1)[:, ::-1][:, 1:]
    totals = histogram.sum(axis=1, dtype=np.float64)
    false_positive = above[0] / (totals[0] + EPSILON)
    true_positive = (above[1] + EPSILON) / (totals[1] + EPSILON)
    return float(
        np.sum(
            (false_positive[:-1] - false_positive[1:])
            * (true_positive[:-1] + true_positive[1:])
            / 2
        )
    )


def finalize_metrics(sums: dict[str, tf.Tensor]) -> dict[str, float]:
    """The metrics under the original's names, from sums over any number of batches.

    disc_precision and disc_recall are accuracies over the tokens called replaced and
    over the replaced ones.  disc_auc counts padding, as the original does;
    disc_auc_tokens does not.
    """
    sums = {name: np.asarray(value) for name, value in sums.items()}

    def ratio(name, count):
        return float(sums[name] / sums[count]) if sums[count] else 0.0

    metrics = {
        "loss": ratio("loss", "batches"),
        "masked_lm_accuracy": ratio("masked_correct", "masked"),
        "masked_lm_loss": ratio("masked_loss", "masked"),
    }
    if "tokens" in sums:
        metrics |= {
            "sampled_masked_lm_accuracy": ratio("sampled_correct", "masked"),
            "disc_loss": ratio("disc_loss", "sequences"),
            "disc_auc": _auc(sums["auc"]),
            "disc_auc_tokens": _auc(sums["auc_tokens"]),
            "disc_accuracy": ratio("disc_correct", "tokens"),
            "disc_precision": ratio("disc_said_correct", "disc_said"),
            "disc_recall": ratio("disc_fake_correct", "disc_fake"),
        }
    return metrics
