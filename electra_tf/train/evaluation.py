# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a task over batches, once or repeatedly during training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

from electra_tf.console import Console, Progress
from electra_tf.errors import as_user_error
from electra_tf.train.distribution import Placement
from electra_tf.train.reporting import Journal, evaluation_metrics, read_sums
from electra_tf.train.step import Task
from electra_tf.train.supervisor import leave_at_once


class Evaluation:
    """Computes a task's metrics over global batches, in a graph that is built once."""

    def __init__(self, task: Task, placement: Placement):
        self._task, self._placement = task, placement
        self._step = tf.function(self._batch_sums, autograph=False)

    def _batch_sums(self, iterator):
        strategy = self._placement.strategy
        sums = strategy.run(self._replica_sums, args=(next(iterator),))
        return {k: strategy.experimental_local_results(v)[0] for k, v in sums.items()}

    def _replica_sums(self, batch):
        weights = self._sum_over_replicas(self._task.divisors(batch))
        _, sums = self._task.loss(batch, None, weights)
        names = sorted(read_sums(self._task.metrics, "evaluation"))
        return self._sum_over_replicas({name: sums[name] for name in names})

    def _sum_over_replicas(self, values):
        if self._placement.num_replicas == 1:
            return values
        return tf.distribute.get_replica_context().all_reduce("SUM", values)

    def __call__(
        self, batches: Iterator, num_steps: int, batch_size: int, console: Console
    ) -> dict[str, float]:
        """Returns the metrics over `num_steps` global batches."""
        progress = Progress(console, num_steps, 0, batch_size, max(1, num_steps // 10))
        totals: dict[str, np.ndarray] = {}
        try:
            for number in range(1, num_steps + 1):
                with self._placement.workers.cluster.patience():
                    sums = self._step(batches)
                for name, value in sums.items():
                    value = value.numpy().astype(np.float64)
                    totals[name] = totals.get(name, 0.0) + value
                progress.update(number, {})
        except tf.errors.OpError as error:
            raise as_user_error(error) or error from error
        finally:
            progress.close()
        return evaluation_metrics(self._task.metrics, totals)


@dataclasses.dataclass
class PeriodicEvaluation:
    """Evaluates the weights during training, at some steps.

    Writes them to evaluations.jsonl and TensorBoard.

    Args:
      evaluation: of the task.
      batches: makes an iterator over the same batches each time.
      size: number of batches, sequences per batch.
      console: where the metrics are shown.
      journal: of the run.
    """

    evaluation: Evaluation
    batches: Callable[[], Iterator]
    size: tuple[int, int]
    console: Console
    journal: Journal

    def __call__(self, step: int) -> bool:
        """Evaluates the weights of this step; False, so that training continues."""
        with leave_at_once():  # The weights are saved; the next start evaluates them.
            metrics = self.evaluation(self.batches(), *self.size, Console(silent=True))
        shown = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.console.log(f"Evaluation at step {step:,}: {shown}")
        self.journal.add([{"step": step} | metrics])
        self.journal.sync()
        return False
