# SPDX-License-Identifier: Apache-2.0
"""One optimizer step on the global batch, a loop of them in one graph; evaluation.

A step is a pure function of (weights, batch, step number). Losses are divided by the
weights of the global batch; gradients are summed over microbatches and replicas, then
clipped, then applied; dropout is keyed by (seed, step, replica, microbatch). Apart from
dropout, the numbers of replicas and microbatches change a step only by rounding. Over
many steps rounding errors add up, and runs diverge once one changes a sampled token.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from electra_tf.console import Console, Progress
from electra_tf.errors import as_user_error
from electra_tf.model import target
from electra_tf.model.dropout import fold_in
from electra_tf.train.distribution import Placement
from electra_tf.train.reporting import (
    Metric,
    evaluation_metrics,
    read_sums,
    step_metrics,
)

INITIAL_LOSS_SCALE = 2.0**15
# Steps without overflow after which the loss scale is doubled.
LOSS_SCALE_GROWTH_STEPS = 2000

Batch = dict[str, tf.Tensor]


@dataclasses.dataclass
class Task:
    """What a loop trains and evaluates: a model, its loss and its metrics.

    Attributes:
      loss: from a batch, the seed of its dropout (None: none) and the divisors of the
        global batch: the loss, a scalar, and sums by name; both add up over parts of a
        global batch.
      divisors: a batch's share of what the losses are divided by, a nest of scalars.
      metrics: of steps and evaluations, from the sums.
    """

    model: keras.Model
    loss: Callable[
        [Batch, tf.Tensor | None, Any], tuple[tf.Tensor, dict[str, tf.Tensor]]
    ]
    divisors: Callable[[Batch], Any]
    metrics: Sequence[Metric]


class TrainState:
    """Everything that a step changes and a checkpoint contains.

    Create it in the strategy's scope: it builds the optimizer's slots.
    """

    def __init__(self, model: keras.Model, optimizer: keras.optimizers.Optimizer):
        self.model = model
        self.optimizer = optimizer
        optimizer.build(model.trainable_variables)
        self.loss_scale = tf.Variable(
            INITIAL_LOSS_SCALE, trainable=False, name="loss_scale"
        )
        self.good_steps = tf.Variable(
            0, dtype=tf.int64, trainable=False, name="loss_scale/good_steps"
        )

    def weights(self) -> dict[str, tf.Variable]:
        """The model's variables by the original's names."""
        return {v.path: v.value for v in self.model.variables}

    def variables(self) -> dict[str, tf.Variable]:
        """All variables by their names in a checkpoint."""
        named = self.weights()
        trained = self.model.trainable_variables
        for slot in ("adam_m", "adam_v"):
            slots = getattr(self.optimizer, slot)
            for variable, value in zip(trained, slots, strict=True):
                named[f"{variable.path}/{slot}"] = value.value
        named["global_step"] = self.optimizer.iterations.value
        named["loss_scale"] = self.loss_scale
        named["loss_scale/good_steps"] = self.good_steps
        return named

    @property
    def step(self) -> int:
        """The number of completed steps."""
        return int(self.optimizer.iterations.numpy())


@dataclasses.dataclass(eq=False)
class TrainingStep:
    """Runs training steps under a strategy.

    Args:
      task: model, losses and metrics.
      state: its variables.
      placement: strategy and jit. XLA compiles the whole step on one replica, and the
        forward and backward pass of each on several.
      seed: of the dropout.
      accumulation: number of microbatches of each replica's batch.
      variables: the trained variables, by default all trainable ones. The others are
        frozen: no gradient, no decay, and their slots stay.
    """

    task: Task
    state: TrainState
    placement: Placement
    seed: int
    accumulation: int = 1
    variables: Sequence[keras.Variable] | None = None

    def __post_init__(self):
        task, placement = self.task, self.placement
        self._variables = list(self.variables or task.model.trainable_variables)
        self.strategy = placement.strategy
        self._has_replicas = placement.num_replicas > 1
        # float16 has no gradients below 6e-8, so the loss is scaled up.
        self._scales_loss = task.model.compute_dtype == "float16"
        self._sum_names = ["loss", *sorted(read_sums(task.metrics, "training"))]
        self._step = self.replica_step
        self._pass = self._gradients
        self._graphs = contextlib.nullcontext
        self._is_warm = False  # after the first step
        if placement.jit_compile and self._has_replicas:
            self._pass = _compiled(self._gradients)
        elif placement.jit_compile:
            self._step = _compiled(self.replica_step)
        if (placement.jit_compile and not self._has_replicas) or placement.is_one_cpu:
            self._graphs = _without_grappler

    def run(
        self, iterator: Iterator[Batch], start: int, count: int
    ) -> dict[str, np.ndarray]:
        """Makes steps `start` ... `start + count - 1`, with a batch for each.

        Returns: metric name -> float64 [count]: the task's metrics, loss,
          learning_rate, global_norm (before clipping), loss_scale (mixed_float16),
          finite (0.0 for a skipped step).
        """
        with self._graphs():
            rows, scale, good = self._loop(
                iterator,
                tf.constant(start, tf.int64),
                tf.constant(count, tf.int64),
                self.state.loss_scale.read_value(),
                self.state.good_steps.read_value(),
            )
        if not self._is_warm:
            _release_memory()
            self._is_warm = True
        self.state.loss_scale.assign(scale)
        self.state.good_steps.assign(good)
        return step_metrics(rows.numpy(), self.columns, self.task.metrics)

    @property
    def columns(self) -> list[str]:
        """Names of a step's numbers; see `step_metrics`."""
        names = [*self._sum_names, "learning_rate", "global_norm", "loss_scale"]
        return names if self._scales_loss else names[:-1]

    # AutoGraph would take a second, for nothing.
    @tf.function(autograph=False)
    def _loop(self, iterator, start, count, scale, good):
        def add(i, rows, scale, good):
            batch = next(iterator)
            row = self.strategy.run(self._step, args=(batch, start + i, scale))
            row = self.strategy.experimental_local_results(row)[0]
            rows = rows.write(tf.cast(i, tf.int32), row)
            if self._scales_loss:
                scale, good = _next_loss_scale(scale, good, norm=row[-2])
            return i + 1, rows, scale, good

        rows = tf.TensorArray(tf.float32, tf.cast(count, tf.int32))
        state = tf.zeros([], count.dtype), rows, scale, good
        _, rows, scale, good = tf.while_loop(lambda i, *_: i < count, add, state)
        return rows.stack(), scale, good

    def replica_step(
        self, batch: Batch, step: tf.Tensor, scale: tf.Tensor
    ) -> tf.Tensor:
        """One replica's part of a step; returns `columns` [S] of the global batch."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        key = tf.stack([tf.constant(self.seed, tf.int32), tf.cast(step, tf.int32)])
        seed = fold_in(key, replica)
        weights = self.placement.sum_of_replicas(self.task.divisors(batch))
        gradients, sums = self._pass(batch, seed, weights, scale)
        optimizer = self.state.optimizer
        rate = tf.convert_to_tensor(optimizer.learning_rate)
        optimizer.apply(gradients, self._variables)
        last = tf.stack([rate, optimizer.global_norm, scale])
        return tf.concat([self.placement.sum_of_replicas(sums), last], 0)

    def _gradients(self, batch, seed, weights, scale):
        """Gradients of this replica's batch and its metric sums [S], loss first."""
        if self.accumulation == 1:
            gradients, sums = self._microbatch(batch, fold_in(seed, 0), weights, scale)
        else:
            gradients, sums = self._accumulate(batch, seed, weights, scale)
        if self._scales_loss:
            gradients = [g / scale for g in gradients]
        # The optimizer skips the update if the norm is not finite. It must also do so
        # if only the loss is not finite.
        gate = tf.where(tf.math.is_finite(sums[0]), 1.0, np.nan)
        smallest = int(np.argmin([math.prod(v.shape) for v in self._variables]))
        gradients[smallest] *= gate
        return gradients, sums

    def _parts(self, tensor: tf.Tensor) -> tf.Tensor:
        """Reshapes [B, ...] to [accumulation, B / accumulation, ...]."""
        sizes = tf.shape(tensor)
        static = enumerate(tensor.shape[1:], start=1)
        rest = [sizes[i] if size is None else size for i, size in static]
        return tf.reshape(tensor, [self.accumulation, -1, *rest])

    def _accumulate(self, batch, seed, weights, scale):
        parts = {name: self._parts(t) for name, t in batch.items()}

        def add(i, gradients, sums):
            part = {name: t[i] for name, t in parts.items()}
            more, more_sums = self._microbatch(part, fold_in(seed, i), weights, scale)
            gradients = [a + b for a, b in zip(gradients, more, strict=True)]
            return i + 1, gradients, sums + more_sums

        variables = self._variables
        _, gradients, sums = tf.while_loop(
            lambda i, *_: i < self.accumulation,
            add,
            (0, [tf.zeros(v.shape) for v in variables], tf.zeros(len(self._sum_names))),
            maximum_iterations=self.accumulation,
        )
        return gradients, sums

    def _microbatch(self, batch, seed, weights, scale):
        variables = self._variables
        with tf.GradientTape() as tape:
            loss, sums = self.task.loss(batch, seed, weights)
            scaled = loss * scale if self._scales_loss else loss
        gradients = tape.gradient(scaled, [v.value for v in variables])
        for variable, gradient in zip(variables, gradients, strict=True):
            if gradient is None:
                raise ValueError(f"the loss does not depend on {variable.path}")
        # Gradients of embeddings are sparse; this sums the rows of the same token.
        gradients = [tf.convert_to_tensor(g) for g in gradients]
        values = [loss, *(sums[name] for name in self._sum_names[1:])]
        return gradients, tf.stack([tf.cast(v, tf.float32) for v in values])


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
        weights = self._placement.sum_of_replicas(self._task.divisors(batch))
        _, sums = self._task.loss(batch, None, weights)
        names = sorted(read_sums(self._task.metrics, "evaluation"))
        return self._placement.sum_of_replicas({name: sums[name] for name in names})

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


def _compiled(function: Callable) -> Callable:
    """The function, compiled by XLA as a whole."""

    @tf.function(jit_compile=True, autograph=False)
    def traced(*args):
        with target.compiled():
            return function(*args)

    return traced


def _release_memory() -> None:
    """Returns memory of tracing and compiling to the system; glibc would keep it."""
    with contextlib.suppress(OSError, TypeError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _without_grappler() -> Iterator[None]:
    """Disables Grappler, which delays the first step and makes none faster.

    XLA has its own passes. On a CPU without XLA, steps of ELECTRA-Small take as long,
    and the first one half as long. Several replicas need it to merge collectives.
    """
    name = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(name, False)
    tf.config.optimizer.set_experimental_options({name: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({name: before})


def _next_loss_scale(scale, good, norm):
    """Halves the scale after an overflow, doubles it after many steps without one."""
    finite = tf.math.is_finite(norm)
    good = tf.where(finite, good + 1, 0)
    grow = good >= LOSS_SCALE_GROWTH_STEPS
    scale = tf.where(grow, scale * 2, scale)
    scale = tf.where(finite, scale, tf.maximum(scale / 2, 1.0))
    return scale, tf.where(grow, tf.zeros_like(good), good)
