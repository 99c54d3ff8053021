# SPDX-License-Identifier: Apache-2.0
"""Features -> batches, each padded to the shortest length that holds it -> outputs.

As in pre-training, batch k is a function of (seed, k): a resumed run reads the same
batches. Which examples form a batch does not depend on the
lengths, and padding changes no output; but XLA compiles the step anew for each length,
so a run under XLA gets two at most. On a CPU without XLA, a batch is computed in parts
of similar lengths, each cut to its own longest example.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.data.batch_order import batch_indices
from electra_tf.errors import as_user_error
from electra_tf.finetune.model import SHARED, FinetuningModel
from electra_tf.finetune.preprocessing import FeatureStore
from electra_tf.finetune.task import Task

_ENDLESS = 1 << 62
# Lengths are multiples of this: products of odd sizes are slow.
_MULTIPLE = 8
# Without XLA any number of lengths is free; finer steps gain little.
_STEP = 16
# With XLA a second length pays from this many steps and this gain on.
_MIN_STEPS = 200
_MIN_GAIN = 0.1
# Batches that the second length, or the number of parts, is chosen by.
_SAMPLE = 2000
# Overhead of a part, in tokens (ELECTRA-Small on two cores).
_PART_COST = 128
# Examples that an evaluation sorts by length at a time.
_WINDOW = 1024


def make_dataset(
    store: FeatureStore,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    num_replicas: int = 1,
    length_buckets: tuple[int, ...] = (),
    by_length: bool = False,
) -> tf.data.Dataset:
    """Batches of a store without an end; batch k is a function of (seed, k).

    Args:
      batch_size: of all replicas together.
      length_buckets: a batch is cut to the first of these that its examples fit in.
      by_length: whether a batch has its shortest examples first.
    """
    lengths = length_buckets or store["input_ids"].shape[-1:]
    shapes = _shapes(store, batch_size, lengths[0] if len(lengths) == 1 else None)

    def load(step):
        index = batch_indices(int(step), batch_size, len(store), seed)
        index = store.sorted_by_length(index) if by_length else index
        return [*_batch(store, index, batch_size, lengths).values()]

    @tf.autograph.experimental.do_not_convert  # which would take half a second
    def batch(step):
        types = [array.dtype for array in store.values()]
        arrays = tf.numpy_function(load, [step], types)
        arrays = map(tf.ensure_shape, arrays, shapes.values())
        return dict(zip(store, arrays, strict=True))

    dataset = tf.data.Dataset.range(start_step, _ENDLESS)
    dataset = dataset.map(batch, num_parallel_calls=2, deterministic=True)
    if num_replicas > 1:
        dataset = dataset.unbatch().batch(batch_size // num_replicas, True)
    return dataset.prefetch(4)


def _shapes(store: FeatureStore, size: int, length: int | None) -> dict[str, list]:
    """The shapes of a batch of features."""
    shapes = {name: [size, *array.shape[1:]] for name, array in store.items()}
    return shapes | {name: [*shapes[name][:-1], length] for name in SHARED}


def _batch(
    store: FeatureStore, index: np.ndarray, size: int, lengths: Sequence[int]
) -> dict[str, np.ndarray]:
    """Examples of a store, cut to the first of the lengths that they fit in.

    A batch is filled up with examples whose task_id is the number of tasks.
    """
    real = np.arange(size) < len(index)
    index = np.resize(index, size)
    longest = store.lengths[index].max()
    length = next(n for n in lengths if n >= longest)
    found = {}
    for name, array in store.items():
        rows = array[index][..., :length] if name in SHARED else array[index]
        fill = store.num_tasks if name == "task_id" else 0
        is_real = real.reshape(-1, *[1] * (rows.ndim - 1))
        found[name] = np.where(is_real, rows, fill).astype(array.dtype)
    return found


def training_buckets(
    config, lengths: np.ndarray, *, steps: int, seed: int, is_compiled: bool
) -> tuple[int, ...]:
    """The lengths for a training run of `steps` batches.

    Args:
      lengths: int [n], tokens of each example.
    """
    if config.length_buckets is not None or not is_compiled:
        return evaluation_buckets(config, lengths)
    longest = _rounded(int(lengths.max()), config)
    if config.gradient_accumulation_steps > 1:
        return (longest,)  # its parts are cut from batches of one known length
    size, n = config.train_batch_size, len(lengths)
    first = (batch_indices(k, size, n, seed) for k in range(min(steps, _SAMPLE)))
    maxima = np.array([lengths[batch].max() for batch in first])
    candidates = range(_rounded(1, config), longest, _MULTIPLE)
    costs = {c: np.where(maxima <= c, c, longest).mean() for c in candidates}
    if costs and steps >= _MIN_STEPS:
        best = min(costs, key=costs.get)
        if costs[best] < (1 - _MIN_GAIN) * longest:
            return (best, longest)
    return (longest,)


def evaluation_buckets(config, lengths: np.ndarray) -> tuple[int, ...]:
    """The lengths that the user chose and max_seq_length, else all multiples."""
    longest, given = config.max_seq_length, config.length_buckets
    if given is not None:
        return (*sorted({n for n in given if n < longest}), longest)
    longest = _rounded(int(lengths.max()), config)
    return (*range(_rounded(_STEP, config), longest, _STEP), longest)


def _rounded(length: int, config: FinetuningConfig) -> int:
    """Up to a multiple; long enough for the beam of question answering."""
    length = max(length, min(config.beam_size, config.max_seq_length))
    return min(math.ceil(length / _MULTIPLE) * _MULTIPLE, config.max_seq_length)


def num_parts(config: FinetuningConfig, lengths: np.ndarray, *, seed: int) -> int:
    """The parts of a batch, for a training run without XLA on one CPU.

    One, two or four times `gradient_accumulation_steps`, by the tokens to compute.
    Dropout aside, they change a step by rounding only.
    """
    size, given = config.train_batch_size, config.gradient_accumulation_steps
    count = min(_SAMPLE, -(-len(lengths) // size))
    index = np.array([batch_indices(k, size, len(lengths), seed) for k in range(count)])
    found = np.sort(lengths[index], axis=1)
    costs = {}
    for parts in (given, 2 * given, 4 * given):
        if size % parts == 0:
            longest = found.reshape(count, parts, -1)[..., -1]
            costs[parts] = parts * _PART_COST + longest.sum() * size / parts / count
    return min(costs, key=costs.get)


def head_outputs(
    model: FinetuningModel,
    task: Task,
    store: FeatureStore,
    on_batch: Callable[[int], None] = lambda done: None,
) -> Iterator[dict[str, Any]]:
    """The outputs of a task's head, and its answers, for each example, in order.

    The head and the encoder below it work on one device. Examples of similar lengths
    are computed together.

    Args:
      on_batch: gets the number of batches that are computed, after each.
    """
    config, size = task.config, task.config.eval_batch_size
    lengths = evaluation_buckets(config, store.lengths)
    shapes = _shapes(store, size, None).items()
    specs = {name: tf.TensorSpec(shape, store[name].dtype) for name, shape in shapes}
    outputs = model.traced(task, specs)

    def compute(index):
        batch = _batch(store, index, size, lengths)
        found = outputs({name: tf.constant(array) for name, array in batch.items()})
        return {name: tensor.numpy() for name, tensor in found.items()}

    window, done = max(1, _WINDOW // size) * size, 0
    # Operations on short texts are too small for several cores.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(store), window):
            places = np.arange(start, min(start + window, len(store)))
            places, rows = store.sorted_by_length(places), {}
            parts = [places[k : k + size] for k in range(0, len(places), size)]
            try:
                # After a failure `map` cancels the rest.
                for index, found in zip(parts, pool.map(compute, parts), strict=True):
                    for n, place in enumerate(index):
                        rows[place] = {name: array[n] for name, array in found.items()}
                    done += 1
                    on_batch(done)
            except tf.errors.OpError as error:
                raise as_user_error(error) or error from error
            yield from (rows[place] for place in sorted(rows))
