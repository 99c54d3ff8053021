# SPDX-License-Identifier: Apache-2.0
"""Watches a run for what goes wrong without ending it: collapse, spikes, standstill.

Reads nothing but the metrics that each step reports anyway, so it changes no number and
costs no time worth measuring. Without TensorFlow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from electra_tf.console import Console
from electra_tf.errors import EXIT_DIVERGED, UserError

WINDOW = 1000  # steps over which the discriminator and the rate are watched
SHORT = 200  # steps over which losses and norms are averaged
SPIKE = 10  # steps that make a spike; fewer are chance

AT_CHANCE = 0.98  # of the loss of guessing
ALWAYS, NEVER = 0.995, 0.005  # recall of a constant answer
SPIKE_SIGMAS = 6.0  # robust standard deviations of single steps
WORSE_NATS = 0.5
LEAST_ENTROPY = 0.1  # nats; 1.1 choices
NORM_FACTOR = 10.0
NO_RATE = 1e-3  # of the highest rate so far
MAX_EPOCHS = 40


class Alarm(NamedTuple):
    """Something that can be wrong.

    Attributes:
      name: of the alarm.
      meaning: when it is raised, for docs/metrics.md.
      advice: what usually helps.
      look: what is wrong, from the monitor and the last `steps` values of `metrics`;
        None if all is well, or where there are not as many values.
    """

    name: str
    meaning: str
    advice: str
    look: Callable[..., str | None]
    steps: int = 0
    metrics: tuple[str, ...] = ()


class HealthMonitor:
    """Looks at the metrics of all steps; logs a warning, or ends the run.

    An alarm is logged once, and again if it clears and returns.

    Args:
      policy: "warn", or "stop" for a UserError (70), after which the loop saves.
      console: where warnings go.
      total: the step at which the run, or its phase, ends.
      warmup: the step at which the learning rate's warm-up ends.
      first: the step at which the phase begins.
      epochs: how often the data of the phase have been seen at a step; of
        several data sets the one that is seen most often.
      counts_all_tokens: whether the discriminator's loss does, as its accuracy.
    """

    def __init__(
        self,
        policy: str,
        console: Console,
        *,
        total: int,
        warmup: int,
        first: int = 0,
        epochs: Callable[[int], float] = lambda step: 0.0,
        counts_all_tokens: bool = True,
    ):
        self.total, self.warmup, self.first = total, warmup, first
        self.epochs, self.counts_all_tokens = epochs, counts_all_tokens
        self.step = 0
        self.best: dict[str, float] = {}  # lowest mean loss and norm, highest rate
        self._policy, self._console = policy, console
        self._rows: dict[str, deque[float]] = {}
        self._since_look = 0
        self._raised: set[str] = set()

    def __call__(self, first_step: int, metrics: Mapping[str, np.ndarray]) -> None:
        """Takes the metrics of steps, arrays; raises a `UserError` if one must stop."""
        count = len(metrics["loss"])
        made = np.asarray(metrics["finite"], bool)  # without skipped steps
        for name, values in metrics.items():
            row = self._rows.setdefault(name, deque(maxlen=WINDOW + SHORT))
            row.extend(np.asarray(values, float)[made].tolist())
        self.step = first_step + count - 1
        self._since_look += count
        if self._since_look < SPIKE:
            return
        self._since_look = 0
        found = {alarm: text for alarm in ALARMS if (text := self._look(alarm))}
        new = [alarm for alarm in found if alarm.name not in self._raised]
        self._raised = {alarm.name for alarm in found}
        for alarm in new:
            text = f"up to step {self.step:,}: {found[alarm]}.\n"
            text += f"What usually helps: {alarm.advice}."
            if self._policy == "stop":
                text = f'stopped by "on_alarm", {text} The state is saved; '
                raise UserError(f'{text}"on_alarm": "warn" continues.', EXIT_DIVERGED)
            self._console.log(f"Warning: {text}")

    def _look(self, alarm: Alarm) -> str | None:
        rows = [self._rows.get(name, ()) for name in alarm.metrics]
        if any(len(row) < alarm.steps for row in rows):
            return None
        return alarm.look(self, *(np.array(row)[-alarm.steps :] for row in rows))


ALARMS: list[Alarm] = []


def _alarm(name: str, meaning: str, advice: str, steps: int = 0, *metrics: str):
    """Makes a function the `look` of an alarm."""

    def add(look: Callable[..., str | None]) -> Callable[..., str | None]:
        ALARMS.append(Alarm(name, meaning, advice, look, steps, metrics))
        return look

    return add


def _binary_entropy(share: float) -> float:
    share = min(max(share, 1e-9), 1 - 1e-9)
    return float(-share * np.log(share) - (1 - share) * np.log1p(-share))


@_alarm(
    "discriminator collapse",
    f"recall below {NEVER} (or all tokens called replaced) over {WINDOW:,} steps "
    "after the warm-up, with the loss of guessing (not of `electra_15`, whose loss "
    "counts other tokens than its metrics)",
    "a smaller generator, a lower learning_rate, more num_warmup_steps",
    WINDOW,
    "disc_recall",
    "disc_accuracy",
    "disc_loss",
)
def _discriminator(run: HealthMonitor, *rows: np.ndarray) -> str | None:
    # The loss of guessing follows from the accuracy, for the same tokens.
    if not run.counts_all_tokens or run.step < run.warmup + WINDOW:
        return None
    recall, accuracy, loss = (float(row.mean()) for row in rows)
    calls_all = recall > ALWAYS and accuracy < 0.5
    if not calls_all and recall > NEVER:
        return None
    # With one answer for all tokens, accuracy is the share of one kind.
    if loss < AT_CHANCE * _binary_entropy(accuracy):
        return None
    which = "every token" if calls_all else "no token"
    return (
        f"the discriminator calls {which} replaced, for {WINDOW:,} steps (recall "
        f"{recall:.3f}), and its loss of {loss:.3f} is that of guessing"
    )


@_alarm(
    "generator collapse",
    f"`masked_lm_loss`, mean of {SHORT} steps, {WORSE_NATS} above its lowest",
    "a lower learning_rate, starting again from an earlier checkpoint",
    SHORT,
    "masked_lm_loss",
)
def _generator(run: HealthMonitor, row: np.ndarray) -> str | None:
    loss = float(row.mean())
    best = run.best["generator"] = min(loss, run.best.get("generator", np.inf))
    if loss < best + WORSE_NATS:
        return None
    return f"the generator's loss rose from {best:.2f} to {loss:.2f}"


@_alarm(
    "generator with one answer",
    f"`generator_entropy` (`adversarial`), mean of {SHORT} steps, below "
    f"{LEAST_ENTROPY}",
    "a smaller gen_weight, a lower learning_rate",
    SHORT,
    "generator_entropy",
)
def _entropy(run: HealthMonitor, row: np.ndarray) -> str | None:
    if row.mean() > LEAST_ENTROPY:
        return None
    return f"the generator's samples have an entropy of {row.mean():.3f} nats"


@_alarm(
    "loss spike",
    f"`loss`, mean of {SPIKE} steps, {SPIKE_SIGMAS:g} robust standard deviations "
    f"above the {SHORT} steps before",
    "a lower learning_rate, more num_warmup_steps, a look at the data of these steps",
    SHORT + SPIKE,
    "loss",
)
def _spike(run: HealthMonitor, row: np.ndarray) -> str | None:
    before, now = row[:-SPIKE], float(row[-SPIKE:].mean())
    usual = float(np.median(before))
    sigma = 1.4826 * float(np.median(np.abs(before - usual)))
    if now < usual + SPIKE_SIGMAS * max(sigma, 0.01 * abs(usual)):
        return None
    return f"the loss jumped from {usual:.4g} to {now:.4g}"


@_alarm(
    "growing gradients",
    f"`global_norm`, median of {SHORT} steps, {NORM_FACTOR:g} times its lowest "
    "after the warm-up",
    "a lower learning_rate",
    SHORT,
    "global_norm",
)
def _norm(run: HealthMonitor, row: np.ndarray) -> str | None:
    if run.step < run.warmup + SHORT:
        return None
    norm = float(np.median(row))
    least = run.best["norm"] = min(norm, run.best.get("norm", np.inf))
    if norm < NORM_FACTOR * least:
        return None
    return f"the gradients' norm grew from {least:.3g} to {norm:.3g}"


@_alarm(
    "no learning rate",
    f"`learning_rate` below {NO_RATE:g} of its highest for {WINDOW:,} steps, with "
    "more than a tenth of the run to go",
    "a larger num_train_steps or a smaller lr_decay_power, in a new run",
    WINDOW,
    "learning_rate",
)
def _rate(run: HealthMonitor, row: np.ndarray) -> str | None:
    highest = run.best["rate"] = max(row.max(), run.best.get("rate", 0.0))
    left = run.total - run.step
    if row.max() > NO_RATE * highest > 0 or left < 0.1 * (run.total - run.first):
        return None
    return (
        f"the learning rate is {row[-1]:.2g}, with {left:,} steps to go, in which "
        "nothing more is learned"
    )


@_alarm(
    "many_epochs",
    f"more than {MAX_EPOCHS} epochs of the data set that is seen most often",
    "more text; or fewer steps, which may do as well",
)
def _epochs(run: HealthMonitor) -> str | None:
    if run.epochs(run.step) <= MAX_EPOCHS:
        return None
    return f"the run has seen all of a data set {MAX_EPOCHS} times"
