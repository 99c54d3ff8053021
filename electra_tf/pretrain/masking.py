# SPDX-License-Identifier: Apache-2.0
"""Which positions are masked, and what the networks read there: pure functions.

Section 2 of the ELECTRA paper.  Nothing here holds state or draws a random number
that its arguments do not determine: the draws are keyed by (seed, step), so a training
step is a function of (weights, batch, step).

Whole-word masking draws all tokens of a word, or none. A word is a token and the "##"
tokens that follow it. Words are drawn in random order; a word that exceeds the wanted
number of tokens is passed over, as in BERT, so this number is the same as without
words. A longer word could never be drawn: its tokens are words by themselves.

Shapes: B batch, L length, N masked positions per sequence, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.model.layers import gather_positions
from electra_tf.text.vocabulary import Vocabulary

# A draw that the original lacks has a key of its own and changes no other draw.
_RANDOM_TOKENS = 1
_PHILOX = 1  # tf.random.Algorithm.PHILOX
# Words are taken until one does not fit, this many times. In text nothing is left open
# then (after two times 1 % of the slots, where most tokens are parts of words).
_ROUNDS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Masking:
    """How the sequences of a phase are masked.

    Attributes:
      config: of the phase. Its `repeated_masks` "original" draws positions with
        replacement (about 7 % of the masked positions are drawn twice), "fixed" draws
        distinct ones.
      special_ids: of ([CLS], [SEP], [MASK]).
      continuations: bool [V], the tokens that continue a word, for whole words.
      temperature: of the samples, from the step; None: constant.
    """

    config: PretrainingConfig
    special_ids: tuple[int, int, int]
    continuations: Sequence[bool] | None = None
    temperature: Callable[[int | tf.Tensor], tf.Tensor] | None = None

    @classmethod
    def of(
        cls, config: PretrainingConfig, vocab: Vocabulary, temperature=None
    ) -> Masking:
        """That of a phase."""
        special_ids = vocab.cls_id, vocab.sep_id, vocab.mask_id
        return cls(config, special_ids, vocab.continuations, temperature)

    def draws_per_row(self, length: int | tf.Tensor):
        """How many random numbers decide the masking of a sequence."""
        slots = self.config.max_predictions_per_seq
        is_fixed = self.config.repeated_masks == "fixed"
        return (length if is_fixed else slots) + 2 * slots


def candidates_mask(
    input_ids: tf.Tensor, input_mask: tf.Tensor, special_ids: Sequence[int]
) -> tf.Tensor:
    """Marks the positions that may be masked: real tokens, but no special ones.

    Returns bool [B, L].  [UNK] and a real token with id 0 are candidates.
    """
    cls_id, sep_id, mask_id = special_ids
    special = (input_ids == cls_id) | (input_ids == sep_id) | (input_ids == mask_id)
    return tf.cast(input_mask, tf.bool) & ~special


def num_to_predict(
    num_tokens: tf.Tensor, mask_prob: float, max_predictions_per_seq: int
) -> tf.Tensor:
    """Number of positions to mask in sequences of `num_tokens` tokens, int32.

    `num_tokens` counts [CLS] and [SEP]; halves round to even.
    """
    wanted = tf.cast(tf.round(tf.cast(num_tokens, tf.float32) * mask_prob), tf.int32)
    return tf.maximum(1, tf.minimum(max_predictions_per_seq, wanted))


def scatter_update(
    sequence: tf.Tensor, updates: tf.Tensor, positions: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Writes `updates` [B, N] into `sequence` [B, L] at `positions` [B, N], all int32.

    Position 0 stands for "no update".  Where a position occurs several times, the
    floor of the mean of its updates is written, as the original program does
    (differing samples therefore give an unrelated token).

    Returns the updated sequence [B, L] and which positions were written, bool [B, L].
    """
    batch, length = tf.shape(sequence)[0], tf.shape(sequence)[1]
    flat = positions + length * tf.range(batch)[:, None]  # [B, N]
    totals, counts = (
        tf.scatter_nd(tf.reshape(flat, [-1, 1]), tf.reshape(x, [-1]), [batch * length])
        for x in (updates, tf.ones_like(updates))
    )
    totals, counts = (tf.reshape(x, [batch, length]) for x in (totals, counts))
    written = (counts > 0) & (tf.range(length) > 0)
    mean = totals // tf.maximum(counts, 1)
    return tf.where(written, mean, sequence), written


def uniforms(
    seed: int | tf.Tensor,
    step: int | tf.Tensor,
    rows: tuple[int | tf.Tensor, int | tf.Tensor],
    columns: int | tf.Tensor,
    purpose: int = 0,
) -> tf.Tensor:
    """float32 uniforms in [0, 1): rows of a table that (seed, step, purpose) determine.

    The table is that of `tf.random.stateless_uniform` on CPUs, and has `columns`
    columns. `rows` is (first, count): the others cost nothing, so that many workers
    can have their own rows of a large batch each.
    """
    key = tf.stack([tf.cast(seed, tf.int64), tf.cast(step, tf.int64)])
    if purpose:
        key = tf.random.fold_in(key, purpose)
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=key)
    first, count = (tf.cast(number, tf.int64) for number in rows)
    columns = tf.cast(columns, tf.int64)
    # Philox makes four numbers of each value of its counter.
    start, size = first * columns, count * columns
    counter = tf.stack([counter[0] + tf.cast(start // 4, tf.uint64), counter[1]])
    numbers = tf.raw_ops.StatelessRandomUniformV2(
        shape=[size + 3], key=key, counter=counter, alg=_PHILOX, dtype=tf.float32
    )
    return tf.reshape(numbers[start % 4 :][:size], [count, columns])


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


def _draw_positions(
    candidates: tf.Tensor,
    wanted: tf.Tensor,
    uniform: tf.Tensor,
    slots: int,
    distinct: bool = True,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws `wanted` [B] candidates [B, L]: positions [B, slots] and which are in use.

    Distinct ones from a uniform for each token [B, L], or else independent ones from
    one for each slot. Slots that are not in use hold position 0.
    """
    if distinct:
        # In rows with fewer candidates the last are none, and not in use.
        noise = tf.where(candidates, uniform, -1.0)  # [B, L]
        positions = tf.math.top_k(noise, slots).indices
        available = tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1)
        wanted = tf.minimum(wanted, available)
    else:
        rank = tf.cumsum(tf.cast(candidates, tf.int32), axis=1)  # [B, L]
        total = rank[:, -1:]
        index = tf.cast(uniform * tf.cast(total, tf.float32), tf.int32)
        index = tf.minimum(index, total - 1)  # u * total may round up to total
        positions = tf.searchsorted(rank, index + 1, side="left", out_type=tf.int32)
        wanted = tf.where(total[:, 0] > 0, wanted, 0)
    used = tf.sequence_mask(wanted, slots)  # [B, N]
    return tf.where(used, positions, 0), used


def mask_batch(
    batch: dict[str, tf.Tensor],
    seed: int | tf.Tensor,
    step: int | tf.Tensor,
    how: Masking,
    first_row: int = 0,
) -> dict[str, tf.Tensor]:
    """Draws the masking of a global batch as a function of (seed, step).

    Args:
      first_row: which row of the global batch the first one of `batch` is.

    Returns what `mask_by_draws` does, and any temperature, float32 [B, 1].
    """
    size, length = tf.shape(batch["input_ids"])[0], tf.shape(batch["input_ids"])[1]

    def draw(columns: int | tf.Tensor, purpose: int = 0) -> tf.Tensor:
        return uniforms(seed, step, (first_row, size), columns, purpose)

    random_ids = None
    if how.config.random_token_share:
        uniform = draw(length, _RANDOM_TOKENS)
        random_ids = sample_uniformly(uniform, how.config.vocab_size)
    draws = draw(how.draws_per_row(length))
    batch = mask_by_draws(batch, draws, how, random_ids)
    if how.temperature is None:
        return batch
    return batch | {"temperature": tf.fill([size, 1], how.temperature(step))}


def mask_by_draws(
    batch: dict[str, tf.Tensor],
    draws: tf.Tensor,
    how: Masking,
    random_ids: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Masks a batch by given random numbers.

    Args:
      batch: input_ids, input_mask, segment_ids, int32 [B, L].
      draws: float32 [B, how.draws_per_row(L)], uniform in [0, 1).
      random_ids: int32 [B, L], where the config has random tokens.

    Returns:
      `batch` with masked_input_ids int32 [B, L]; masked_lm_positions and masked_lm_ids
      int32 [B, N]; masked_lm_weights float32 [B, N] (0 marks unused slots, whose
      position and id are 0); sample_uniform float32 [B, N], the draw that decides which
      token the generator's softmax yields.
    """
    input_ids, input_mask = batch["input_ids"], batch["input_mask"]
    config, special_ids = how.config, how.special_ids
    slots = config.max_predictions_per_seq
    candidates = candidates_mask(input_ids, input_mask, special_ids)
    num_tokens = tf.reduce_sum(input_mask, axis=1)
    wanted = num_to_predict(num_tokens, config.mask_prob, slots)
    replace_uniform, sample_uniform, uniform = tf.split(draws, [slots, slots, -1], 1)
    if config.mask_unit == "word":
        continues = tf.gather(how.continuations, input_ids)
        positions, used = draw_words(candidates, continues, wanted, uniform, slots)
    else:
        is_distinct = config.repeated_masks == "fixed"
        text = candidates, wanted, uniform, slots
        positions, used = _draw_positions(*text, is_distinct)
    masked = apply_masking(
        input_ids,
        positions,
        tf.cast(used, tf.float32),
        replace_uniform,
        special_ids[-1],
        config.mask_token_share,
        config.random_token_share,
        random_ids,
    )
    return batch | masked | {"sample_uniform": sample_uniform}


def positions_mask(positions: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Marks `positions` int32 [B, N]; 0 stands for none. Returns bool [B, length]."""
    blank = tf.zeros([tf.shape(positions)[0], length], tf.int32)
    return scatter_update(blank, positions, positions)[1]


def apply_masking(
    input_ids: tf.Tensor,
    positions: tf.Tensor,
    weights: tf.Tensor,
    replace_uniform: tf.Tensor,
    mask_id: int,
    mask_token_share: float,
    random_token_share: float = 0.0,
    random_ids: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Masks `input_ids` [B, L] at `positions` [B, N], given the draws.

    `weights` float32 [B, N] marks the slots in use, whose position is not 0;
    `replace_uniform` [B, N] decides between [MASK] (below its share), the token of
    `random_ids` [B, L] there (below both shares together) and leaving the token.
    """
    ids = gather_positions(input_ids, positions) * tf.cast(weights, tf.int32)
    is_mask = replace_uniform < mask_token_share
    masked_input_ids = input_ids
    if random_token_share:
        is_random = replace_uniform < mask_token_share + random_token_share
        at = tf.where(is_random & ~is_mask, positions, 0)
        # A position drawn twice gets one token, and [MASK] before any token.
        updates = gather_positions(random_ids, at)
        masked_input_ids, _ = scatter_update(masked_input_ids, updates, at)
    updates = tf.fill(tf.shape(positions), tf.constant(mask_id, tf.int32))
    at = tf.where(is_mask, positions, 0)
    masked_input_ids, _ = scatter_update(masked_input_ids, updates, at)
    return {
        "masked_input_ids": masked_input_ids,
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
    }


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
    """The word of each token in its row, and the tokens of each word [B, L]."""
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
