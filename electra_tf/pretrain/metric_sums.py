# SPDX-License-Identifier: Apache-2.0
"""What the sums that metrics are computed from are made of, and metrics in `fit`."""

from __future__ import annotations

import keras
import tensorflow as tf

from electra_tf.pretrain.metrics import EPSILON, NUM_THRESHOLDS, THRESHOLDS
from electra_tf.train.metrics import Metric, Ratio


def count(flags: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The sum of the weights where the flags are set."""
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
