# SPDX-License-Identifier: Apache-2.0
"""The text encoder: embeddings and a stack of transformer layers.

ELECTRA's encoder is BERT's (section 3.1 of the paper), with embeddings that may be
narrower than the hidden states. Layer and variable names are the original program's, so
`variable.path` is the name in its checkpoints.

Shapes: B batch, L length, E embedding width, H hidden width. Inside the encoder
activations are matrices [B * L, H]: one plain matrix product per dense layer.
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.config.hparams import without_left
from electra_tf.config.model import BlockKind, ModelConfig
from electra_tf.errors import UserError
from electra_tf.model.attention import attention_bias
from electra_tf.model.blocks import Block
from electra_tf.model.dropout import dropout, fold_in, tag_words
from electra_tf.model.layers import LayerNorm, initializer


class EncoderOutput(NamedTuple):
    """The outputs of a TextEncoder, all float [B, L, H]."""

    sequence_output: tf.Tensor
    all_layer_outputs: list[tf.Tensor]
    embedding_output: tf.Tensor  # the input of the first transformer layer


class Embeddings(keras.layers.Layer):
    """Sum of word, segment and position embeddings, normalised: [B, L] -> [B, L, E].

    Without the latter two (`BlockKind.has_tables`): the word embeddings as they are.
    """

    def __init__(
        self, config: ModelConfig, embedding_size: int, name="embeddings", **kwargs
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.config = config
        self.embedding_size = embedding_size
        if config.kind.has_tables:
            self.layer_norm = LayerNorm(dtype=self.dtype_policy)

    def build(self, input_shape=None):
        self.word_embeddings = self._add("word_embeddings", self.config.vocab_size)
        if not self.config.kind.has_tables:
            return
        self.token_type_embeddings = self._add(
            "token_type_embeddings", self.config.type_vocab_size
        )
        self.position_embeddings = self._add(
            "position_embeddings", self.config.max_position_embeddings
        )
        self.layer_norm.build((None, self.embedding_size))

    def _add(self, name: str, rows: int) -> keras.Variable:
        shape = rows, self.embedding_size
        start = initializer(self.config.initializer_range)
        return self.add_weight(
            name=name, shape=shape, initializer=start, autocast=False
        )

    def table(self, name: str) -> tf.Tensor:
        """One of the three tables by name, float32 [rows, E]."""
        return getattr(self, name).value

    def rows(self, name: str, ids: tf.Tensor) -> tf.Tensor:
        """Rows of a table: int32 [...] -> float32 [..., E]."""
        return tf.gather(self.table(name), ids)

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        length = tf.shape(input_ids)[1]
        words = self.rows("word_embeddings", input_ids)
        if not self.config.kind.has_tables:
            return tf.cast(words, self.compute_dtype)
        segments = self.rows("token_type_embeddings", segment_ids)
        positions = self.table("position_embeddings")[:length]
        embedded = self.layer_norm(words + segments + positions)  # [B, L, E]
        embedded = tf.cast(embedded, self.compute_dtype)
        return dropout(embedded, self.config.hidden_dropout_prob, seed)


RESIDUAL = "_residual"  # suffix of the variables of DisentangledEmbeddings


class DisentangledEmbeddings(Embeddings):
    """Embeddings whose tables are those of another layer plus a trained residual.

    The discriminator's embeddings in gradient-disentangled embedding sharing
    (DeBERTaV3, section 3.2). No gradient flows to the other layer. Residuals start at
    zero; the layer norm is not shared.

    Args:
      base: the generator's Embeddings.
    """

    def __init__(self, base: Embeddings, **kwargs):
        super().__init__(base.config, base.embedding_size, **kwargs)
        self._base = lambda: base  # Keras would also track its weights here.

    @property
    def base(self) -> Embeddings:
        """The layer with the shared tables."""
        return self._base()

    def _add(self, name, rows):
        shape = rows, self.embedding_size
        name += RESIDUAL
        return self.add_weight(
            name=name, shape=shape, initializer="zeros", autocast=False
        )

    def table(self, name):
        return tf.stop_gradient(self.base.table(name)) + super().table(name)

    def rows(self, name, ids):
        # Gathers, then adds: adding the tables would cost a pass over the vocabulary.
        return tf.stop_gradient(self.base.rows(name, ids)) + tf.gather(
            super().table(name), ids
        )


class Encoder(keras.layers.Layer):
    """A stack of transformer layers over [B, L, H], attending in one or two directions.

    Args:
      direction: "bidirectional", "ltr" (left to right) or "rtl".
    """

    def __init__(
        self, config: ModelConfig, direction="bidirectional", name="encoder", **kwargs
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.hidden_size = config.hidden_size
        self.direction = direction
        block = block_class(config.kind)
        self.transformer_layers = [
            block(config, i, direction, dtype=self.dtype_policy)
            for i in range(config.num_hidden_layers)
        ]
        # As an attribute, SavedModels would contain its traces.
        traced = tf.function(self._layer_with, autograph=False)
        self._call_with = lambda *args: traced(*args)

    def build(self, input_shape=None):
        for layer in self.transformer_layers:
            layer.build((None, self.hidden_size))

    def _layer_with(self, variant, weights, x, score_bias, seed, tag):
        """Runs the traced layer of a variant with these weights."""
        layers = self.transformer_layers
        of_variant = (layer for layer in layers if layer.variant == variant)
        first = next(layer for layer in of_variant if not layer.non_trainable_variables)
        layer_seed = fold_in(seed, tag)
        return first.stateless_call(weights, [], x, score_bias, layer_seed)[0]

    def _call_layer(self, number, x, score_bias, seed):
        # Layers of a variant differ only in their weights. The graph of a training step
        # therefore has one trace, including the backward pass, for all of them.
        layer = self.transformer_layers[number]
        if seed is None or not tf.inside_function() or layer.non_trainable_variables:
            return layer(x, score_bias, fold_in(seed, number))
        weights = [tf.convert_to_tensor(v.value) for v in layer.trainable_variables]
        tag = tf.constant(tag_words(number))
        return self._call_with(layer.variant, weights, x, score_bias, seed, tag)

    def call(
        self, embedded: tf.Tensor, input_mask: tf.Tensor, seed: tf.Tensor | None = None
    ) -> list[tf.Tensor]:
        """Returns the output of every layer, each [B, L, H]."""
        shape = tf.shape(embedded)
        score_bias = attention_bias(input_mask, self.direction)
        x = tf.reshape(embedded, [-1, self.hidden_size])
        outputs = []
        for number in range(len(self.transformer_layers)):
            x = self._call_layer(number, x, score_bias, seed)
            outputs.append(tf.reshape(x, shape))
        return outputs


@keras.saving.register_keras_serializable("electra_tf")
class TextEncoder(keras.layers.Layer):
    """Embeddings and encoder under one name: "electra", "generator", ...

    Args:
      config: a ModelConfig (sizes and dropout rates), or its fields in a dict.
      embedding_size: width of the embeddings; if it is not the hidden size, a dense
        layer `embeddings_project` follows.
      embeddings: an Embeddings layer to share; by default a new one.
      direction: see Encoder.
    """

    def __init__(
        self,
        config,
        embedding_size: int,
        embeddings: Embeddings | None = None,
        direction: str = "bidirectional",
        name: str = "electra",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        if self.variable_dtype != "float32":
            policy = self.dtype_policy.name
            raise UserError(
                f"Keras's dtype policy is {policy}, but weights are trained in float32."
                f'\nCall keras.config.set_dtype_policy("mixed_{policy}") before.'
            )
        if isinstance(config, dict):
            config = ModelConfig(**without_left(config))
        self.hidden_size = config.hidden_size
        self.config = config
        self.embedding_size = embedding_size
        self.embeddings = embeddings or Embeddings(
            config, embedding_size, dtype=self.dtype_policy
        )
        self.embeddings_project = None
        if embedding_size != config.hidden_size:
            self.embeddings_project = keras.layers.Dense(
                config.hidden_size,
                use_bias=config.kind.has_biases,
                name="embeddings_project",
                dtype=self.dtype_policy,
            )
        self.norms = []  # of the stack's input and output
        if config.kind.is_pre_norm and config.num_hidden_layers:
            self.norms = [
                LayerNorm(config.kind, f"{name}_LayerNorm", dtype=self.dtype_policy)
                for name in ("embeddings", "final")
            ]
        self.encoder = Encoder(config, direction, dtype=self.dtype_policy)

    def build(self, input_shape=None):
        if not self.embeddings.built:
            self.embeddings.build(None)
        if self.embeddings_project is not None:
            self.embeddings_project.build((None, self.embedding_size))
        for norm in self.norms:
            norm.build((None, self.hidden_size))
        self.encoder.build(None)

    def call(
        self,
        input_ids: tf.Tensor | dict[str, tf.Tensor],
        input_mask: tf.Tensor | None = None,
        segment_ids: tf.Tensor | None = None,
        seed: tf.Tensor | None = None,
        training: bool = False,
    ) -> EncoderOutput:
        """Encodes texts.

        Args:
          input_ids: int32 [B, L]; or a dict of all three, with these names or those of
            KerasHub (token_ids, padding_mask, segment_ids).
          input_mask: [B, L], 0 at padding; None: no padding.
          segment_ids: int32 [B, L]; None: one segment.
          seed: int32 [2], of dropout; None disables it.
          training: draws a seed if there is none.
        """
        if isinstance(input_ids, dict):
            named = input_ids
            input_ids = named.get("input_ids", named.get("token_ids"))
            input_mask = named.get("input_mask", named.get("padding_mask"))
            segment_ids = named.get("segment_ids")
        if input_mask is None:
            input_mask = tf.ones_like(input_ids)
        if segment_ids is None:
            segment_ids = tf.zeros_like(input_ids)
        if training and seed is None:
            seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
        embedded = self.embeddings(input_ids, segment_ids, fold_in(seed, 0))
        if self.embeddings_project is not None:
            shape = tf.shape(input_ids)
            flat = tf.reshape(embedded, [-1, self.embedding_size])
            flat = self.embeddings_project(flat)
            embedded = tf.reshape(flat, [shape[0], shape[1], self.hidden_size])
        if self.norms:
            embedded = self.norms[0](embedded)
            rate = self.config.hidden_dropout_prob
            embedded = dropout(embedded, rate, fold_in(seed, 0))
        outputs = self.encoder(embedded, input_mask, fold_in(seed, 1))
        if self.norms:
            outputs[-1] = self.norms[1](outputs[-1])
        return EncoderOutput(outputs[-1] if outputs else embedded, outputs, embedded)

    def get_config(self):
        if type(self.embeddings) is not Embeddings:
            raise ValueError(
                "The table of a discriminator in training is a residual, which is not "
                "saved by itself: save the ElectraPretrainer."
            )
        return super().get_config() | {
            "config": dataclasses.asdict(self.config),
            "embedding_size": self.embedding_size,
            "direction": self.encoder.direction,
        }


def block_class(kind: BlockKind) -> type[Block]:
    """The class of a row of `config.model.BLOCKS`."""
    module, _, name = kind.implementation.partition(":")
    return getattr(importlib.import_module(module, "electra_tf.model"), name)
