# SPDX-License-Identifier: Apache-2.0
"""What happens when a loss or a gradient is not finite."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from electra_tf.console import Console
from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.storage.checkpoints import BackgroundSaver
from electra_tf.storage.files import atomic_write
from electra_tf.train.distribution import Placement
from electra_tf.train.metrics import overflowed
from electra_tf.train.reporting import Report

# With on_nonfinite "skip": the run ends when this many steps in a row are left out.
MAX_SKIPPED_IN_A_ROW = 20


class NonfiniteGuard:
    """Decides what a loss or gradient that is not finite means, and keeps the batch.

    Such a step never changes weights (the optimizer leaves it out), so there is nothing
    to undo. Under mixed_float16 a gradient that overflows only lowers the loss scale.
    """

    def __init__(
        self,
        policy: str,
        saver: BackgroundSaver,
        console: Console,
        make_batches: Callable[[int], Iterator],
        placement: Placement,
    ):
        self._policy = policy
        self._saver = saver
        self._console = console
        self._make_batches = make_batches
        self._strategy = placement.strategy
        self._is_chief = placement.is_chief
        self._in_a_row = 0

    def check(
        self, done: int, metrics: Mapping[str, np.ndarray], report: Report
    ) -> None:
        """Looks at the steps after `done`; raises `UserError` (70) if one must stop.

        The metrics up to the failed step are reported before.
        """
        harmless = metrics["finite"].astype(bool) | overflowed(metrics)
        for i in range(len(harmless)):
            if harmless[i]:
                self._in_a_row = 0
                continue
            self._in_a_row += 1
            number = done + i + 1
            too_many = self._in_a_row >= MAX_SKIPPED_IN_A_ROW
            if self._policy == "skip" and not too_many:
                self._console.log(f"Step {number} left out: {_describe(metrics, i)}.")
                continue
            # The others are asked for their part before anything can fail here.
            batch = self._global_batch(number)
            report.add(done + 1, {k: v[: i + 1] for k, v in metrics.items()})
            raise self._diverged(number, _describe(metrics, i), batch)

    def _diverged(
        self, number: int, what: str, batch: Mapping[str, np.ndarray]
    ) -> UserError:
        self._saver.wait()
        checkpoints = self._saver.checkpoints
        path = checkpoints.directory / f"nonfinite_step_{number}.npz"
        if self._is_chief:
            content = io.BytesIO()
            np.savez_compressed(content, **batch)
            atomic_write(path, content.getvalue())
        kept = checkpoints.last_saved_step
        row = f" ({self._in_a_row} steps in a row)" if self._in_a_row > 1 else ""
        return UserError(
            f"diverged at step {number}{row}: {what}. Its batch is in {path}.\n"
            f"The last good checkpoint is {checkpoints.prefix(kept)}.\n"
            "A lower learning_rate or more num_warmup_steps helps most often; "
            '"on_nonfinite": "skip" leaves such steps out.',
            EXIT_DIVERGED,
        )

    def _global_batch(self, number: int) -> dict[str, np.ndarray]:
        """The batch of a step, the parts of all replicas in order."""
        batch = next(self._make_batches(number - 1))
        return {k: self._strategy.gather(v, 0).numpy() for k, v in batch.items()}


def _describe(metrics: Mapping[str, np.ndarray], i: int) -> str:
    names = ("loss", "masked_lm_loss", "disc_loss", "global_norm")
    found = [f"{n} {metrics[n][i]:.4g}" for n in names if n in metrics]
    return ", ".join(found) + f", learning_rate {metrics['learning_rate'][i]:.3g}"
