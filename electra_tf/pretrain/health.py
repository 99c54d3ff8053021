# SPDX-License-Identifier: Apache-2.0
"""Alarms of a run that continues but goes wrong: collapse, divergence, no learning.

They read the metrics that each step reports anyway. Without TensorFlow.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from electra_tf.console import Console
from electra_tf.errors import EXIT_DIVERGED, UserError

_EVERY = 10  # steps between two looks, and steps that make a jump; fewer are chance
_SETTLED = 1000  # steps after the warm-up
ADVICE = "a lower learning_rate, more num_warmup_steps, a smaller generator"


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

    def __init__(
        self,
        policy: str,
        console: Console,
        warmup: int,
        vocab_size: int,
        counts_all_tokens: bool = True,
    ):
        self.vocab_size, self.counts_all_tokens = vocab_size, counts_all_tokens
        self.lowest = math.inf  # mean loss of the generator
        self.is_settled = False
        self._policy, self._console, self._warmup = policy, console, warmup
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
        self.is_settled = step >= self._warmup + _SETTLED
        raised = {alarm.name: alarm for alarm in ALARMS if self._is_raised(alarm)}
        new, self._raised = raised.keys() - self._raised, {*raised}
        for name in sorted(new):
            text = f"{name} up to step {step:,}: {raised[name].meaning}.\n"
            text += f"What usually helps: {ADVICE}."
            if self._policy == "stop":
                text = f'stopped by "on_alarm": {text} The state is saved; '
                raise UserError(f'{text}"on_alarm": "warn" continues.', EXIT_DIVERGED)
            self._console.log(f"Warning: {text}")

    def _is_raised(self, alarm: "Alarm") -> bool:
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
