# SPDX-License-Identifier: Apache-2.0
"""What a generator is: the network that proposes tokens for the masked positions.

Sections 2 of the ELECTRA paper and 2.3 of the Electric paper. The kinds are in
`masked_lm_generator`, `two_tower_generator` and `fixed_generators`.

Shapes: B batch, L length, N masked positions, E embedding width, V vocabulary.
"""

from __future__ import annotations

import abc
import importlib
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.generators import GENERATORS
from electra_tf.config.model import ModelConfig
from electra_tf.model.encoder import TextEncoder
from electra_tf.pretrain import masking
from electra_tf.pretrain.metrics import EPSILON


class MaskedInputs(NamedTuple):
    """A batch with its masking, as `masking.mask_batch` lays it out."""

    input_ids: tf.Tensor  # int32 [B, L], not masked
    input_mask: tf.Tensor  # int32 [B, L]
    segment_ids: tf.Tensor  # int32 [B, L]
    masked_input_ids: tf.Tensor  # int32 [B, L]
    masked_lm_positions: tf.Tensor  # int32 [B, N]
    masked_lm_ids: tf.Tensor  # int32 [B, N]
    masked_lm_weights: tf.Tensor  # float32 [B, N]
    other_weights: tf.Tensor | None = None  # float32 [B, L], where they were drawn
    is_intact: tf.Tensor | None = None  # float32 [B, 1], 1 where nothing is replaced
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

    logits: (
        tf.Tensor | None
    )  # float32 [B, N, V]; None where they are the same everywhere
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

    Those that can do more are `FillsMasks` or `HasLogQ` as well.

    What must be known of a kind before TensorFlow is imported (hparams, names of
    weights, cost) is its row in config/generators.py.

    Attributes:
      scoring: the name in `pseudo_likelihood` of the scores that its own predictions
        give, None if they give none.
    """

    scoring: str | None = None

    def __init__(self, **kwargs):
        # The batch's float32 numbers (weights, uniforms) keep their type.
        super().__init__(autocast=False, **kwargs)

    @classmethod
    @abc.abstractmethod
    def create(
        cls, encoder: TextEncoder, config: ModelConfig, settings, dtype
    ) -> Generator:
        """The built generator of a model.

        Args:
          encoder: the main network's, to share weights with.
          config: ModelConfig of the generator's own encoders, if it has any.
          settings: `pretraining.PretrainerSettings`.
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
        return masking.sample_from_softmax(
            tf.stop_gradient(generated.logits),
            uniform,
            temperature=temperature,
            disallowed_ids=disallowed_ids,
        )


class FillsMasks(abc.ABC):
    """A generator that fills the masks of any text."""

    @abc.abstractmethod
    def logits_at(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        positions: tf.Tensor,
    ) -> tf.Tensor:
        """Scores of all tokens at `positions` [B, N] of a text: float32 [B, N, V]."""


class HasLogQ(abc.ABC):
    """A generator that knows how likely it was to draw a token; Electric needs it."""

    @abc.abstractmethod
    def log_q(self, generated: GeneratorOutput, token_ids: tf.Tensor) -> tf.Tensor:
        """log q(token | context) for one token per position, float32 [B, L]."""


def generator_class(kind: str) -> type[Generator]:
    """The class of a key of `config.generators.GENERATORS`."""
    module, _, name = GENERATORS[kind].implementation.partition(":")
    return getattr(importlib.import_module(f"electra_tf.pretrain.{module}"), name)
