# SPDX-License-Identifier: Apache-2.0
"""Which tokens replace the masked ones: inverse CDFs, and a schedule of temperatures.

Pure functions on tensors; the uniform numbers are drawn in the input pipeline.

A curriculum goes from easy to hard replacements, as a function of the step: the
generator's temperature falls to its final value (Fast-ELECTRA, Dong et al., ICLR
2024).

Shapes: B batch, N masked positions per sequence, V vocabulary.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.model import target
from electra_tf.model.dropout import mix

# Width of the blocks of the two-level inverse CDF: about sqrt(V), so that both levels
# stay small next to the one pass over the vocabulary that forms the weights.
SAMPLING_BLOCK = 256

# What is left of the start's excess over the end has fallen to exp(-10) at the end.
_DECAY_RATE = 10.0


def temperature_at(
    config: PretrainingConfig, first: int, step: int | tf.Tensor
) -> tf.Tensor:
    """The temperature of a step in a phase that begins at step `first`, a scalar."""
    progress = tf.cast(step - first, tf.float32) / config.num_train_steps
    progress = tf.clip_by_value(progress, 0.0, 1.0)
    start, end = config.temperature_start, config.temperature
    return end + (start - end) * tf.exp(-_DECAY_RATE * progress)


def sample_from_softmax(
    logits: tf.Tensor,
    uniform: tf.Tensor,
    *,
    temperature: float | tf.Tensor = 1.0,
    disallowed_ids: tf.Tensor | None = None,
) -> tf.Tensor:
    """Draws one id from softmax(logits / temperature) per uniform.

    Same distribution as the original's Gumbel noise, with one random number per draw
    instead of one per vocabulary entry: by inverse CDF, and on TPUs by the largest
    with `gumbel` added.

    Args:
      logits: float32 [..., V].
      uniform: float32 [...] in [0, 1).
      temperature: a number, or one for each of the first dimension, float32 [B, 1].
      disallowed_ids: int32 [...]; that id is not drawn (`disallow_correct`).

    Returns: int32 [...].
    """
    vocab_size = logits.shape[-1]
    rows = tf.reshape(tf.cast(logits, tf.float32), [-1, vocab_size])  # [M, V]
    if isinstance(temperature, tf.Tensor):
        rows /= tf.reshape(temperature + tf.zeros_like(uniform), [-1, 1])
    elif temperature != 1.0:
        rows = rows / temperature
    uniform_rows = tf.reshape(uniform, [-1])
    if target.is_for_tpu():
        if disallowed_ids is not None:
            flat = tf.reshape(disallowed_ids, [-1, 1])
            rows -= tf.where(tf.range(vocab_size) == flat, 1000.0, 0.0)
        rows += gumbel(uniform_rows, vocab_size)
        best = tf.argmax(rows, axis=-1, output_type=tf.int32)
        return tf.reshape(best, tf.shape(uniform))
    if disallowed_ids is not None:
        flat = tf.reshape(disallowed_ids, [-1])
        place = tf.stack([tf.range(tf.size(flat)), flat], axis=1)
        # -1000 rather than -inf, as in the original: if nothing else has weight, the
        # draw is still defined.
        rows = tf.tensor_scatter_nd_add(rows, place, tf.fill(tf.shape(flat), -1000.0))
    weights = tf.exp(rows - tf.reduce_max(rows, axis=-1, keepdims=True))
    return tf.reshape(_inverse_cdf(weights, uniform_rows), tf.shape(uniform))


def gumbel(uniform: tf.Tensor, vocab_size: int) -> tf.Tensor:
    """Gumbel noise for each token, by a uniform for all of them [M]: float32 [M, V].

    A hash of the uniform and the token, as dropout's. To draw by it is more arithmetic
    than to search a cumulative sum, but the scores are read once, as they lie: a TPU
    would copy them into another layout, blocks of the vocabulary beside each other.
    """
    seed = tf.bitcast(uniform, tf.uint32)[:, None]
    keys = [mix(seed, tf.constant(number, tf.uint32)) for number in (1, 2)]
    # An odd constant, 2**32 / golden ratio, keeps neighbours far apart.
    place = tf.range(vocab_size, dtype=tf.int32)
    place = tf.cast(place, tf.uint32) * tf.constant(0x9E3779B9, tf.uint32)
    bits = tf.cast(mix(place + keys[0], keys[1]), tf.float32)
    # Exponential, and exact where it is small: those are the ones that win.
    waiting = -tf.math.log1p((bits + 0.5) * -((1 - 2.0**-24) / 2**32))
    return -tf.math.log(waiting)


def sample_uniformly(
    uniform: tf.Tensor, vocab_size: int, *, disallowed_ids: tf.Tensor | None = None
) -> tf.Tensor:
    """Draws an id from 0..vocab_size - 1 uniformly, per uniform: int32 [...].

    `disallowed_ids` (int32 [...]): that id is not drawn.
    """
    choices = vocab_size - (disallowed_ids is not None)
    ids = tf.minimum(tf.cast(uniform * choices, tf.int32), choices - 1)
    if disallowed_ids is not None:
        ids += tf.cast(ids >= disallowed_ids, tf.int32)
    return ids


def sample_by_weight(
    weights: tf.Tensor, uniform: tf.Tensor, *, disallowed_ids: tf.Tensor | None = None
) -> tf.Tensor:
    """Draws an id in proportion to `weights` float32 [V] >= 0 per uniform: int32 [...].

    `disallowed_ids` (int32 [...]): that id is not drawn.
    """
    blocks = _blocks(weights[None])[0]  # [blocks, SAMPLING_BLOCK]
    sums = tf.reduce_sum(blocks, axis=-1)
    mass = tf.cumsum(sums)  # [blocks]
    target = tf.reshape(uniform, [-1])
    index = tf.range(SAMPLING_BLOCK)
    if disallowed_ids is None:
        target *= mass[-1]
        left_out = tf.fill([1], -1)
    else:
        # Blocks from the disallowed id's on end earlier by its weight.
        left_out = tf.reshape(disallowed_ids, [-1])
        gap = tf.gather(weights, left_out)
        end = tf.gather(mass, left_out // SAMPLING_BLOCK) - gap
        target *= mass[-1] - gap
        target += tf.where(target >= end, gap, 0.0)
    block = tf.searchsorted(mass, target, side="right", out_type=tf.int32)
    # Rounding may put the target at the very end.
    last = tf.reduce_max(tf.where(sums > 0, tf.range(tf.size(sums)), 0))
    block = tf.minimum(block, last)
    ids = block[:, None] * SAMPLING_BLOCK + index  # [M, SAMPLING_BLOCK]
    inside = tf.where(ids == left_out[:, None], 0.0, tf.gather(blocks, block))
    target -= tf.gather(mass - sums, block)
    found = _first_above(inside, tf.cumsum(inside, axis=-1), target[:, None])
    return tf.reshape(block * SAMPLING_BLOCK + found, tf.shape(uniform))


def _blocks(weights: tf.Tensor) -> tf.Tensor:
    """[M, V] as [M, blocks, SAMPLING_BLOCK], with zeros at the end."""
    vocab_size = weights.shape[-1]
    num_blocks = -(-vocab_size // SAMPLING_BLOCK)
    padding = num_blocks * SAMPLING_BLOCK - vocab_size
    padded = tf.pad(weights, [[0, 0], [0, padding]])
    return tf.reshape(padded, [-1, num_blocks, SAMPLING_BLOCK])


def _inverse_cdf(weights: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Index drawn in proportion to `weights` [M, V] >= 0 by each `uniform` [M]."""
    blocks = _blocks(weights)  # [M, blocks, SAMPLING_BLOCK]
    sums = tf.reduce_sum(blocks, axis=-1)  # [M, blocks]
    mass = tf.cumsum(sums, axis=-1)
    target = uniform[:, None] * mass[:, -1:]
    block = _first_above(sums, mass, target)  # [M]
    before = tf.gather(tf.pad(mass, [[0, 0], [1, 0]]), block, batch_dims=1)
    weights = tf.gather(blocks, block, batch_dims=1)  # [M, SAMPLING_BLOCK]
    target -= before[:, None]
    found = _first_above(weights, tf.cumsum(weights, axis=-1), target)
    return block * SAMPLING_BLOCK + found


def _first_above(
    weights: tf.Tensor, cumulative: tf.Tensor, target: tf.Tensor
) -> tf.Tensor:
    """First index of positive weight whose cumulative weight exceeds the target.

    `weights` and `cumulative` [M, n], `target` [M, 1]; int32 [M].  Rounding may put the
    target at or above the last value: then it is the last index of positive weight.  A
    compiled cumulative sum may fall by a rounding error: never an index of weight 0.
    """
    size = weights.shape[-1]
    index, possible = tf.range(size), weights > 0
    above = possible & (cumulative > target)
    first = tf.reduce_min(tf.where(above, index, size), axis=-1)
    last = tf.reduce_max(tf.where(possible, index, 0), axis=-1)
    return tf.minimum(first, last)
