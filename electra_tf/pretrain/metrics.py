# SPDX-License-Identifier: Apache-2.0
"""The metrics of pre-training, as sums that add up over batches, and their alarms.

An objective names those it has (`Objective.metrics`) and forms the sums of a batch
(`Objective.loss`). Without TensorFlow, because reports and model cards also read it.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from electra_tf.config.objectives import GENERATOR, GENERATORS, OBJECTIVES
from electra_tf.console import Console
from electra_tf.errors import EXIT_DIVERGED, UserError
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


# Alarms of a run that continues but goes wrong: collapse, divergence, no learning.

_EVERY = 10  # steps between two looks, and steps that make a jump; fewer are chance
_SETTLED = 1000  # steps after the warm-up
ADVICE = "a lower learning_rate, more num_warmup_steps, a smaller generator"


@dataclasses.dataclass
class HealthMonitor:
    """Looks at the metrics of all steps; logs a warning, or ends the run.

    An alarm is logged once, and again if it clears and returns.

    Args:
      policy: "warn", or "stop" for a UserError (70), after which the loop saves.
      console: where warnings go.
      warmup: the step at which the learning rate's warm-up ends.
      vocab_size: number of tokens that the generator chooses from.
      counts_all_tokens: whether the discriminator's loss does, as its accuracy.
    """

    policy: str
    console: Console
    warmup: int
    vocab_size: int
    counts_all_tokens: bool = True

    def __post_init__(self):
        self.lowest = math.inf  # mean loss of the generator
        self.is_settled = False
        self._rows = defaultdict(lambda: deque(maxlen=_SETTLED))
        self._since_look = 0
        self._raised: set[str] = set()

    def __call__(self, first_step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Takes the metrics of steps, arrays; raises a `UserError` if one must stop."""
        made = np.asarray(metrics["finite"], bool)  # without skipped steps
        for name, values in metrics.items():
            self._rows[name].extend(np.asarray(values, float)[made].tolist())
        self._since_look += len(made)
        if self._since_look < _EVERY:
            return
        self._since_look = 0
        step = first_step + len(made) - 1
        self.is_settled = step >= self.warmup + _SETTLED
        raised = {alarm.name: alarm for alarm in ALARMS if self._is_raised(alarm)}
        new, self._raised = raised.keys() - self._raised, {*raised}
        for name in sorted(new):
            text = f"{name} up to step {step:,}: {raised[name].meaning}.\n"
            text += f"What usually helps: {ADVICE}."
            if self.policy == "stop":
                text = f'stopped by "on_alarm": {text} The state is saved; '
                raise UserError(f'{text}"on_alarm": "warn" continues.', EXIT_DIVERGED)
            self.console.log(f"Warning: {text}")

    def _is_raised(self, alarm: Alarm) -> bool:
        rows = [np.array(self._rows[n])[-alarm.steps :] for n in alarm.metrics]
        is_full = all(len(row) == alarm.steps for row in rows)
        return is_full and alarm.is_raised(self, alarm.limit, *rows)


def _gives_one_answer(run: HealthMonitor, limit: float, *rows: np.ndarray) -> bool:
    recall, accuracy, loss = (float(row.mean()) for row in rows)
    is_one = recall < limit or (recall > 1 - limit and accuracy < 0.5)
    # With one answer accuracy is the share of one kind, and the loss of guessing its
    # entropy. A healthy run also begins with one answer, but at a lower loss.
    share = min(max(accuracy, 1e-9), 1 - 1e-9)
    guessing = -share * math.log(share) - (1 - share) * math.log1p(-share)
    may_be_judged = run.is_settled and run.counts_all_tokens
    return may_be_judged and is_one and loss > 0.98 * guessing


def _jumps(run: HealthMonitor, limit: float, loss: np.ndarray) -> bool:
    usual = np.median(loss[:-_EVERY])
    sigma = 1.4826 * np.median(np.abs(loss[:-_EVERY] - usual))
    return loss[-_EVERY:].mean() > usual + limit * max(sigma, 0.01 * abs(usual))


def _does_not_fall(run: HealthMonitor, limit: float, loss: np.ndarray) -> bool:
    run.lowest = min(run.lowest, loss.mean())
    guessing = math.log(run.vocab_size)
    is_guessing = run.is_settled and loss.mean() > guessing - limit
    return is_guessing or loss.mean() > run.lowest + limit


class Alarm(NamedTuple):
    """A row of the table: judges the last `steps` values of `metrics` by `limit`."""

    name: str
    metrics: tuple[str, ...]
    steps: int
    limit: float
    is_raised: Callable[..., bool]
    meaning: str  # for docs/metrics.md and the log


_DISC = ("disc_recall", "disc_accuracy", "disc_loss")
_ONE = (
    "`disc_recall` of 1,000 steps after the warm-up is below 0.005 (or above 0.995, "
    "with `disc_accuracy` below 0.5), and `disc_loss` that of guessing"
)
_JUMP = "`loss` of 10 steps is 6 robust standard deviations above the 200 before"
_NO_FALL = (
    "`masked_lm_loss` of 200 steps is 0.5 above its lowest or, after the warm-up, that "
    "of guessing among all tokens"
)
_MLM = ("masked_lm_loss",)
ALARMS = [
    Alarm("discriminator collapse", _DISC, 1000, 0.005, _gives_one_answer, _ONE),
    Alarm("divergence", ("loss",), 210, 6.0, _jumps, _JUMP),
    Alarm("generator does not learn", _MLM, 200, 0.5, _does_not_fall, _NO_FALL),
]
