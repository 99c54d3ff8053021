# SPDX-License-Identifier: Apache-2.0
"""The metrics of pre-training: the original's, as sums that add up over batches.

An objective names those it has (`Objective.metrics`); `metric_sums` forms the
sums of a batch. Without TensorFlow, because reports and model cards read it, too.

`python -m electra_tf.pretrain.metrics > docs/metrics.md` writes the page about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from electra_tf.pretrain.health import SIGNS
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
        "generator's cross-entropy at the masked positions, nats per token; log of the "
        "vocabulary size at the start",
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
        "masked tokens whose most likely prediction is right",
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
        "discriminator's cross-entropy over all tokens, nats; a mean over sequences in "
        "evaluation",
        healthy='below 0.4 once it says "original" everywhere; further down when it '
        "learns",
        evaluation=Ratio("disc_loss", "sequences"),
        training=Ratio("discriminator_loss"),
        short="disc",
        tag="discriminator/loss",
        curve=Curve("Discriminator loss", "replaced-token loss", _BLUE),
    ),
    Metric(
        "disc_accuracy",
        "accuracy of replaced-token detection",
        'tokens told right; about 0.88 for "always original"',
        healthy="says little: look at recall and AUC",
        evaluation=Ratio("disc_correct", "tokens"),
        training=Ratio("disc_correct", "tokens"),
        short="acc",
        tag="discriminator/accuracy",
        curve=Curve("Accuracy", "discriminator", _BLUE),
    ),
    Metric(
        "disc_precision",
        "precision of replaced-token detection",
        "accuracy over the tokens that it calls replaced",
        evaluation=Ratio("disc_said_correct", "disc_said"),
        training=Ratio("disc_said_correct", "disc_said"),
        tag="discriminator/precision",
        curve=Curve("Accuracy", "precision on replaced", _BLUE, "--"),
    ),
    Metric(
        "disc_recall",
        "recall of replaced-token detection",
        "accuracy over the replaced tokens",
        healthy="near 0 for the first thousands of steps, then rising; near 0 for ever "
        "means the generator is too strong or the learning rate too high",
        evaluation=Ratio("disc_fake_correct", "disc_fake"),
        training=Ratio("disc_fake_correct", "disc_fake"),
        tag="discriminator/recall",
        curve=Curve("Accuracy", "recall of replaced", _BLUE, ":"),
    ),
    Metric(
        "disc_auc",
        "AUC of replaced-token detection; padding counts, as in the original",
        "area under the ROC curve, 200 thresholds; padding counts as tokens of label 0 "
        "and probability 0, as in the original",
        evaluation=Auc("auc"),
    ),
    Metric(
        "disc_auc_tokens",
        "AUC of replaced-token detection, real tokens",
        "the same without padding",
        healthy="0.5 is chance",
        evaluation=Auc("auc_tokens"),
    ),
)
TOKEN_METRICS = (
    Metric(
        "token_loss",
        "cross-entropy of the main network, nats",
        "main network's cross-entropy at the tokens that it predicts, nats per token",
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
        "predicted tokens whose most likely prediction is right",
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
        "the same over the tokens that it read as another token",
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
        healthy="near 0 means that it has but one token to offer",
        evaluation=Ratio("entropy", "masked"),
        training=Ratio("entropy", "masked"),
        short="entropy",
        tag="generator/entropy",
        curve=Curve("Generator's entropy", "entropy", _ORANGE),
    ),
    Metric(
        "generator_reward",
        "discriminator's loss at the samples, the generator's reward, nats",
        "`adversarial`: the discriminator's loss at the samples, which the generator "
        "is to raise, nats",
        evaluation=Ratio("reward", "masked"),
        training=Ratio("reward", "masked"),
        tag="generator/reward",
    ),
    Metric(
        "generator_baseline",
        "what the baseline takes the reward for, nats",
        "`adversarial`: what the baseline takes that reward for, nats",
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
        "`electra_sentence`: cross-entropy of the verdict whether a text was "
        "corrupted, nats per text",
        healthy="below 0.5, which is what the share of corrupted texts alone tells",
        evaluation=Ratio("sentence_loss", "sequences"),
        training=Ratio("sentence_loss", "sequences"),
        short="sent",
        tag="sentence/loss",
        curve=Curve("Discriminator loss", "sentence loss", _BLUE, "--"),
    ),
    Metric(
        "sentence_accuracy",
        "accuracy of the verdict on whole texts",
        "`electra_sentence`: texts told right",
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


_PAGE = """\
<!-- Written by `python -m electra_tf.pretrain.metrics > docs/metrics.md`. -->
# Metrics

Evaluation (`results/unsup_results.txt` and `.json`) has the original's names and
meanings; `metrics.jsonl` and TensorBoard have them per training step, with dropout.
The event files are written without the package tensorboard; to look at them:

    pip install -e ".[tensorboard]" && tensorboard --logdir $DATA_DIR/models

| name | meaning | healthy |
|---|---|---|
{rows}

`electra_15` counts in `disc_loss` the positions that it learns from; its other
`disc_` metrics are over all tokens, as ELECTRA's. In Electric the label is "was
masked", also where the sample is the original token, and the generator's loss is the
cloze loss over all candidate positions. In `electra_sentence` the tokens of texts that
are left alone count, too, as original, and `loss` has `sentence_weight` x
`sentence_loss` besides. Of `adversarial` the `loss` has that of the policy in place of
the generator's, of `two_stage` that of the network alone that learns.

[reference_curves.md](reference_curves.md) has the numbers of healthy runs by step.

## Samples

With `"sample_steps": 1000` a run shows every 1,000 steps what the discriminator says of
the first three passages of `eval_tfrecords` (held out only if you set it to such text):
which tokens the generator replaced, by what, and how likely each looks replaced. The
same tokens are masked each time, so that what changes is the model. It is in
TensorBoard as text (the run `samples`), in `run_inference.py report`, and in
`samples.jsonl`: a line for a step, with `[token, probability, replacement]` for each
token. It costs a forward pass of three sequences, changes nothing in the training and
saves no checkpoint; after a kill no sample is missing, none is there twice.

## Alarms

A run watches these numbers and warns, once each time, when one of them says that it
goes wrong. With `"on_alarm": "stop"` it saves and ends, exit code 70.

| alarm | raised by | what usually helps |
|---|---|---|
{alarms}
"""


def page() -> str:
    """docs/metrics.md."""
    rows = [
        f"| `{m.name}` | {m.meaning} | {m.healthy} |"
        for m in (*ALL_METRICS, *STEP_METRICS)
    ]
    alarms = [f"| {sign.name} | {sign.meaning} | {sign.advice} |" for sign in SIGNS]
    return _PAGE.format(rows="\n".join(rows), alarms="\n".join(alarms))


if __name__ == "__main__":
    print(page(), end="")
