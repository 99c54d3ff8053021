# SPDX-License-Identifier: Apache-2.0
"""Whole-word masking: all tokens of a word are drawn, or none.

A word is a token and the "##" tokens that follow it, or one of a list of words, which
are found in the tokens from left to right, the longest first. Words are drawn in random
order; one that would make more masked tokens than are wanted is passed over, as in
BERT, so that their number is what it is without words. A word of more tokens than are
wanted could never be drawn: its tokens are words by themselves.

Shapes: B batch, L length, N masked positions per sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf.text.word_list import WordList

# Words are taken until one does not fit, this many times. In text nothing is left open
# then (after two times 1 % of the slots, where most tokens are parts of words).
_ROUNDS = 4


class WordTables(NamedTuple):
    """The tables of a `WordList`, which says what they hold, as tensors."""

    keys: tf.Tensor
    targets: tf.Tensor
    is_word: tf.Tensor
    may_start: tf.Tensor

    @classmethod
    def of(cls, words: WordList) -> WordTables:
        """Outside of graphs, which would hold a copy each."""
        return cls(*(tf.constant(getattr(words, name)) for name in cls._fields))


def continue_words(
    input_ids: tf.Tensor, continuations: tf.Tensor, words: WordTables | None
) -> tf.Tensor:
    """Marks the tokens that belong to the word before them: bool [B, L].

    Args:
      input_ids: int32 [B, L].
      continuations: bool [V], the "##" tokens.
      words: with them, such tokens of scripts without spaces begin a word where one of
        these words begins or has ended.
    """
    continues = tf.gather(continuations, input_ids)
    if words is None:
        return continues
    sizes = _longest_words(input_ids, words)
    starts = _reached(sizes)
    in_word = ~starts | (sizes > 0)
    behind_word = tf.pad(in_word[:, :-1], [[0, 0], [1, 0]])
    is_open = tf.gather(words.may_start, input_ids) & (in_word | behind_word)
    return ~starts | (continues & ~is_open)


def _longest_words(input_ids: tf.Tensor, words: WordTables) -> tf.Tensor:
    """How many tokens the longest word has that begins at each: int32 [B, L], 0: none.

    All places go through the beginnings of words at the same time.
    """
    length, vocab_size = tf.shape(input_ids)[1], tf.size(words.may_start)
    ids = tf.cast(input_ids, tf.int64)
    # No token, nor any state with it, has a key below 0.
    ids = tf.pad(ids, [[0, 0], [0, length]], constant_values=tf.int64.min // 2)
    last = tf.size(words.keys) - 1

    def follow(count, states, sizes):
        keys = states * tf.cast(vocab_size, tf.int64) + ids[:, count : count + length]
        places = tf.searchsorted(words.keys, tf.reshape(keys, [-1]))
        places = tf.reshape(tf.minimum(places, last), tf.shape(keys))
        found = tf.gather(words.keys, places) == keys
        states = tf.where(found, tf.gather(words.targets, places), -1)
        is_word = tf.gather(words.is_word, tf.maximum(states, 0)) & found
        return count + 1, states, tf.where(is_word, count + 1, sizes)

    start = 0, tf.zeros_like(input_ids, tf.int64), tf.zeros_like(input_ids)
    return tf.while_loop(
        lambda _, states, __: tf.reduce_any(states >= 0), follow, start
    )[2]


def _reached(sizes: tf.Tensor) -> tf.Tensor:
    """Where words begin that follow each other from the left: bool [B, L].

    Args:
      sizes: int32 [B, L], of the word that begins at each place; 0 counts as 1.
    """
    shape = tf.shape(sizes) + [0, 1]
    end = shape[1] - 1
    jump = tf.minimum(tf.range(end) + tf.maximum(sizes, 1), end)
    jump = tf.pad(jump, [[0, 0], [0, 1]], constant_values=end)
    reached = tf.broadcast_to(
        tf.one_hot(0, shape[1], on_value=1, dtype=tf.int32), shape
    )
    # After n rounds: what takes less than 2 ** n words.
    for _ in range(sizes.shape[1].bit_length()):
        place = tf.reshape(jump + _row_starts(shape), [-1, 1])
        now = tf.scatter_nd(place, tf.reshape(reached, [-1]), [tf.reduce_prod(shape)])
        reached = tf.minimum(1, reached + tf.reshape(now, shape))
        jump = tf.gather(jump, jump, batch_dims=1)
    return reached[:, :-1] > 0


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
