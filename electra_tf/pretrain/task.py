# SPDX-License-Identifier: Apache-2.0
"""What the training loop asks of pre-training: losses, sums, metrics."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from electra_tf.pretrain.metrics import finalize_metrics, metric_sums
from electra_tf.pretrain.pretraining import ElectraPretrainer, LossWeights


class PretrainingTask:
    """Trains and evaluates an ElectraPretrainer (see `train.step.Evaluable`)."""

    def __init__(self, pretrainer: ElectraPretrainer):
        self.model = pretrainer

    def loss_weights(self, batch: dict[str, tf.Tensor]) -> LossWeights:
        """Counts of the positions that the two losses average over."""
        return self.model.loss_weights(batch)

    def training_sums(
        self, batch: dict[str, tf.Tensor], seed: tf.Tensor, weights: LossWeights
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Total loss, the generator's and discriminator's loss, counts for the rest."""
        output = self.model(batch, training=True, seed=seed, weights=weights)
        # Histograms are for evaluation; unused, they are not computed.
        sums = {k: v for k, v in metric_sums(output, batch).items() if not v.shape.rank}
        del sums["loss"], sums["batches"]
        sums["masked_lm_loss"] = output.generated.loss
        if output.judged is not None:
            sums["disc_loss"] = output.judged.loss
        return output.total_loss, sums

    def training_metrics(self, sums: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Metrics of single steps, under the names that the evaluation gives them.

        masked_lm_loss and disc_loss are the terms of the training loss, before their
        weights; all are of the batch as it was trained on, with dropout.
        """

        def ratio(name, count):
            return sums[name] / np.maximum(sums[count], 1.0)

        metrics = {
            "masked_lm_loss": sums["masked_lm_loss"],
            "masked_lm_accuracy": ratio("masked_correct", "masked"),
        }
        if "disc_loss" in sums:
            metrics |= {
                "sampled_masked_lm_accuracy": ratio("sampled_correct", "masked"),
                "disc_loss": sums["disc_loss"],
                "disc_accuracy": ratio("disc_correct", "tokens"),
                "disc_precision": ratio("disc_said_correct", "disc_said"),
                "disc_recall": ratio("disc_fake_correct", "disc_fake"),
            }
        return metrics

    def evaluation_sums(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Sums over one batch, without dropout."""
        return metric_sums(self.model(batch, training=False), batch)

    def evaluation_metrics(self, sums: dict[str, np.ndarray]) -> dict[str, float]:
        """The original's metrics, from the sums over all batches."""
        return finalize_metrics(sums)
