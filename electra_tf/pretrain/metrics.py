# SPDX-License-Identifier: Apache-2.0
"""The metrics of pre-training: the original's, as sums that add up over batches.

An objective names those it has (`Objective.metrics`) and forms the sums of a batch
(`Objective.loss`). Without TensorFlow, because reports and model cards also read it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from electra_tf.config.objectives import GENERATOR, GENERATORS, OBJECTIVES
from electra_tf.train.reporting import Curve, Metric, Ratio, Sums
from electra_tf.train.reporting import evaluation_metrics as evaluation_metrics

# Of generator, discriminator, and predictions of tokens by the main network.
_ORANGE, _BLUE, _GREEN = "#c0582b", "#2b6cb0", "#009e73"

# Keeps an empty mean finite; the original's constant.
EPSILON = 1e-6
# tf.metrics.auc of the original: 200 thresholds, the outer two beyond 0 and 1.
NUM_THRESHOLDS = 200
THRESHOLDS = np.concatenate(
    [[-1e-7], np.arange(1, NUM_THRESHOLDS - 1) / (NUM_THRESHOLDS - 1), [1 + 1e-7]]
).astype(np.float32)


class Auc(NamedTuple):
    """Area under the ROC curve, by the trapezoidal rule over the thresholds."""

    histogram: str  # a sum made by `objectives.histogram`

    def __call__(self, sums: Sums) -> float:
        histogram = np.asarray(sums[self.histogram], np.float64)
        return float(np.sum(strips(np.cumsum(histogram[:, ::-1], axis=1)[:, ::-1])))


def strips(from_bucket):
    """The areas between neighbouring thresholds, whose sum is the AUC: [buckets - 2].

    Args:
      from_bucket: [2, buckets], of arrays or tensors: weight of the negatives and the
        positives in this bucket and those of higher scores.
    """
    totals, above = from_bucket[:, 0], from_bucket[:, 1:]
    false_positive = above[0] / (totals[0] + EPSILON)
    true_positive = (above[1] + EPSILON) / (totals[1] + EPSILON)
    heights = (true_positive[:-1] + true_positive[1:]) / 2
    return (false_positive[:-1] - false_positive[1:]) * heights


def _ratio(name: str, label: str, numerator: str, denominator: str, **options):
    """A metric that follows from two sums, of training steps as of an evaluation."""
    ratio = Ratio(numerator, denominator)
    return Metric(name, label, evaluation=ratio, training=ratio, **options)


LOSS = Metric(
    "loss",
    "weighted sum of the losses, nats",
    healthy="falls",
    evaluation=Ratio("loss", "batches"),
    short="loss",
)
GENERATOR_METRICS = (
    _ratio(
        "masked_lm_loss",
        "cross-entropy of the generator at masked tokens, nats",
        *("masked_loss", "masked"),
        healthy="falls below 7 within some hundred steps",
        short="gen",
        curve=Curve("Generator loss", "masked LM loss", _ORANGE),
    ),
    _ratio(
        "masked_lm_accuracy",
        "accuracy of the generator at masked tokens",
        *("masked_correct", "masked"),
        healthy="0.3 to 0.5 for small generators late in training",
        curve=Curve("Accuracy", "generator", _ORANGE),
    ),
)
SAMPLED_ACCURACY = _ratio(
    "sampled_masked_lm_accuracy",
    "share of the generator's samples that are the original token",
    *("sampled_correct", "masked"),
    healthy="below `masked_lm_accuracy`; they count as original",
)
DISCRIMINATOR_METRICS = (
    SAMPLED_ACCURACY,
    Metric(
        "disc_loss",
        "cross-entropy of the discriminator, nats",
        healthy="below 0.4 after the warm-up, then falls slowly",
        evaluation=Ratio("disc_loss", "sequences"),
        training=Ratio("discriminator_loss"),
        short="disc",
        curve=Curve("Discriminator loss", "replaced-token loss", _BLUE),
    ),
    _ratio(
        "disc_accuracy",
        "accuracy of replaced-token detection",
        *("disc_correct", "tokens"),
        healthy='above 0.88, which is always "original"',
    ),
    _ratio(
        "disc_precision",
        "precision of replaced-token detection",
        *("disc_flagged_correct", "disc_flagged"),
        curve=Curve("Accuracy", "precision on replaced", _BLUE, "--"),
    ),
    _ratio(
        "disc_recall",
        "recall of replaced-token detection",
        *("disc_fake_correct", "disc_fake"),
        healthy="falls to almost 0 as the generator learns, then rises",
        short="recall",
        curve=Curve("Accuracy", "recall of replaced", _BLUE, ":"),
    ),
    Metric(
        "disc_auc",
        "AUC of replaced-token detection; padding counts, as in the original",
        evaluation=Auc("auc"),
    ),
    Metric(
        "disc_auc_tokens",
        "AUC of replaced-token detection, real tokens",
        healthy="above 0.5, which is chance; rises",
        evaluation=Auc("auc_tokens"),
    ),
)
TOKEN_METRICS = (
    _ratio(
        "token_loss",
        "cross-entropy of the main network at the tokens that it predicts, nats",
        *("token_loss", "predicted_tokens"),
        healthy="falls; `all_tokens_mlm` begins near 0.7, where it copies half",
        short="token",
        curve=Curve("Main network's loss", "predicted tokens", _GREEN),
    ),
    _ratio(
        "token_accuracy",
        "accuracy of the main network at the tokens that it predicts",
        *("token_correct", "predicted_tokens"),
        healthy="`all_tokens_mlm` has about 0.9 from copying alone",
        short="acc",
        curve=Curve("Accuracy", "main network", _GREEN),
    ),
    _ratio(
        "replaced_token_accuracy",
        "accuracy of the main network where a token was replaced",
        *("replaced_correct", "predicted_replaced"),
        healthy="rises; stays below `masked_lm_accuracy` of a generator of that size",
        curve=Curve("Accuracy", "main network, replaced tokens", _GREEN, ":"),
    ),
)
# Of `adversarial`.
POLICY_METRICS = (
    _ratio(
        "generator_entropy",
        "entropy of the generator's distribution, nats",
        *("entropy", "masked"),
        healthy="well above 0",
        short="entropy",
        curve=Curve("Generator's entropy", "entropy", _ORANGE),
    ),
    _ratio(
        "generator_reward",
        "discriminator's loss at the samples, the generator's reward, nats",
        *("reward", "masked"),
    ),
    _ratio(
        "generator_baseline",
        "predicted reward, nats",
        *("baseline", "masked"),
        healthy="near `generator_reward`",
    ),
)
ALL_METRICS = (
    LOSS,
    *GENERATOR_METRICS,
    *DISCRIMINATOR_METRICS,
    *TOKEN_METRICS,
    *POLICY_METRICS,
)


def plotted(objective: str, generator: str) -> tuple[Metric, ...]:
    """The metrics to draw: those of a generator only if the run trains it."""
    kind = OBJECTIVES[objective]
    is_learned = GENERATOR in kind.learns or kind.begins_with
    if is_learned and GENERATORS[generator].encoders:
        return ALL_METRICS
    return tuple(m for m in ALL_METRICS if m not in GENERATOR_METRICS)
