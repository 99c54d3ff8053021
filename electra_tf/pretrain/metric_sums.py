# SPDX-License-Identifier: Apache-2.0
"""The sums of a batch that metrics are computed from.

They are of a batch or of a part of it, and add up over batches and replicas.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf.pretrain.metrics import EPSILON, NUM_THRESHOLDS, THRESHOLDS
from electra_tf.train.metrics import Metric, Ratio


def generator_sums(output, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Sums and counts of one batch that LOSS and GENERATOR_METRICS need.

    Args:
      output: `pretraining.PretrainingOutput` of the batch.

    Returns: float32 scalars.
    """
    weights = batch["masked_lm_weights"]
    ids, generated = batch["masked_lm_ids"], output.generated
    return {
        "masked": tf.reduce_sum(weights),
        "masked_correct": _count(generated.predictions == ids, weights),
        "masked_loss": tf.reduce_sum(generated.per_token_loss * weights),
        "generator_loss": generated.loss,
        # Each replica's part of a global batch, whose loss is the sum of the parts'.
        "batches": tf.ones([]) / tf.distribute.get_strategy().num_replicas_in_sync,
        "loss": output.total_loss,
    }


def sampled_sums(output, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What SAMPLED_ACCURACY needs beside `generator_sums`."""
    right = output.sampled_ids == batch["masked_lm_ids"]
    return {"sampled_correct": _count(right, batch["masked_lm_weights"])}


def token_sums(found) -> dict[str, tf.Tensor]:
    """What TOKEN_METRICS need; `found`: `token_objectives.TokenPredictions`."""
    right = found.predictions == found.targets
    replaced = tf.cast(found.is_replaced, tf.float32) * found.weights
    return {
        "token_mean_loss": found.loss,
        "token_loss": tf.reduce_sum(found.per_token_loss * found.weights),
        "predicted_tokens": tf.reduce_sum(found.weights),
        "token_correct": _count(right, found.weights),
        "predicted_replaced": tf.reduce_sum(replaced),
        "replaced_correct": _count(right, replaced),
    }


def sentence_sums(sentences) -> dict[str, tf.Tensor]:
    """What SENTENCE_METRICS need beside `discriminator_sums`."""
    right = (sentences.logits > 0) == (sentences.labels > 0)
    return {
        "sentence_loss": tf.reduce_sum(sentences.losses),
        "sentence_correct": _count(right, tf.ones_like(sentences.losses)),
    }


def policy_sums(policy, weights: tf.Tensor) -> dict[str, tf.Tensor]:
    """What POLICY_METRICS need beside `generator_sums`, of an `adversarial.Policy`."""
    return {
        "entropy": tf.reduce_sum(policy.entropy * weights),
        "reward": tf.reduce_sum(policy.reward * weights),
        "baseline": tf.reduce_sum(policy.baseline * weights),
    }


def discriminator_sums(output, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What DISCRIMINATOR_METRICS need beside `generator_sums`; histograms too."""
    found = output.discriminated
    mask = tf.cast(batch["input_mask"], tf.float32)
    labels = tf.cast(output.is_replaced, tf.int32)
    right = found.predictions == labels
    said = tf.cast(found.predictions, tf.float32) * mask
    fake = tf.cast(labels, tf.float32) * mask
    return sampled_sums(output, batch) | {
        "sequences": tf.cast(tf.shape(labels)[0], tf.float32),
        "discriminator_loss": found.loss,
        "disc_loss": tf.reduce_sum(found.per_example_loss),
        "tokens": tf.reduce_sum(mask),
        "disc_correct": _count(right, mask),
        "disc_said": tf.reduce_sum(said),
        "disc_said_correct": _count(right, said),
        "disc_fake": tf.reduce_sum(fake),
        "disc_fake_correct": _count(right, fake),
        # The original's AUC counts padding as tokens of label 0 and probability 0.
        "auc": histogram(found.probs * mask, fake, tf.ones_like(mask)),
        "auc_tokens": histogram(found.probs, fake, mask),
    }


def _count(flags: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(flags, tf.float32) * weights)


def histogram(probs, labels, weights) -> tf.Tensor:
    """Weight of [negatives, positives] per number of thresholds below the score."""
    bucket = tf.searchsorted(THRESHOLDS, tf.reshape(probs, [-1]), side="left")
    cell = bucket + (NUM_THRESHOLDS + 1) * tf.cast(tf.reshape(labels, [-1]), tf.int32)
    size = 2 * (NUM_THRESHOLDS + 1)
    sums = tf.math.unsorted_segment_sum(tf.reshape(weights, [-1]), cell, size)
    return tf.reshape(sums, [2, NUM_THRESHOLDS + 1])


class RunningMetric(keras.metrics.Metric):
    """A metric over any number of batches, for `fit`.

    Args:
      metric: whose `evaluation` says how it follows from the sums of batches.
    """

    def __init__(self, metric: Metric):
        super().__init__(name=metric.name)
        if isinstance(metric.evaluation, Ratio):
            shapes = dict.fromkeys(metric.evaluation, ())
        else:
            shapes = {metric.evaluation.histogram: (2, NUM_THRESHOLDS + 1)}
        self._sums = {
            name: self.add_variable(shape, "zeros", name=name)
            for name, shape in shapes.items()
        }

    def update_state(self, sums: dict[str, tf.Tensor]) -> None:
        """Adds the sums of a batch."""
        for name, total in self._sums.items():
            total.assign_add(sums[name])

    def result(self) -> tf.Tensor:
        """The value, float32: as `Ratio` and `Auc`, whose are for NumPy."""
        totals = [tf.convert_to_tensor(total) for total in self._sums.values()]
        if len(totals) == 2:
            return tf.math.divide_no_nan(*totals)
        [histogram] = totals
        above = tf.cumsum(histogram, axis=1, reverse=True)[:, 1:]
        false_positive, true_positive = tf.unstack(
            above / (tf.reduce_sum(histogram, axis=1, keepdims=True) + EPSILON)
        )
        heights = (true_positive[:-1] + true_positive[1:]) / 2
        return tf.reduce_sum((false_positive[:-1] - false_positive[1:]) * heights)
