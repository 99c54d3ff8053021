# SPDX-License-Identifier: Apache-2.0
"""An ElectraPretrainer as the training loop sees it: losses, sums, metrics."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from electra_tf.pretrain import metrics
from electra_tf.pretrain.pretraining import ElectraPretrainer, LossWeights


class TrainablePretrainer:
    """Trains and evaluates an ElectraPretrainer (see `train.step.Evaluable`)."""

    def __init__(self, pretrainer: ElectraPretrainer):
        self.model = pretrainer
        self.metrics = pretrainer.objective.metrics

    def loss_weights(self, batch: dict[str, tf.Tensor]) -> LossWeights:
        """Counts of the positions that the two losses average over."""
        return self.model.loss_weights(batch)

    def training_sums(
        self, batch: dict[str, tf.Tensor], seed: tf.Tensor, weights: LossWeights
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Total loss, and the sums that the metrics of a step need."""
        output = self.model(batch, training=True, seed=seed, weights=weights)
        sums = self.model.objective.sums(output, batch)
        # Histograms are for evaluation; unused, they are not computed.
        sums = {name: value for name, value in sums.items() if not value.shape.rank}
        del sums["loss"], sums["batches"]
        return output.total_loss, sums

    def training_metrics(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Metrics of single steps, of the batch as it was trained on, with dropout."""
        return metrics.training_metrics(self.metrics, sums)

    def evaluation_sums(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Sums over one batch, without dropout."""
        return self.model.objective.sums(self.model(batch, training=False), batch)

    def evaluation_metrics(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        """The original's metrics, from the sums over all batches."""
        return metrics.evaluation_metrics(self.metrics, sums)
