# SPDX-License-Identifier: Apache-2.0
"""Mask, corrupt, gather, scatter and sample: pure functions on tensors.

Section 2 of the ELECTRA paper.  Nothing here holds state or draws a random number
that its arguments do not determine: the draws are keyed by (seed, step), so a training
step is a function of (weights, batch, step).

Shapes: B batch, L length, N masked positions per sequence, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.model import target
from electra_tf.model.dropout import mix
from electra_tf.pretrain.curriculum import Curriculum
from electra_tf.pretrain.word_masking import WordTables, continue_words, draw_words
from electra_tf.text.vocabulary import Vocabulary

# Share of the masked positions whose input becomes [MASK]; the rest keep their token.
# ELECTRA never puts a random token there, unlike BERT (appendix A of the paper).
MASK_TOKEN_SHARE = 0.85

# Draws that came after those of the original have keys of their own: without them, a
# batch is what it was.
_RANDOM_TOKENS, _OTHER_POSITIONS = 1, 2
_INTACT = 5
_FROM_FREQUENCIES = 6
_PHILOX = 1  # tf.random.Algorithm.PHILOX

# Width of the blocks of the two-level inverse CDF: about sqrt(V), so that both levels
# stay small next to the one pass over the vocabulary that forms the weights.
SAMPLING_BLOCK = 256


@dataclasses.dataclass(frozen=True, eq=False)
class MaskingSettings:
    """How sequences are masked.

    Attributes:
      mask_prob: share of the tokens that are masked.
      max_predictions_per_seq: slots for masked positions, N.
      special_ids: ids of ([CLS], [SEP], [MASK]).
      repeated_masks: "original" draws positions with replacement (about 7 % of the
        masked positions are drawn twice), "fixed" draws distinct ones.
      mask_unit: "word" draws whole words, with "fixed".
      mask_token_share, random_token_share: of the masked positions, those whose input
        becomes [MASK], or a random token; the rest keep theirs.
      draw_others: whether as many positions of another draw are marked, too.
      intact_share: of the sequences, those that is_intact marks.
      vocab_size: tokens that a random one is drawn from.
      continuations: bool [V], the tokens that continue a word.
      words: words of scripts without spaces.
      token_weights: float32 [V], by which tokens are masked more or less often; with
        distinct positions only.
      curriculum: what samples are drawn by at each step.
    """

    mask_prob: float
    max_predictions_per_seq: int
    special_ids: tuple[int, int, int]
    repeated_masks: str = "original"
    mask_unit: str = "token"
    mask_token_share: float = MASK_TOKEN_SHARE
    random_token_share: float = 0.0
    draw_others: bool = False
    intact_share: float = 0.0
    vocab_size: int = 0
    continuations: np.ndarray | None = None
    words: WordTables | None = None
    token_weights: np.ndarray | None = None
    curriculum: Curriculum | None = None

    @classmethod
    def of(
        cls,
        config: PretrainingConfig,
        vocab: Vocabulary,
        words: WordTables | None = None,
        token_weights: np.ndarray | None = None,
        curriculum: Curriculum | None = None,
    ) -> MaskingSettings:
        """Those of a phase."""
        names = "mask_prob max_predictions_per_seq repeated_masks mask_unit "
        names += "mask_token_share random_token_share"
        has_verdict = config.objective == "electra_sentence"
        return cls(
            **{name: getattr(config, name) for name in names.split()},
            draw_others=config.electra_15_positions == "other",
            intact_share=config.intact_share if has_verdict else 0.0,
            special_ids=(vocab.cls_id, vocab.sep_id, vocab.mask_id),
            vocab_size=len(vocab),
            continuations=vocab.continuations,
            words=words,
            token_weights=token_weights,
            curriculum=curriculum,
        )

    def draws_per_row(self, length: int | tf.Tensor):
        """How many random numbers decide the masking of a sequence."""
        slots = self.max_predictions_per_seq
        return (length if self.repeated_masks == "fixed" else slots) + 2 * slots


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


def gather_positions(sequence: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Takes the entries of `sequence` [B, L] or [B, L, D] at `positions` [B, N]."""
    return tf.gather(sequence, positions, batch_dims=1)


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
    flat = tf.reshape(flat, [-1, 1])
    size = [batch * length]
    totals = tf.scatter_nd(flat, tf.reshape(updates, [-1]), size)
    counts = tf.scatter_nd(flat, tf.ones_like(flat[:, 0]), size)
    totals = tf.reshape(totals, [batch, length])
    counts = tf.reshape(counts, [batch, length])
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
    settings: MaskingSettings,
    first_row: int = 0,
) -> dict[str, tf.Tensor]:
    """Draws the masking of a global batch as a function of (seed, step).

    Args:
      first_row: which row of the global batch the first one of `batch` is.

    Returns what `mask_by_draws` does; with `intact_share` also is_intact, float32
    [B, 1]; with a curriculum what `Curriculum.apply` adds.
    """
    size, length = tf.shape(batch["input_ids"])[0], tf.shape(batch["input_ids"])[1]

    def draw(columns: int | tf.Tensor, purpose: int = 0) -> tf.Tensor:
        return uniforms(seed, step, (first_row, size), columns, purpose)

    random_ids = other_uniform = None
    if settings.random_token_share:
        uniform = draw(length, _RANDOM_TOKENS)
        random_ids = sample_uniformly(uniform, settings.vocab_size)
    if settings.draw_others:
        other_uniform = draw(length, _OTHER_POSITIONS)
    if settings.intact_share:
        is_intact = tf.cast(draw(1, _INTACT) < settings.intact_share, tf.float32)
        batch = batch | {"is_intact": is_intact}
    draws = draw(settings.draws_per_row(length))
    if settings.token_weights is not None:
        slots = 2 * settings.max_predictions_per_seq
        weights = tf.gather(settings.token_weights, batch["input_ids"])
        keys = draw_keys(draws[:, slots:], weights)
        draws = tf.concat([draws[:, :slots], keys], axis=1)
    batch = mask_by_draws(batch, draws, settings, random_ids, other_uniform)
    if settings.curriculum is None:
        return batch
    uniform = draw(settings.max_predictions_per_seq, _FROM_FREQUENCIES)
    return settings.curriculum.apply(batch, step, uniform)


def mask_by_draws(
    batch: dict[str, tf.Tensor],
    draws: tf.Tensor,
    settings: MaskingSettings,
    random_ids: tf.Tensor | None = None,
    other_uniform: tf.Tensor | None = None,
) -> dict[str, tf.Tensor]:
    """Masks a batch as random numbers say.

    Args:
      batch: input_ids, input_mask, segment_ids, int32 [B, L].
      draws: float32 [B, settings.draws_per_row(L)], uniform in [0, 1).
      random_ids: int32 [B, L], where the settings have random tokens.
      other_uniform: float32 [B, L], decides which positions the other draw marks.

    Returns:
      `batch` with masked_input_ids int32 [B, L]; masked_lm_positions and masked_lm_ids
      int32 [B, N]; masked_lm_weights float32 [B, N] (0 marks unused slots, whose
      position and id are 0); sample_uniform float32 [B, N], the draw that decides which
      token the generator's softmax yields; with `other_uniform`, other_weights float32
      [B, L], 1 at as many distinct positions, drawn without regard to the masked ones.
    """
    input_ids, input_mask = batch["input_ids"], batch["input_mask"]
    slots, special_ids = settings.max_predictions_per_seq, settings.special_ids
    candidates = candidates_mask(input_ids, input_mask, special_ids)
    num_tokens = tf.reduce_sum(input_mask, axis=1)
    wanted = num_to_predict(num_tokens, settings.mask_prob, slots)
    uniform = draws[:, 2 * slots :]
    if settings.mask_unit == "word":
        continues = continue_words(input_ids, settings.continuations, settings.words)
        positions, used = draw_words(candidates, continues, wanted, uniform, slots)
        wanted = tf.reduce_sum(tf.cast(used, tf.int32), axis=1)
    else:
        is_distinct = settings.repeated_masks == "fixed"
        positions, used = _draw_positions(
            candidates, wanted, uniform, slots, is_distinct
        )
    replace_uniform, sample_uniform = draws[:, :slots], draws[:, slots : 2 * slots]

    weights = tf.cast(used, tf.float32)
    shares = settings.mask_token_share, settings.random_token_share
    masked = apply_masking(
        input_ids,
        positions,
        weights,
        replace_uniform,
        special_ids[-1],
        *shares,
        random_ids,
    )
    if other_uniform is not None:
        # Masked ones too, by chance: without them nothing would be replaced there.
        others, _ = _draw_positions(candidates, wanted, other_uniform, slots)
        others = positions_mask(others, tf.shape(input_ids)[1])
        masked["other_weights"] = tf.cast(others, tf.float32)
    return batch | masked | {"sample_uniform": sample_uniform}


def positions_mask(positions: tf.Tensor, length: int | tf.Tensor) -> tf.Tensor:
    """Marks `positions` int32 [B, N]; 0 stands for none. Returns bool [B, length]."""
    blank = tf.zeros([tf.shape(positions)[0], length], tf.int32)
    return scatter_update(blank, positions, positions)[1]


def token_weights(counts: np.ndarray, power: float) -> np.ndarray:
    """count ** -power for each token, float32 [V]; the mean over the data is 1.

    Rare tokens are masked more often (appendix H of the paper, negative results).

    Args:
      counts: how often each token is in the data; 0 counts as 1.
    """
    counts = np.maximum(counts, 1).astype(np.float64)
    weights = counts**-power
    return np.float32(weights * (counts.sum() / (counts * weights).sum()))


def draw_keys(uniform: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Numbers in [0, 1] whose k greatest are a draw in proportion to weights.

    Without replacement, as if drawn one after the other: so are the k smallest of
    exponential variables of these rates (Efraimidis and Spirakis, 2006).

    Args:
      uniform: float32 in [0, 1).
      weights: float32 > 0 of the same shape.
    """
    # w / (w + e) falls with e / w, and keeps small differences of either apart.
    return weights / (weights - tf.math.log(uniform))


def apply_masking(
    input_ids: tf.Tensor,
    positions: tf.Tensor,
    weights: tf.Tensor,
    replace_uniform: tf.Tensor,
    mask_id: int,
    mask_token_share: float = MASK_TOKEN_SHARE,
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
    masked_input_ids, _ = scatter_update(
        masked_input_ids,
        tf.fill(tf.shape(positions), tf.constant(mask_id, tf.int32)),
        tf.where(is_mask, positions, 0),
    )
    return {
        "masked_input_ids": masked_input_ids,
        "masked_lm_positions": positions,
        "masked_lm_ids": ids,
        "masked_lm_weights": weights,
    }


def sample_from_softmax(
    logits: tf.Tensor,
    uniform: tf.Tensor,
    *,
    temperature: float | tf.Tensor = 1.0,
    disallowed_ids: tf.Tensor | None = None,
) -> tf.Tensor:
    """Draws one id from softmax(logits / temperature) per uniform.

    Same distribution as the original's Gumbel noise, with one random number per draw
    instead of one per vocabulary entry: by inverse CDF, and on TPUs by `_noisiest`.

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
        return tf.reshape(_noisiest(rows, uniform_rows), tf.shape(uniform))
    if disallowed_ids is not None:
        flat = tf.reshape(disallowed_ids, [-1])
        place = tf.stack([tf.range(tf.size(flat)), flat], axis=1)
        # -1000 rather than -inf, as in the original: if nothing else has weight, the
        # draw is still defined.
        rows = tf.tensor_scatter_nd_add(rows, place, tf.fill(tf.shape(flat), -1000.0))
    weights = tf.exp(rows - tf.reduce_max(rows, axis=-1, keepdims=True))
    return tf.reshape(_inverse_cdf(weights, uniform_rows), tf.shape(uniform))


def _noisiest(rows: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Index of the largest of `rows` [M, V] with Gumbel noise added: int32 [M].

    The noise is a hash of `uniform` [M] and the index, as dropout's. More arithmetic
    than to search a cumulative sum, but the scores are read once, as they lie: a TPU
    would copy them into another layout, blocks of the vocabulary beside each other.
    """
    seed = tf.bitcast(uniform, tf.uint32)[:, None]
    keys = [mix(seed, tf.constant(number, tf.uint32)) for number in (1, 2)]
    # An odd constant, 2**32 / golden ratio, keeps neighbours far apart.
    place = tf.range(rows.shape[-1], dtype=tf.int32)
    place = tf.cast(place, tf.uint32) * tf.constant(0x9E3779B9, tf.uint32)
    bits = tf.cast(mix(place + keys[0], keys[1]), tf.float32)
    # Exponential, and exact where it is small: those are the ones that win.
    waiting = -tf.math.log1p((bits + 0.5) * -((1 - 2.0**-24) / 2**32))
    return tf.argmax(rows - tf.math.log(waiting), axis=-1, output_type=tf.int32)


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
    block = tf.minimum(
        block, tf.reduce_max(tf.where(sums > 0, tf.range(tf.size(sums)), 0))
    )
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
    before = tf.where(
        block > 0, tf.gather(mass, tf.maximum(block - 1, 0), batch_dims=1), 0.0
    )
    weights = tf.gather(blocks, block, batch_dims=1)  # [M, SAMPLING_BLOCK]
    inside = tf.cumsum(weights, axis=-1)
    return block * SAMPLING_BLOCK + _first_above(
        weights, inside, target - before[:, None]
    )


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
    first = tf.reduce_min(
        tf.where(possible & (cumulative > target), index, size), axis=-1
    )
    last = tf.reduce_max(tf.where(possible, index, 0), axis=-1)
    return tf.minimum(first, last)
