# SPDX-License-Identifier: Apache-2.0
"""What a generator is: the network that proposes tokens for the masked positions.

Sections 2 of the ELECTRA paper and 2.3 of the Electric paper. The kinds are in
`masked_lm_generator`, `two_tower_generator` and `fixed_generators`.

Shapes: B batch, L length, N masked positions, E embedding width, V vocabulary.
"""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable
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

    What must be known of a kind before TensorFlow is imported (hparams, names of
    weights, cost) is its row in config/generators.py.

    Attributes:
      scoring: the name in `pseudo_likelihood` of the scores that its own predictions
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


def generator_class(kind: str) -> type[Generator]:
    """The class of a key of `config.generators.GENERATORS`."""
    module, _, name = GENERATORS[kind].implementation.partition(":")
    return getattr(importlib.import_module(f"electra_tf.pretrain.{module}"), name)
