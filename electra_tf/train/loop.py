# SPDX-License-Identifier: Apache-2.0
"""The one training loop: steps, reports, checkpoints, and an end that loses nothing.

Re-running a command continues its run: the step number comes from the checkpoint, and
batch k, its masking and the dropout of step k are functions of (seed, k), so there is
no other position to restore.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.console import Console
from electra_tf.errors import EXIT_DIVERGED, UserError, as_user_error
from electra_tf.storage.checkpoints import BackgroundSaver, Checkpoints
from electra_tf.storage.files import atomic_write
from electra_tf.train.distribution import Placement, Workers
from electra_tf.train.reporting import Report, overflowed
from electra_tf.train.step import TrainingStep
from electra_tf.train.supervisor import StopRequest

# How long the loop stays inside the graph: as long as a signal waits for its answer.
LOOP_SECONDS = 0.5
# With on_nonfinite "skip": the run ends when this many steps in a row are left out.
MAX_SKIPPED_IN_A_ROW = 20


def train(
    step: TrainingStep,
    make_batches: Callable[[int], Iterator],
    checkpoints: Checkpoints,
    console: Console,
    *,
    placement: Placement,
    num_train_steps: int,
    batch_size: int,
    iterations_per_loop: int,
    save_checkpoints_steps: int,
    log_steps: int,
    on_nonfinite: str = "stop",
    stop: StopRequest | None = None,
    constants: Mapping[str, float] | None = None,
    pauses: Sequence[Pause] = (),
    watch: Callable[[int, Mapping[str, np.ndarray]], None] | None = None,
) -> bool:
    """Trains from the state's step up to `num_train_steps`.

    Args:
      make_batches: step -> iterator whose first batch is that of `step`.
      stop: what may end the run early, entered by the caller; by default nothing.
      constants: numbers that go into every row of the metrics.
      pauses: what happens between steps, and may end the training.
      watch: gets a step and the metrics from there on; a `UserError` of it ends all.

    Returns: whether the end was reached; False after a stop, with the state saved.

    Raises `UserError`: 70 (loss not finite), 65 (damaged data), 73 (cannot write).
    """
    report = Report(
        checkpoints.directory,
        console,
        start=step.state.step,
        total=num_train_steps,
        batch_size=batch_size,
        every=log_steps,
        metrics=step.task.metrics,
        is_chief=placement.is_chief,
    )
    saver = BackgroundSaver(checkpoints)
    guard = _NonfiniteGuard(on_nonfinite, saver, console, make_batches, placement)
    plan = num_train_steps, save_checkpoints_steps, pauses, watch
    loop = _Loop(step, placement, saver, report, guard, *plan)
    pace, workers = Pace(iterations_per_loop), placement.workers
    stop = stop or StopRequest()
    try:
        failure = failure_of(loop.save, saver.wait)  # Does the disk take it at all?
        decision = workers.decide(failure, stop.reason(), pace.count)
        batches = make_batches(loop.done)
        while not loop.is_over and not decision.reason:
            count = min(decision.count, loop.uninterrupted())
            with pace.measure(count), workers.cluster.patience():
                metrics = step.run(batches, loop.done, count)
            failure = loop.go_on(metrics, constants or {}, workers)
            seconds = pace.seconds + saver.seconds
            reason = stop.reason(2 * max(seconds, decision.seconds))
            decision = workers.decide(failure, reason, pace.count, seconds)
        workers.decide(failure_of(loop.save, saver.wait))  # for all to wait
        workers.acknowledge()
    except tf.errors.OpError as error:
        raise as_user_error(error) or error from error
    finally:
        is_failing = sys.exc_info()[1] is not None
        failure = failure_of(saver.wait)
        report.close()
        if failure and not is_failing:  # the first error counts
            raise failure
    if not loop.is_over:
        console.log(f"{decision.reason}: saved at step {loop.done}.")
    return loop.is_over


class Pause(NamedTuple):
    """A pause of the training every `every` steps.

    `call` gets the step; True ends the training there, None says that a stop has left
    it to the next start. `is_saved`: the state is saved before.
    """

    every: int
    call: Callable[[int], bool | None]
    is_saved: bool = True


def failure_of(*actions: Callable[[], object]) -> UserError | None:
    """Does what a worker does by itself; what it fails with concerns all of them."""
    try:
        for action in actions:
            action()
    except UserError as error:
        return error
    return None


@dataclasses.dataclass
class _Loop:
    """Steps with what belongs to them, as far as they are `done`."""

    step: TrainingStep
    placement: Placement
    saver: BackgroundSaver
    report: Report
    guard: _NonfiniteGuard
    total: int
    save_every: int
    pauses: Sequence[Pause]
    watch: Callable[[int, Mapping[str, np.ndarray]], None] | None

    def __post_init__(self):
        self.done = self.step.state.step
        # The last step is made, or a pause has ended the training.
        self.is_over = self.done >= self.total

    def go_on(self, metrics, constants, workers: Workers) -> UserError | None:
        """Adds steps and pauses if that is due; returns what this worker failed with.

        All workers take part in a pause, or none: they decide before it.
        """
        due = self._due(self.done + len(metrics["loss"]))
        failure = failure_of(partial(self.add, metrics, constants))
        if not due:
            return failure
        workers.decide(failure)
        return failure_of(self.pause)

    def add(
        self, metrics: dict[str, np.ndarray], constants: Mapping[str, float]
    ) -> None:
        """Checks and reports more steps, and saves them if that is due."""
        count = len(metrics["loss"])
        metrics |= {name: np.full(count, value) for name, value in constants.items()}
        self.guard.check(self.done, metrics, self.report)
        self.report.add(self.done + 1, metrics)
        self.done += count
        try:
            if self.watch:
                self.watch(self.done - count + 1, metrics)
        except UserError:
            self.save()
            self.saver.wait()
            raise
        waits = any(pause.is_saved for pause in self._due(self.done))
        if waits or self.done % self.save_every == 0:
            self.save()
        if waits:
            self.saver.wait()
        self.is_over = self.done >= self.total
        self.saver.check()

    def pause(self) -> None:
        """Does what is due at this step; the state is saved where it asks for that."""
        ends = [pause.call(self.done) for pause in self._due(self.done)]
        # What is left to the next start is a part of the run, at its last step, too.
        self.is_over = None not in ends and (self.is_over or any(ends))

    def _due(self, step: int) -> list[Pause]:
        return [pause for pause in self.pauses if step % pause.every == 0]

    def uninterrupted(self) -> int:
        """How many steps come before the next save or pause, or the end."""
        every = [self.save_every, *(pause.every for pause in self.pauses)]
        return min(self.total - self.done, *(n - self.done % n for n in every))

    def save(self) -> None:
        """Begins to write a checkpoint, after the metrics up to it."""
        if self.placement.is_chief:
            self.report.sync()
            self.saver.save(self.done, self.step.state.variables())


class Pace:
    """How many steps to run inside the graph, so that a loop takes LOOP_SECONDS."""

    def __init__(self, limit: int):
        self._limit = limit
        self.seconds = LOOP_SECONDS  # that the last loop took
        self.count = 1
        self._is_warm = False

    @contextlib.contextmanager
    def measure(self, count: int) -> Iterator[None]:
        """Context manager around a loop of `count` steps."""
        since = time.monotonic()
        yield
        if self._is_warm:  # The first loop builds the graph.
            self.seconds = time.monotonic() - since
            wanted = int(LOOP_SECONDS * count / max(self.seconds, 1e-6))
            # Never from one to hundreds at once: one fast loop may be chance.
            self.count = max(1, min(wanted, 4 * count, self._limit))
        self._is_warm = True


@dataclasses.dataclass
class _NonfiniteGuard:
    """Decides what a loss or gradient that is not finite means, and keeps the batch.

    Such a step never changes weights (the optimizer leaves it out), so there is nothing
    to undo. Under mixed_float16 a gradient that overflows only lowers the loss scale.
    """

    policy: str
    saver: BackgroundSaver
    console: Console
    make_batches: Callable[[int], Iterator]
    placement: Placement
    in_a_row: int = 0

    def check(
        self, done: int, metrics: Mapping[str, np.ndarray], report: Report
    ) -> None:
        """Looks at the steps after `done`; raises `UserError` (70) if one must stop.

        The metrics up to the failed step are reported before.
        """
        harmless = metrics["finite"].astype(bool) | overflowed(metrics)
        for i in range(len(harmless)):
            if harmless[i]:
                self.in_a_row = 0
                continue
            self.in_a_row += 1
            number = done + i + 1
            too_many = self.in_a_row >= MAX_SKIPPED_IN_A_ROW
            if self.policy == "skip" and not too_many:
                self.console.log(f"Step {number} left out: {_describe(metrics, i)}.")
                continue
            # The others are asked for their part before anything can fail here.
            batch = self._global_batch(number)
            report.add(done + 1, {k: v[: i + 1] for k, v in metrics.items()})
            raise self._diverged(number, _describe(metrics, i), batch)

    def _diverged(
        self, number: int, what: str, batch: Mapping[str, np.ndarray]
    ) -> UserError:
        self.saver.wait()
        checkpoints = self.saver.checkpoints
        path = checkpoints.directory / f"nonfinite_step_{number}.npz"
        if self.placement.is_chief:
            content = io.BytesIO()
            np.savez_compressed(content, **batch)
            atomic_write(path, content.getvalue())
        kept = checkpoints.last_saved_step
        row = f" ({self.in_a_row} steps in a row)" if self.in_a_row > 1 else ""
        return UserError(
            f"diverged at step {number}{row}: {what}. Its batch is in {path}.\n"
            f"The last good checkpoint is {checkpoints.prefix(kept)}.\n"
            "A lower learning_rate or more num_warmup_steps helps most often; "
            '"on_nonfinite": "skip" leaves such steps out.',
            EXIT_DIVERGED,
        )

    def _global_batch(self, number: int) -> dict[str, np.ndarray]:
        """The batch of a step, the parts of all replicas in order."""
        batch = next(self.make_batches(number - 1))
        gather = self.placement.strategy.gather
        return {k: gather(v, 0).numpy() for k, v in batch.items()}


def _describe(metrics: Mapping[str, np.ndarray], i: int) -> str:
    names = ("loss", "masked_lm_loss", "disc_loss", "global_norm")
    found = [f"{n} {metrics[n][i]:.4g}" for n in names if n in metrics]
    return ", ".join(found) + f", learning_rate {metrics['learning_rate'][i]:.3g}"
