# SPDX-License-Identifier: Apache-2.0
"""The networks that propose tokens for the masked positions, and draws from them.

Sections 2 of the ELECTRA paper and 2.3 of the Electric paper. The uniform numbers of
the draws come from the input pipeline.

Shapes: B batch, L length, N masked positions, E embedding width, V vocabulary.
"""

from __future__ import annotations

import abc
import importlib
import math
from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from electra_tf.config.objectives import (
    MASKED_LM_HEAD,
    OBJECTIVES,
    GeneratorKind,
    ObjectiveKind,
)
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.model import target
from electra_tf.model.dropout import fold_in, mix
from electra_tf.model.encoder import TextEncoder
from electra_tf.model.heads import MaskedLMHead
from electra_tf.model.layers import gather_positions
from electra_tf.pretrain import masking
from electra_tf.pretrain.metrics import EPSILON

# Width of the blocks of the two-level inverse CDF: about sqrt(V), so that both levels
# stay small next to the one pass over the vocabulary that forms the weights.
SAMPLING_BLOCK = 256


class MaskedInputs(NamedTuple):
    """A batch with its masking, as `masking.mask_batch` lays it out."""

    input_ids: tf.Tensor  # int32 [B, L], not masked
    input_mask: tf.Tensor  # int32 [B, L]
    segment_ids: tf.Tensor  # int32 [B, L]
    masked_input_ids: tf.Tensor  # int32 [B, L]
    masked_lm_positions: tf.Tensor  # int32 [B, N]
    masked_lm_ids: tf.Tensor  # int32 [B, N]
    masked_lm_weights: tf.Tensor  # float32 [B, N]
    sample_uniform: tf.Tensor | None = None  # float32 [B, N], decides the samples

    @classmethod
    def of(cls, batch: dict[str, tf.Tensor]) -> MaskedInputs:
        """These parts of a batch."""
        return cls(**{name: batch[name] for name in cls._fields if name in batch})

    @classmethod
    def unmasked(
        cls, input_ids: tf.Tensor, input_mask: tf.Tensor, segment_ids: tf.Tensor
    ) -> MaskedInputs:
        """Texts in which nothing is masked: one slot a row, and it is not in use."""
        nothing = tf.zeros_like(input_ids[:, :1])
        weights = tf.cast(nothing, tf.float32)
        text = input_ids, input_mask, segment_ids
        return cls(*text, input_ids, nothing, nothing, weights)


class Cloze(NamedTuple):
    """Predictions at all positions."""

    hidden: tf.Tensor  # [B, L, E], the input of the vocabulary softmax
    log_normalizer: tf.Tensor  # float32 [B, L]
    per_token_loss: tf.Tensor  # float32 [B, L]
    predictions: tf.Tensor  # int32 [B, L]
    weights: tf.Tensor  # float32 [B, L], 1 at the candidates
    loss: tf.Tensor  # scalar


class GeneratorOutput(NamedTuple):
    """Predictions at the masked positions; `loss` is what the generator learns from."""

    logits: tf.Tensor | None  # float32 [B, N, V]; None where all have the same
    per_token_loss: tf.Tensor  # float32 [B, N], unweighted
    mlm_loss: tf.Tensor  # scalar: mean over the masked positions
    predictions: tf.Tensor  # int32 [B, N]
    loss: tf.Tensor  # scalar: mlm_loss, or the cloze loss of two towers
    cloze: Cloze | None = None  # of generators that predict all positions
    hidden: tf.Tensor | None = None  # [B, N, H], what a masked LM's head reads


def weighted_mean(values: tf.Tensor, weights: tf.Tensor, total) -> tf.Tensor:
    """Sum of `values * weights` over `total`, or over the sum of weights if None.

    `total` is the weight of the global batch where the batch at hand is one part.
    """
    if total is None:
        total = tf.reduce_sum(weights)
    return tf.reduce_sum(values * weights) / (total + EPSILON)


class Generator(keras.layers.Layer, abc.ABC):
    """Proposes tokens for the masked positions; the contract of all kinds.

    What must be known of a kind before TensorFlow is imported (hparams, names of
    weights, cost) is its row in config/objectives.py.

    Attributes:
      scoring: the name in `scoring.METHODS` of the scores that its own predictions
        give, None if they give none.
      logits_at: of a generator that fills the masks of any text a method: the scores of
        all tokens at positions of a text, from its input_ids, input_mask and
        segment_ids int32 [B, L] and the positions int32 [B, N]: float32 [B, N, V].
      log_q: of a generator with a density, which Electric needs, a method:
        log q(token | context) for one token per position, from its GeneratorOutput and
        the tokens int32 [B, L]: float32 [B, L].
    """

    scoring: str | None = None
    logits_at: Callable[..., tf.Tensor] | None = None
    log_q: Callable[..., tf.Tensor] | None = None

    def __init__(self, **kwargs):
        # The batch's float32 numbers (weights, uniforms) keep their type.
        super().__init__(autocast=False, **kwargs)

    @classmethod
    @abc.abstractmethod
    def create(
        cls,
        encoder: TextEncoder,
        config: PretrainingConfig,
        special_ids: tuple[int, int, int],
        dtype,
    ) -> Generator:
        """The built generator of a model.

        Args:
          encoder: the main network's, to share weights with.
          special_ids: of ([CLS], [SEP], [MASK]).
        """

    @abc.abstractmethod
    def call(
        self, inputs: MaskedInputs, seed: tf.Tensor | None = None, weight=None
    ) -> GeneratorOutput:
        """Predicts the tokens at the masked positions.

        Args:
          seed: int32 [2], decides the dropout; None: no dropout.
          weight: `loss_weight` of the global batch; None: of this one.
        """

    def loss_weight(self, inputs: MaskedInputs) -> tf.Tensor:
        """How many positions the loss is a mean over, a scalar."""
        return tf.reduce_sum(inputs.masked_lm_weights)

    def sample(
        self,
        generated: GeneratorOutput,
        uniform: tf.Tensor,
        temperature: float = 1.0,
        disallowed_ids: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """A token for each masked position from float32 [B, N] in [0, 1): int32 [B, N].

        `disallowed_ids` (int32 [B, N]): that id is not drawn.
        """
        return sample_from_softmax(
            tf.stop_gradient(generated.logits),
            uniform,
            temperature=temperature,
            disallowed_ids=disallowed_ids,
        )


def masked_lm_output(
    logits: tf.Tensor, inputs: MaskedInputs, weight
) -> GeneratorOutput:
    """Cross-entropy of `logits` [B, N, V] at the masked positions."""
    per_token = tf.nn.sparse_softmax_cross_entropy_with_logits(
        inputs.masked_lm_ids, logits
    )
    loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
    # As a matrix: a TPU would copy the scores to have them in three dimensions.
    rows = tf.reshape(logits, [-1, logits.shape[-1]])
    best = tf.argmax(rows, axis=-1, output_type=tf.int32)
    predictions = tf.reshape(best, tf.shape(per_token))
    return GeneratorOutput(logits, per_token, loss, predictions, loss)


class MaskedLMGenerator(Generator):
    """A small masked language model (section 2 of the ELECTRA paper).

    Args:
      encoder: a built TextEncoder.
    """

    scoring = "mask_each"

    def __init__(self, encoder: TextEncoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        sizes = encoder.config, encoder.embedding_size
        self.head = MaskedLMHead(*sizes, MASKED_LM_HEAD, dtype=self.dtype_policy)
        self.built = True

    @classmethod
    def create(cls, encoder, config, special_ids, dtype):
        shape, width = config.generator_config(), encoder.embedding_size
        # A frozen one was trained as a model by itself, or with shared embeddings.
        is_frozen = "generator" not in OBJECTIVES[config.objective].learns
        if config.embedding_sharing == "untied" and not is_frozen:
            width = shape.hidden_size
        embeddings = getattr(encoder.embeddings, "base", None)  # of disentangled ones
        if config.embedding_sharing == "shared":
            embeddings = encoder.embeddings
        options = {"name": "generator", "dtype": dtype}
        generator = TextEncoder(shape, width, embeddings, **options)
        generator.build(None)
        return cls(generator, dtype=dtype)

    def call(
        self, inputs: MaskedInputs, seed: tf.Tensor | None = None, weight=None
    ) -> GeneratorOutput:
        text = inputs.masked_input_ids, inputs.input_mask, inputs.segment_ids
        hidden = self._hidden_at(*text, inputs.masked_lm_positions, seed)
        output = masked_lm_output(self._logits(hidden), inputs, weight)
        return output._replace(hidden=hidden)

    def logits_at(self, input_ids, input_mask, segment_ids, positions):
        text = input_ids, input_mask, segment_ids
        return self._logits(self._hidden_at(*text, positions))

    def _hidden_at(self, input_ids, input_mask, segment_ids, positions, seed=None):
        encoded = self.encoder(input_ids, input_mask, segment_ids, seed)
        return gather_positions(encoded.sequence_output, positions)

    def _logits(self, hidden: tf.Tensor) -> tf.Tensor:
        table = self.encoder.embeddings.word_embeddings.value
        return self.head.logits(self.head(hidden), table)


class TiedGenerator(MaskedLMGenerator):
    """Shares every weight but its head with the main network."""

    @classmethod
    def create(cls, encoder, config, special_ids, dtype):
        return cls(encoder, dtype=dtype)


class TwoTowerGenerator(Generator):
    """Predicts each token from the tokens before it and after it.

    A left-to-right and a right-to-left transformer read the unmasked text; the state
    before position t of the first and after t of the second are concatenated, so
    the prediction at t does not see t and one pass scores every position.

    Positions 0 and L - 1 receive the other end's state, as in the original; they hold
    [CLS] and [SEP] or padding and are never predicted.

    Args:
      ltr, rtl: TextEncoders in the two directions.
      special_ids: (cls, sep, mask), never predicted.
    """

    scoring = "two_tower"

    def __init__(
        self,
        ltr: TextEncoder,
        rtl: TextEncoder,
        special_ids: tuple[int, int, int],
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.ltr = ltr
        self.rtl = rtl
        self.special_ids = special_ids
        sizes = ltr.config, ltr.embedding_size
        self.head = MaskedLMHead(
            *sizes,
            name="cloze_predictions",
            hidden_size=ltr.hidden_size + rtl.hidden_size,
            dtype=self.dtype_policy,
        )
        self.built = True

    @classmethod
    def create(cls, encoder, config, special_ids, dtype):
        own = config.generator_config()
        shape = own, encoder.embedding_size, encoder.embeddings
        if config.embedding_sharing == "untied":
            shape = own, own.hidden_size
        towers = []
        for direction in ("ltr", "rtl"):
            options = {"direction": direction, "dtype": dtype}
            tower = TextEncoder(*shape, name=f"generator_{direction}", **options)
            towers.append(tower)
        for tower in towers:
            tower.build(None)
        return cls(*towers, special_ids, dtype=dtype)

    def towers(self, inputs: MaskedInputs, seed: tf.Tensor | None = None) -> tf.Tensor:
        """States before and after each position: [B, L, 2 H]."""
        text = inputs.input_ids, inputs.input_mask, inputs.segment_ids
        before = self.ltr(*text, fold_in(seed, 0)).sequence_output
        after = self.rtl(*text, fold_in(seed, 1)).sequence_output
        # ltr[t] saw t, so position t takes ltr[t - 1] and rtl[t + 1].
        return tf.concat([tf.roll(before, 1, axis=1), tf.roll(after, -1, axis=1)], -1)

    def call(
        self, inputs: MaskedInputs, seed: tf.Tensor | None = None, weight=None
    ) -> GeneratorOutput:
        hidden, table = self.head(self.towers(inputs, seed)), self._table()  # [B, L, E]
        normalizer, best = self.head.log_normalizer(hidden, table)
        per_token = normalizer - self.head.scores(hidden, inputs.input_ids, table)
        weights = self.candidate_weights(inputs)
        loss = weighted_mean(per_token, weights, weight)
        at_masked = gather_positions(hidden, inputs.masked_lm_positions)
        logits = self.head.logits(tf.stop_gradient(at_masked), table)
        cloze = Cloze(hidden, normalizer, per_token, best, weights, loss)
        return masked_lm_output(logits, inputs, None)._replace(loss=loss, cloze=cloze)

    def log_q(self, generated, token_ids):
        cloze = generated.cloze
        scores = self.head.scores(cloze.hidden, token_ids, self._table())
        return scores - cloze.log_normalizer

    def logits_at(self, input_ids, input_mask, segment_ids, positions):
        text = MaskedInputs.unmasked(input_ids, input_mask, segment_ids)
        hidden = gather_positions(self.towers(text), positions)
        return self.head.logits(self.head(hidden), self._table())

    def loss_weight(self, inputs):
        return tf.reduce_sum(self.candidate_weights(inputs))

    def candidate_weights(self, inputs: MaskedInputs) -> tf.Tensor:
        """1 at the positions the cloze loss counts, float32 [B, L]."""
        text = inputs.input_ids, inputs.input_mask
        return tf.cast(masking.candidates_mask(*text, self.special_ids), tf.float32)

    def _table(self) -> tf.Tensor:
        return self.ltr.embeddings.word_embeddings.value


class UniformGenerator(Generator):
    """Every token is equally likely; nothing is learned."""

    def __init__(self, vocab_size: int, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.built = True

    @classmethod
    def create(cls, encoder, config, special_ids, dtype):
        return cls(config.vocab_size, dtype=dtype)

    def call(self, inputs, seed=None, weight=None) -> GeneratorOutput:
        per_token = tf.fill(
            tf.shape(inputs.masked_lm_ids), tf.constant(math.log(self.vocab_size))
        )
        # The constant loss is part of the original's total loss.
        loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
        predictions = tf.zeros_like(inputs.masked_lm_ids)
        return GeneratorOutput(None, per_token, loss, predictions, loss)

    def sample(self, generated, uniform, temperature=1.0, disallowed_ids=None):
        return masking.sample_uniformly(
            uniform, self.vocab_size, disallowed_ids=disallowed_ids
        )


class UnigramGenerator(Generator):
    """q(token) is proportional to its count, whatever is around it.

    `adapt` takes over the counts that the builders of data write, and they are kept
    with the weights.
    """

    def __init__(self, vocab_size: int, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size

    @classmethod
    def create(cls, encoder, config, special_ids, dtype):
        generator = cls(config.vocab_size, name="unigram_generator", dtype=dtype)
        generator.build()
        return generator

    def build(self, input_shape=None):
        # Counts rather than probabilities: whole numbers survive every conversion.
        self.token_counts = self.add_weight(
            name="token_counts",
            shape=(self.vocab_size,),
            initializer="ones",
            trainable=False,
            autocast=False,
        )

    def adapt(self, token_counts: np.ndarray) -> None:
        """Takes over how often each token is in the training data, [V]."""
        self.token_counts.assign(token_counts.astype(np.float32))

    def call(self, inputs, seed=None, weight=None) -> GeneratorOutput:
        per_token = -tf.gather(self._log_probabilities(), inputs.masked_lm_ids)
        loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
        best = tf.argmax(self.token_counts.value, output_type=tf.int32)
        predictions = tf.fill(tf.shape(inputs.masked_lm_ids), best)
        return GeneratorOutput(None, per_token, loss, predictions, loss)

    def sample(self, generated, uniform, temperature=1.0, disallowed_ids=None):
        weights = self.token_counts.value
        if temperature != 1.0:
            # Of at most 1: a low temperature makes powers that float32 does not hold.
            weights = (weights / tf.reduce_max(weights)) ** (1.0 / temperature)
        return sample_by_weight(weights, uniform, disallowed_ids=disallowed_ids)

    def log_q(self, generated, token_ids):
        return tf.gather(self._log_probabilities(), token_ids)

    def _log_probabilities(self) -> tf.Tensor:
        """log q of every token, float32 [V].

        A token that the data do not have is never drawn; it has the probability of one
        that occurs once, so that no loss is infinite on other texts.
        """
        counts = self.token_counts.value
        total = tf.reduce_sum(counts)
        return tf.math.log(tf.maximum(counts, 1.0)) - tf.math.log(total)


# Draws.


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


def class_of(kind: GeneratorKind | ObjectiveKind) -> type:
    """The class of a row of `config.objectives`."""
    module, _, name = kind.implementation.partition(":")
    return getattr(importlib.import_module(module, "electra_tf.pretrain"), name)
