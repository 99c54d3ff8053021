# SPDX-License-Identifier: Apache-2.0
"""The metrics of pre-training: the original's, as sums that add up over batches.

An objective names those it has (`Objective.metrics`); `metric_sums` forms the
sums of a batch. Without TensorFlow, because reports and model cards read it, too.

`python -m electra_tf.pretrain.metrics` prints the tables of docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from electra_tf.pretrain.health import ALARMS
from electra_tf.train.metrics import STEP_METRICS, Curve, Metric, Ratio, Sums

_ORANGE, _BLUE = "#c0582b", "#2b6cb0"  # of generator and discriminator

# Keeps a mean over nothing at all finite; the original's constant.
EPSILON = 1e-6
# tf.metrics.auc of the original: 200 thresholds, the outer two beyond 0 and 1.
NUM_THRESHOLDS = 200
THRESHOLDS = np.concatenate(
    [[-1e-7], np.arange(1, NUM_THRESHOLDS - 1) / (NUM_THRESHOLDS - 1), [1 + 1e-7]]
).astype(np.float32)


class Auc(NamedTuple):
    """Area under the ROC curve, by the trapezoidal rule over the thresholds."""

    histogram: str  # a sum made by `metric_sums.histogram`

    def __call__(self, sums: Sums) -> float:
        histogram = np.asarray(sums[self.histogram])
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


LOSS = Metric(
    "loss",
    "weighted sum of the losses",
    "`gen_weight` x generator loss + `disc_weight` x `disc_loss` or `token_loss`, nats",
    healthy="falls",
    evaluation=Ratio("loss", "batches"),
    short="loss",
)
GENERATOR_METRICS = (
    Metric(
        "masked_lm_loss",
        "cross-entropy of the generator, nats",
        "generator's cross-entropy at the masked positions, nats per token",
        healthy="falls below 7 within some hundred steps",
        evaluation=Ratio("masked_loss", "masked"),
        training=Ratio("generator_loss"),
        short="gen",
        tag="generator/loss",
        curve=Curve("Generator loss", "masked LM loss", _ORANGE),
    ),
    Metric(
        "masked_lm_accuracy",
        "accuracy of the generator at masked tokens",
        "masked tokens predicted correctly",
        healthy="0.3 to 0.5 for small generators late in training",
        evaluation=Ratio("masked_correct", "masked"),
        training=Ratio("masked_correct", "masked"),
        tag="generator/accuracy",
        curve=Curve("Accuracy", "generator", _ORANGE),
    ),
)
SAMPLED_ACCURACY = Metric(
    "sampled_masked_lm_accuracy",
    "share of the generator's samples that are the original token",
    "samples that are the original token; they count as original",
    healthy="below `masked_lm_accuracy`",
    evaluation=Ratio("sampled_correct", "masked"),
    training=Ratio("sampled_correct", "masked"),
    tag="generator/sampled_accuracy",
)
DISCRIMINATOR_METRICS = (
    SAMPLED_ACCURACY,
    Metric(
        "disc_loss",
        "cross-entropy of the discriminator, nats",
        "discriminator's cross-entropy over all tokens, nats; in evaluation a mean "
        "over sequences",
        healthy="below 0.4 after the warm-up, then falls slowly",
        evaluation=Ratio("disc_loss", "sequences"),
        training=Ratio("discriminator_loss"),
        short="disc",
        tag="discriminator/loss",
        curve=Curve("Discriminator loss", "replaced-token loss", _BLUE),
    ),
    Metric(
        "disc_accuracy",
        "accuracy of replaced-token detection",
        "tokens classified correctly",
        healthy='above 0.88, which is always "original"',
        evaluation=Ratio("disc_correct", "tokens"),
        training=Ratio("disc_correct", "tokens"),
        tag="discriminator/accuracy",
        curve=Curve("Accuracy", "discriminator", _BLUE),
    ),
    Metric(
        "disc_precision",
        "precision of replaced-token detection",
        "share of the tokens predicted as replaced that are",
        evaluation=Ratio("disc_said_correct", "disc_said"),
        training=Ratio("disc_said_correct", "disc_said"),
        tag="discriminator/precision",
        curve=Curve("Accuracy", "precision on replaced", _BLUE, "--"),
    ),
    Metric(
        "disc_recall",
        "recall of replaced-token detection",
        "share of the replaced tokens that are found",
        healthy="near 0 for the first thousands of steps, then rises",
        evaluation=Ratio("disc_fake_correct", "disc_fake"),
        training=Ratio("disc_fake_correct", "disc_fake"),
        short="recall",
        tag="discriminator/recall",
        curve=Curve("Accuracy", "recall of replaced", _BLUE, ":"),
    ),
    Metric(
        "disc_auc",
        "AUC of replaced-token detection; padding counts, as in the original",
        "area under the ROC curve, 200 thresholds; padding counts as original tokens",
        evaluation=Auc("auc"),
    ),
    Metric(
        "disc_auc_tokens",
        "AUC of replaced-token detection, real tokens",
        "the same without padding",
        healthy="above 0.5, which is chance; rises",
        evaluation=Auc("auc_tokens"),
    ),
)
TOKEN_METRICS = (
    Metric(
        "token_loss",
        "cross-entropy of the main network, nats",
        "main network's cross-entropy at the predicted tokens, nats per token",
        healthy="falls; `all_tokens_mlm` begins near 0.7, where it copies half",
        evaluation=Ratio("token_loss", "predicted_tokens"),
        training=Ratio("token_mean_loss"),
        short="token",
        tag="main/loss",
        curve=Curve("Main network's loss", "predicted tokens", _BLUE),
    ),
    Metric(
        "token_accuracy",
        "accuracy of the main network at the tokens that it predicts",
        "tokens predicted correctly",
        healthy="`all_tokens_mlm` has about 0.9 from copying alone",
        evaluation=Ratio("token_correct", "predicted_tokens"),
        training=Ratio("token_correct", "predicted_tokens"),
        short="acc",
        tag="main/accuracy",
        curve=Curve("Accuracy", "main network", _BLUE),
    ),
    Metric(
        "replaced_token_accuracy",
        "accuracy of the main network where a token was replaced",
        "the same where the input token was replaced",
        healthy="rises; below `masked_lm_accuracy` of a generator as large",
        evaluation=Ratio("replaced_correct", "predicted_replaced"),
        training=Ratio("replaced_correct", "predicted_replaced"),
        tag="main/replaced_accuracy",
        curve=Curve("Accuracy", "main network, replaced tokens", _BLUE, ":"),
    ),
)
POLICY_METRICS = (
    Metric(
        "generator_entropy",
        "entropy of the generator's distribution, nats",
        "`adversarial`: entropy of the distribution that samples are drawn from, nats",
        healthy="well above 0",
        evaluation=Ratio("entropy", "masked"),
        training=Ratio("entropy", "masked"),
        short="entropy",
        tag="generator/entropy",
        curve=Curve("Generator's entropy", "entropy", _ORANGE),
    ),
    Metric(
        "generator_reward",
        "discriminator's loss at the samples, the generator's reward, nats",
        "`adversarial`: discriminator's loss at the samples, which it raises",
        evaluation=Ratio("reward", "masked"),
        training=Ratio("reward", "masked"),
        tag="generator/reward",
    ),
    Metric(
        "generator_baseline",
        "predicted reward, nats",
        "`adversarial`: predicted reward, nats",
        healthy="near `generator_reward`",
        evaluation=Ratio("baseline", "masked"),
        training=Ratio("baseline", "masked"),
        tag="generator/baseline",
    ),
)
SENTENCE_METRICS = (
    Metric(
        "sentence_loss",
        "cross-entropy of the verdict on whole texts, nats",
        "`electra_sentence`: cross-entropy of whether a text was corrupted, nats",
        healthy="below 0.5, the entropy of the share of corrupted texts",
        evaluation=Ratio("sentence_loss", "sequences"),
        training=Ratio("sentence_loss", "sequences"),
        short="sent",
        tag="sentence/loss",
        curve=Curve("Discriminator loss", "sentence loss", _BLUE, "--"),
    ),
    Metric(
        "sentence_accuracy",
        "accuracy of the verdict on whole texts",
        "`electra_sentence`: texts classified correctly",
        healthy="above the share of corrupted texts, 1 - `intact_share`",
        evaluation=Ratio("sentence_correct", "sequences"),
        training=Ratio("sentence_correct", "sequences"),
        tag="sentence/accuracy",
    ),
)
ALL_METRICS = (
    LOSS,
    *GENERATOR_METRICS,
    *DISCRIMINATOR_METRICS,
    *TOKEN_METRICS,
    *POLICY_METRICS,
    *SENTENCE_METRICS,
)


def evaluation_metrics(metrics: Sequence[Metric], sums: Sums) -> dict[str, float]:
    """The values of metrics, from the sums over any number of batches."""
    return {m.name: float(m.evaluation(sums)) for m in metrics if m.evaluation}


def training_metrics(metrics: Sequence[Metric], sums: Sums) -> dict[str, np.ndarray]:
    """The values of metrics in single training steps, from the sums of each."""
    return {m.name: m.training(sums) for m in metrics if m.training}


def tables() -> str:
    """The tables of docs/metrics.md: all metrics, and all alarms."""
    metrics = (*ALL_METRICS, *STEP_METRICS)
    rows = [f"| `{m.name}` | {m.meaning} | {m.healthy} |" for m in metrics]
    alarms = [f"| {a.name} | {a.meaning} | {a.advice} |" for a in ALARMS]
    lines = ["| name | meaning | healthy |", "|---|---|---|", *rows, ""]
    lines += ["| alarm | raised by | what usually helps |", "|---|---|---|", *alarms]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(tables(), end="")
