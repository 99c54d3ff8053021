# SPDX-License-Identifier: Apache-2.0
"""The training loop: steps, reports, checkpoints, and stops without loss of work.

Re-running a command continues its run. The step number comes from the checkpoint; batch
k, its masking and the dropout of step k are functions of (seed, k), so there is no
other position to restore.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.console import Console
from electra_tf.errors import EXIT_DIVERGED, UserError, as_user_error
from electra_tf.storage.checkpoints import BackgroundSaver, Checkpoints
from electra_tf.train.distribution import Placement
from electra_tf.train.reporting import Report, overflowed
from electra_tf.train.step import TrainingStep
from electra_tf.train.supervisor import StopRequest

# How long the loop stays inside the graph, and so delays the response to a signal.
LOOP_SECONDS = 0.5
# With on_nonfinite "skip", the run ends after this many skipped steps in a row.
MAX_SKIPPED_IN_A_ROW = 20


def failure_of(*actions: Callable[[], object]) -> UserError | None:
    """Returns the `UserError` of local actions, for `Workers.decide`."""
    try:
        for action in actions:
            action()
    except UserError as error:
        return error
    return None


@dataclasses.dataclass
class Loop:
    """Trains from the state's step up to `num_train_steps`.

    Args:
      make_batches: step -> iterator that starts with the batch of `step`.
      config: a PretrainingConfig or FinetuningConfig.
      evaluate: called with the step every `eval_every_steps`, with the state saved;
        returns True to end the training there.
      watch: called with a step and the metrics from there on; its `UserError` ends the
        run, with the state saved.
    """

    step: TrainingStep
    make_batches: Callable[[int], Iterator]
    checkpoints: Checkpoints
    console: Console
    placement: Placement
    config: Any
    num_train_steps: int
    evaluate: Callable[[int], bool] | None = None
    watch: Callable[[int, Mapping[str, np.ndarray]], None] | None = None

    def run(self, stop: StopRequest) -> bool:
        """Trains to the end, or until a stop request; saves the state.

        Returns: whether the end was reached.

        Raises `UserError`: 70 (loss not finite), 65 (damaged data), 73 (cannot write).
        """
        self.done = self.step.state.step
        self.is_over = self.done >= self.num_train_steps
        self._skipped_in_a_row = 0
        self._report = Report(
            self.checkpoints.directory,
            self.console,
            start=self.done,
            total=self.num_train_steps,
            batch_size=self.config.train_batch_size,
            every=self.config.log_steps,
            metrics=self.step.task.metrics,
            is_chief=self.placement.is_chief,
        )
        self._saver = saver = BackgroundSaver(self.checkpoints)
        workers, pace = self.placement.workers, Pace(self.config.iterations_per_loop)
        try:
            failure = failure_of(self._save, saver.wait)  # Fail early on a full disk.
            decision = workers.decide(failure, stop.reason(), pace.count)
            batches = self.make_batches(self.done)
            while not self.is_over and not decision.reason:
                count = min(decision.count, self._uninterrupted())
                since = time.monotonic()
                with workers.cluster.patience():
                    metrics = self.step.run(batches, self.done, count)
                pace.adapt(count, time.monotonic() - since)
                failure = self._advance(metrics, stop)
                seconds = pace.seconds + saver.seconds
                reason = stop.reason(2 * max(seconds, decision.seconds))
                decision = workers.decide(failure, reason, pace.count, seconds)
            workers.decide(failure_of(self._save, saver.wait))  # All wait for the save.
            workers.acknowledge()
        except tf.errors.OpError as error:
            raise as_user_error(error) or error from error
        finally:
            is_failing = sys.exc_info()[1] is not None
            failure = failure_of(saver.wait)
            self._report.close()
            if failure and not is_failing:  # The first error is the one to report.
                raise failure
        if not self.is_over:
            self.console.log(f"{decision.reason}: saved at step {self.done}.")
        return self.is_over

    def _advance(
        self, metrics: dict[str, np.ndarray], stop: StopRequest
    ) -> UserError | None:
        """Adds completed steps and evaluates; returns this worker's failure.

        All workers take part in an evaluation, or none: they decide before it. One that
        a stop prevents is left to the next start.
        """
        step = self.done + len(metrics["loss"])
        is_due = self.evaluate and step % self.config.eval_every_steps == 0
        failure = failure_of(lambda: self._add(metrics, is_due))
        if is_due and self.placement.workers.decide(failure, stop.reason()).reason:
            self.is_over = False  # at the last step, too
        elif is_due:
            failure = failure_of(self._evaluate)
        return failure

    def _add(self, metrics: dict[str, np.ndarray], is_evaluated: bool) -> None:
        """Checks and reports steps, and saves if that is due."""
        first, count = self.done + 1, len(metrics["loss"])
        self._check_finite(metrics)
        self._report.add(first, metrics)
        self.done += count
        try:
            if self.watch:
                self.watch(first, metrics)
        except UserError:
            self._save()
            self._saver.wait()
            raise
        if is_evaluated or self.done % self.config.save_checkpoints_steps == 0:
            self._save()
        if is_evaluated:
            self._saver.wait()
        self.is_over = self.done >= self.num_train_steps
        self._saver.check()

    def _evaluate(self) -> None:
        self.is_over |= self.evaluate(self.done)  # ty: ignore

    def _uninterrupted(self) -> int:
        """How many steps are left before the next save, evaluation or the end."""
        every = [self.config.save_checkpoints_steps]
        if self.evaluate:
            every.append(self.config.eval_every_steps)
        return min(
            self.num_train_steps - self.done, *(n - self.done % n for n in every)
        )

    def _save(self) -> None:
        """Starts to write a checkpoint, after syncing the metrics up to it."""
        if self.placement.is_chief:
            self._report.sync()
            self._saver.save(self.done, self.step.state.variables())

    def _check_finite(self, metrics: Mapping[str, np.ndarray]) -> None:
        """Raises `UserError` (70) if a step is not finite and may not be skipped.

        The optimizer already skipped such steps, so there is nothing to undo. With
        mixed_float16 an overflow of the gradients only lowers the loss scale. Metrics
        up to the failed step are reported.
        """
        harmless = metrics["finite"].astype(bool) | overflowed(metrics)
        for i, is_harmless in enumerate(harmless):
            self._skipped_in_a_row = 0 if is_harmless else self._skipped_in_a_row + 1
            if is_harmless:
                continue
            step, description = self.done + i + 1, _describe(metrics, i)
            skips = self.config.on_nonfinite == "skip"
            if skips and self._skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
                self.console.log(f"Step {step} left out: {description}.")
                continue
            reported = {name: column[: i + 1] for name, column in metrics.items()}
            self._report.add(self.done + 1, reported)
            raise self._diverged(step, description)

    def _diverged(self, step: int, description: str) -> UserError:
        self._saver.wait()
        checkpoints, count = self.checkpoints, self._skipped_in_a_row
        in_a_row = f" ({count} steps in a row)" if count > 1 else ""
        return UserError(
            f"diverged at step {step}{in_a_row}: {description}.\nThe last good "
            f"checkpoint is {checkpoints.prefix(checkpoints.last_saved_step)}.\n"
            "A lower learning_rate or more num_warmup_steps helps most often; "
            '"on_nonfinite": "skip" leaves such steps out.',
            EXIT_DIVERGED,
        )


def _describe(metrics: Mapping[str, np.ndarray], i: int) -> str:
    names = [name for name in metrics if name.endswith("loss")]
    names += ["global_norm", "learning_rate"]
    return ", ".join(f"{name} {metrics[name][i]:.4g}" for name in names)


class Pace:
    """How many steps to run inside the graph, so that a loop takes LOOP_SECONDS."""

    def __init__(self, limit: int):
        self._limit = limit
        self.seconds = LOOP_SECONDS  # of the last loop
        self.count = 1
        self._is_warm = False

    def adapt(self, count: int, seconds: float) -> None:
        """Adapts to a loop of `count` steps."""
        if self._is_warm:  # The first loop builds the graph.
            self.seconds = seconds
            wanted = int(LOOP_SECONDS * count / max(seconds, 1e-6))
            # Grow gradually: one fast loop may be an outlier.
            self.count = max(1, min(wanted, 4 * count, self._limit))
        self._is_warm = True
