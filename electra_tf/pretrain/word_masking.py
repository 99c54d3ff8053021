# SPDX-License-Identifier: Apache-2.0
"""Whole-word masking: all tokens of a word are drawn, or none.

A word is a token and the "##" tokens that follow it. Words are drawn in random order;
one that would make more masked tokens than are wanted is passed over, as in BERT, so
that their number is what it is without words. A word of more tokens than are wanted
could never be drawn: its tokens are words by themselves.

Shapes: B batch, L length, N masked positions per sequence.
"""

from __future__ import annotations

import tensorflow as tf

# Words are taken until one does not fit, this many times. In text nothing is left open
# then (after two times 1 % of the slots, where most tokens are parts of words).
_ROUNDS = 4


def draw_words(
    candidates: tf.Tensor,
    continues: tf.Tensor,
    wanted: tf.Tensor,
    uniform: tf.Tensor,
    slots: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws words of together `wanted` [B] tokens, or hardly less.

    Args:
      candidates: bool [B, L], the tokens that may be masked.
      continues: bool [B, L], the tokens that belong to the word before them.
      uniform: float32 [B, L], decides the order of a row's words.

    Returns: distinct positions int32 [B, slots] in the order of the text, 0 where a
      slot is not in use, and which are, bool [B, slots].
    """
    shape = tf.shape(candidates)
    wanted = tf.minimum(wanted, tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1))
    before = tf.pad(candidates[:, :-1], [[0, 0], [1, 0]])
    starts = candidates & ~(continues & before)
    word, sizes = _words(candidates, starts)
    is_long = tf.gather(sizes, word, batch_dims=1) > wanted[:, None]
    word, sizes = _words(candidates, starts | (candidates & is_long))

    noise = tf.where(sizes > 0, uniform, -1.0)
    order = tf.math.top_k(noise, shape[1]).indices
    drawn = _fill(tf.gather(sizes, order, batch_dims=1), wanted[:, None])
    flat = tf.reshape(order + _row_starts(shape), [-1, 1])
    size = [shape[0] * shape[1]]
    drawn = tf.scatter_nd(flat, tf.reshape(tf.cast(drawn, tf.int32), [-1]), size)
    drawn = tf.gather(tf.reshape(drawn, shape), word, batch_dims=1)
    drawn = tf.where(candidates, drawn, 0)

    # The first of equal numbers come first.
    positions = tf.math.top_k(drawn, slots).indices
    used = tf.sequence_mask(tf.reduce_sum(drawn, axis=1), slots)
    return tf.where(used, positions, 0), used


def _words(candidates: tf.Tensor, starts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Which word of its row each token is of, and how many tokens words have [B, L]."""
    shape = tf.shape(candidates)
    word = tf.maximum(tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1, 0)
    sizes = tf.math.unsorted_segment_sum(
        tf.reshape(tf.cast(candidates, tf.int32), [-1]),
        tf.reshape(word + _row_starts(shape), [-1]),
        shape[0] * shape[1],
    )
    return word, tf.reshape(sizes, shape)


def _row_starts(shape: tf.Tensor) -> tf.Tensor:
    return shape[1] * tf.range(shape[0])[:, None]


def _fill(sizes: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
    """Which of things [B, L], taken in order where they still fit, fill a room [B, 1].

    Things of size 0 are not taken.
    """
    taken = tf.zeros_like(sizes, tf.bool)
    for _ in range(_ROUNDS):
        fits = ~taken & (sizes > 0) & (sizes <= room)
        open_sizes = tf.where(fits, sizes, 0)
        now = fits & (tf.cumsum(open_sizes, axis=1) <= room)
        room -= tf.reduce_sum(tf.where(now, open_sizes, 0), axis=1, keepdims=True)
        taken |= now
    return taken
