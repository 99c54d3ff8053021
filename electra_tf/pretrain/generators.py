# SPDX-License-Identifier: Apache-2.0
"""Generators: networks that propose tokens for the masked positions.

A generator is called as `generator(inputs, seed, weight)` on a masked batch and
returns a GeneratorOutput.  GENERATORS names the four kinds: the small masked language
model of the ELECTRA paper (section 2), one that shares every weight with the
discriminator, uniform sampling, and the two-tower cloze model of the Electric paper
(section 2.3).

Shapes: B batch, L length, N masked positions, E embedding width, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.model.dropout import fold_in
from electra_tf.model.encoder import TextEncoder
from electra_tf.model.transformer_layer import LayerNorm, activation, initializer
from electra_tf.pretrain import masking
from electra_tf.pretrain.vocabulary_softmax import log_normalizer

# Keeps a mean over no positions at all finite; the original's constant.
EPSILON = 1e-6


class MaskedInputs(NamedTuple):
    """A batch with its masking, as `masking.mask_batch` lays it out."""

    input_ids: tf.Tensor  # int32 [B, L], not masked
    input_mask: tf.Tensor  # int32 [B, L]
    segment_ids: tf.Tensor  # int32 [B, L]
    masked_input_ids: tf.Tensor  # int32 [B, L]
    masked_lm_positions: tf.Tensor  # int32 [B, N]
    masked_lm_ids: tf.Tensor  # int32 [B, N]
    masked_lm_weights: tf.Tensor  # float32 [B, N]

    @classmethod
    def unmasked(cls, input_ids, input_mask, segment_ids) -> MaskedInputs:
        """Inputs int32 [B, L] in which no position is masked."""
        nowhere = tf.zeros_like(input_ids[:, :1])
        weights = tf.cast(nowhere, tf.float32)
        text = input_ids, input_mask, segment_ids
        return cls(*text, input_ids, nowhere, nowhere, weights)


class Cloze(NamedTuple):
    """A two-tower generator's view of all positions."""

    hidden: tf.Tensor  # [B, L, E], the input of the vocabulary softmax
    log_normalizer: tf.Tensor  # float32 [B, L]
    per_token_loss: tf.Tensor  # float32 [B, L]
    predictions: tf.Tensor  # int32 [B, L]
    weights: tf.Tensor  # float32 [B, L], 1 at the candidates
    loss: tf.Tensor  # scalar


class GeneratorOutput(NamedTuple):
    """Predictions at the masked positions; `loss` is what the generator learns from."""

    logits: tf.Tensor | None  # float32 [B, N, V]; None for the uniform generator
    per_token_loss: tf.Tensor  # float32 [B, N], unweighted
    mlm_loss: tf.Tensor  # scalar: mean over the masked positions
    predictions: tf.Tensor  # int32 [B, N]
    loss: tf.Tensor  # scalar: mlm_loss, or the cloze loss of two towers
    cloze: Cloze | None = None


def weighted_mean(values: tf.Tensor, weights: tf.Tensor, total) -> tf.Tensor:
    """Sum of `values * weights` over `total`, or over the sum of weights if None.

    `total` is the weight of the global batch where the batch at hand is one part.
    """
    if total is None:
        total = tf.reduce_sum(weights)
    return tf.reduce_sum(values * weights) / (total + EPSILON)


class MaskedLMHead(keras.layers.Layer):
    """Hidden states to vocabulary scores through the transposed word embeddings.

    Named "generator_predictions" (masked positions) or "cloze_predictions" (all).
    """

    def __init__(
        self,
        embedding_size: int,
        vocab_size: int,
        name: str,
        hidden_act: str = "gelu",
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.activation = activation(hidden_act)
        self.embedding_size = embedding_size
        self.vocab_size = vocab_size
        self.dense = keras.layers.Dense(
            embedding_size,
            name="dense",
            dtype=self.dtype_policy,
            kernel_initializer=initializer(initializer_range),
        )
        self.layer_norm = LayerNorm(dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.layer_norm.build((None, self.embedding_size))
        self.output_bias = self.add_weight(
            name="output_bias",
            shape=(self.vocab_size,),
            initializer="zeros",
            autocast=False,
        )

    def call(self, hidden: tf.Tensor) -> tf.Tensor:
        """Transforms [..., H] to [..., E], where the word embeddings can score it."""
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        flat = self.layer_norm(self.activation(self.dense(flat)))
        return tf.reshape(
            flat, tf.concat([tf.shape(hidden)[:-1], [self.embedding_size]], 0)
        )

    def logits(self, transformed: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
        """Scores of all tokens, float32 [..., V], from `call`'s output [..., E]."""
        flat = tf.reshape(transformed, [-1, self.embedding_size])
        scores = tf.matmul(flat, tf.cast(table, flat.dtype), transpose_b=True)
        scores = tf.cast(scores, tf.float32) + self.output_bias.value
        shape = tf.concat([tf.shape(transformed)[:-1], [self.vocab_size]], 0)
        return tf.ensure_shape(
            tf.reshape(scores, shape), transformed.shape[:-1] + [self.vocab_size]
        )


class MaskedLMGenerator(keras.layers.Layer):
    """A masked language model; with the discriminator's encoder it is fully tied.

    Args:
      encoder: a TextEncoder, "generator" or the discriminator's "electra".
    """

    def __init__(self, encoder: TextEncoder, vocab_size: int, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.encoder = encoder
        self.head = MaskedLMHead(
            encoder.embedding_size,
            vocab_size,
            name="generator_predictions",
            hidden_act=encoder.hidden_act,
            initializer_range=encoder.initializer_range,
            dtype=self.dtype_policy,
        )

    def call(
        self, inputs: MaskedInputs, seed: tf.Tensor | None = None, weight=None
    ) -> GeneratorOutput:
        """`weight`: masked positions of the global batch; None: of this one."""
        encoded = self.encoder(
            inputs.masked_input_ids, inputs.input_mask, inputs.segment_ids, seed
        )
        at_masked = masking.gather_positions(
            encoded.sequence_output, inputs.masked_lm_positions
        )
        table = self.encoder.embeddings.word_embeddings.value
        logits = self.head.logits(self.head(at_masked), table)
        return masked_lm_output(logits, inputs, weight)


def masked_lm_output(
    logits: tf.Tensor, inputs: MaskedInputs, weight
) -> GeneratorOutput:
    """Cross-entropy of `logits` [B, N, V] at the masked positions."""
    per_token = tf.nn.sparse_softmax_cross_entropy_with_logits(
        inputs.masked_lm_ids, logits
    )
    loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return GeneratorOutput(logits, per_token, loss, predictions, loss)


class UniformGenerator(keras.layers.Layer):
    """Every token is equally likely; nothing is learned."""

    def __init__(self, vocab_size: int, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.vocab_size = vocab_size

    def call(self, inputs, seed=None, weight=None) -> GeneratorOutput:
        per_token = tf.fill(
            tf.shape(inputs.masked_lm_ids), tf.constant(math.log(self.vocab_size))
        )
        # The constant loss is part of the original's total loss.
        loss = weighted_mean(per_token, inputs.masked_lm_weights, weight)
        predictions = tf.zeros_like(inputs.masked_lm_ids)
        return GeneratorOutput(None, per_token, loss, predictions, loss)


class TwoTowerGenerator(keras.layers.Layer):
    """Predicts each token from what is before it and what is after it.

    A left-to-right and a right-to-left transformer read the unmasked text; the state
    before position t of the first and after t of the second are concatenated, so
    the prediction at t does not see t and one pass scores every position.

    Positions 0 and L - 1 receive the other end's state, as in the original; they hold
    [CLS] and [SEP] or padding and are never predicted.

    Args:
      ltr, rtl: TextEncoders in the two directions.
      special_ids: (cls, sep, mask), never predicted.
      chunk_size: positions whose vocabulary scores exist at one time.
    """

    def __init__(
        self,
        ltr: TextEncoder,
        rtl: TextEncoder,
        vocab_size: int,
        special_ids: tuple[int, int, int],
        chunk_size: int = 1024,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.ltr = ltr
        self.rtl = rtl
        self.special_ids = special_ids
        self.chunk_size = chunk_size
        self.head = MaskedLMHead(
            ltr.embedding_size,
            vocab_size,
            name="cloze_predictions",
            hidden_act=ltr.hidden_act,
            initializer_range=ltr.initializer_range,
            dtype=self.dtype_policy,
        )

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
        """`weight`: number of candidates of the global batch; None: of this one."""
        hidden = self.head(self.towers(inputs, seed))  # [B, L, E]
        cloze = self._cloze(hidden, inputs, weight)
        at_masked = masking.gather_positions(hidden, inputs.masked_lm_positions)
        logits = self.head.logits(tf.stop_gradient(at_masked), self._table())
        mlm = masked_lm_output(logits, inputs, None)
        return mlm._replace(loss=cloze.loss, cloze=cloze)

    def log_q(self, cloze: Cloze, token_ids: tf.Tensor) -> tf.Tensor:
        """log q(token | context) for one token per position, float32 [B, L]."""
        return self._scores(cloze.hidden, token_ids) - cloze.log_normalizer

    def candidate_weights(self, inputs: MaskedInputs) -> tf.Tensor:
        """1 at the positions the cloze loss counts, float32 [B, L]."""
        cls_id, sep_id, mask_id = self.special_ids
        return tf.cast(
            masking.candidates_mask(
                inputs.input_ids,
                inputs.input_mask,
                cls_id=cls_id,
                sep_id=sep_id,
                mask_id=mask_id,
            ),
            tf.float32,
        )

    def _table(self) -> tf.Tensor:
        return self.ltr.embeddings.word_embeddings.value

    def _cloze(self, hidden, inputs, weight) -> Cloze:
        flat = tf.reshape(hidden, [-1, self.head.embedding_size])
        normalizer, predictions = log_normalizer(
            flat, self._table(), self.head.output_bias.value, self.chunk_size
        )
        shape = tf.shape(inputs.input_ids)
        normalizer = tf.reshape(normalizer, shape)
        per_token = normalizer - self._scores(hidden, inputs.input_ids)
        weights = self.candidate_weights(inputs)
        return Cloze(
            hidden,
            normalizer,
            per_token,
            tf.reshape(predictions, shape),
            weights,
            weighted_mean(per_token, weights, weight),
        )

    def _scores(self, hidden: tf.Tensor, token_ids: tf.Tensor) -> tf.Tensor:
        """The logit of one token per position, float32 [B, L], by a dot product."""
        vectors = tf.cast(tf.gather(self._table(), token_ids), tf.float32)
        bias = tf.gather(self.head.output_bias.value, token_ids)
        return tf.reduce_sum(tf.cast(hidden, tf.float32) * vectors, axis=-1) + bias


def _masked_lm(discriminator, config, settings, **kwargs):
    own = settings["untied_generator_embeddings"]
    size = config.hidden_size if own else discriminator.embedding_size
    encoder = TextEncoder(
        config,
        size,
        embeddings=None if own else discriminator.embeddings,
        name="generator",
        **kwargs,
    )
    encoder.build(None)
    return MaskedLMGenerator(encoder, config.vocab_size, name="masked_lm", **kwargs)


def _tied(discriminator, config, settings, **kwargs):
    del settings
    return MaskedLMGenerator(discriminator, config.vocab_size, name="tied", **kwargs)


def _uniform(discriminator, config, settings, **kwargs):
    del discriminator, settings
    return UniformGenerator(config.vocab_size, name="uniform", **kwargs)


def _two_tower(discriminator, config, settings, **kwargs):
    own = settings["untied_generator_embeddings"]
    size = config.hidden_size if own else discriminator.embedding_size
    towers = [
        TextEncoder(
            config,
            size,
            embeddings=None if own else discriminator.embeddings,
            direction=direction,
            name=f"generator_{direction}",
            **kwargs,
        )
        for direction in ("ltr", "rtl")
    ]
    for tower in towers:
        tower.build(None)
    return TwoTowerGenerator(
        *towers,
        config.vocab_size,
        settings["special_ids"],
        settings["cloze_chunk_size"],
        name="two_tower",
        **kwargs,
    )


# A generator is made from the discriminator's TextEncoder (to share weights with), the
# generator's ModelConfig, ElectraPretrainer's settings and a dtype.
GENERATORS = {
    "masked_lm": _masked_lm,
    "tied": _tied,
    "uniform": _uniform,
    "two_tower": _two_tower,
}
