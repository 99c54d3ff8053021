# SPDX-License-Identifier: Apache-2.0
"""What encoder blocks have in common, and BERT's, named as in the original program.

Activations are matrices [B * L, H]: one plain matrix product per dense layer.

Shapes: B batch, L length, H hidden width.
"""

from __future__ import annotations

import math

import keras
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.model import target
from electra_tf.model.attention import attend, swap_heads
from electra_tf.model.dropout import dropout, fold_in
from electra_tf.model.layers import Dense, LayerNorm, activation, initializer


class Scope(keras.layers.Layer):
    """Layers under a common name; a layer norm is as wide as the output before it."""

    def __init__(self, name: str, dtype, **layers: keras.layers.Layer):
        super().__init__(name=name, dtype=dtype, autocast=False)
        for attribute, layer in layers.items():
            setattr(self, attribute, layer)

    def build(self, input_shape):
        shape = input_shape
        for layer in self._layers:
            layer.build(shape if isinstance(layer, LayerNorm) else input_shape)
            shape = None, getattr(layer, "units", shape[-1])


class Block(keras.layers.Layer):
    """A layer of the encoder; the contract of all kinds, and their dense layers.

    What must be known of a kind before TensorFlow is imported is its row in
    config/model.py. `build` takes no shape, `call` what `BertBlock.call` does.

    Attributes:
      attention, intermediate, output_layer: the scopes that a kind makes, each of its
        own layers.
      variant: blocks of one encoder with an equal one differ in their weights only.

    Args:
      config: the shape of the encoder.
      index: of the layer, from 0.
      direction: of the encoder; `score_bias` has it as well.
    """

    attention: Scope
    intermediate: Scope
    output_layer: Scope
    variant: tuple = ()

    def __init__(
        self, config: ModelConfig, index: int, direction="bidirectional", dtype=None
    ):
        super().__init__(name=f"layer_{index}", dtype=dtype, autocast=False)
        self.config = config
        self.direction = direction
        self.head_size = config.hidden_size // config.num_attention_heads
        self.activation = activation(config.hidden_act)

    def build(self, input_shape=None):
        width = self.config.hidden_size
        self.attention.build((None, width))
        self.intermediate.build((None, width))
        self.output_layer.build((None, self.config.intermediate_size))

    def _scope(self, name: str, **layers: keras.layers.Layer) -> Scope:
        return Scope(name, self.dtype_policy, **layers)

    def _norm(self) -> LayerNorm:
        return LayerNorm(self.config.kind, dtype=self.dtype_policy)

    def _dense(
        self, name: str = "dense", units: int | None = None, stddev: float | None = None
    ) -> Dense:
        return Dense(
            units or self.config.hidden_size,
            name=name,
            dtype=self.dtype_policy,
            use_bias=self.config.kind.has_biases,
            kernel_initializer=initializer(stddev or self.config.initializer_range),
        )

    def _self_attention(self) -> Scope:
        names = "query", "key", "value"
        return self._scope("self", **{name: self._dense(name) for name in names})

    def _heads(self, projection, x: tf.Tensor, length, scale=None) -> tf.Tensor:
        """The output of a dense layer for `x` [B * L, H]: [B, heads, L, head]."""
        heads = [self.config.num_attention_heads, self.head_size]
        if not target.is_for_tpu():
            x = projection(x) if scale is None else projection(x) * scale
            return swap_heads(tf.reshape(x, [-1, length, *heads]))
        width = x.shape[-1]
        kernel, *biases = (tf.cast(v.value, x.dtype) for v in projection.weights)
        x = tf.reshape(x, [-1, length, width])
        x = tf.einsum("blw,whd->bhld", x, tf.reshape(kernel, [width, *heads]))
        for bias in biases:
            x += tf.reshape(bias, [heads[0], 1, heads[1]])
        return x if scale is None else x * scale


class BertBlock(Block):
    """Self-attention and feed-forward, each followed by a layer norm (post-norm).

    On TPUs attention is [B, heads, L, head] up to the layer norm. With plain matrix
    products, they spend a seventh of a step on copying queries, keys, values and
    gradients to another layout.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        own = {"self_attention": self._self_attention()}
        own["output_layer"] = self._residual()
        self.attention = self._scope("attention", **own)
        wide = self._dense(units=self.config.intermediate_size)
        self.intermediate = self._scope("intermediate", dense=wide)
        self.output_layer = self._residual()

    def _residual(self) -> Scope:
        return self._scope("output", dense=self._dense(), layer_norm=self._norm())

    def call(
        self, x: tf.Tensor, score_bias: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """The next layer's input [B * L, H].

        Args:
          x: [B * L, H].
          score_bias: float32 [B, 1, 1, L] or [B, 1, L, L].
          seed: of dropout; None: no dropout.
        """
        seeds = fold_in(seed, 0), fold_in(seed, 1)
        context = self.attend(x, score_bias, fold_in(seeds[0], 0))
        own = self.attention.output_layer
        attended = self._add(own, context, x, fold_in(seeds[0], 1))
        wide = self.activation(self.intermediate.dense(attended))
        return self._add(self.output_layer, wide, attended, seeds[1])

    def attend(
        self, x: tf.Tensor, score_bias: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Self-attention: [B * L, H]; on TPUs [B, heads, L, head]."""
        config = self.config
        context = attend(
            *self._query_key_value(x, score_bias),
            score_bias,
            config.attention_probs_dropout_prob,
            seed,
        )
        if target.is_for_tpu():
            return context
        return tf.reshape(swap_heads(context), [-1, config.hidden_size])

    def _query_key_value(self, x: tf.Tensor, score_bias: tf.Tensor) -> list[tf.Tensor]:
        """Each [B, heads, L, head], the query scaled.

        The query has L / head_size fewer numbers than the scores.
        """
        length = score_bias.shape[-1] or tf.shape(score_bias)[-1]
        scale = tf.cast(1 / math.sqrt(self.head_size), self.compute_dtype)
        own = self.attention.self_attention
        query = self._heads(own.query, x, length, scale)
        return [query, *(self._heads(d, x, length) for d in (own.key, own.value))]

    def _add(
        self, own: Scope, x: tf.Tensor, skip: tf.Tensor, seed: tf.Tensor | None
    ) -> tf.Tensor:
        """Dense layer, dropout, skip connection, layer norm: "output" in the original.

        With `x` [B, heads, L, head], XLA fuses the following operations with the
        product if shapes stay [B, L, H].
        """
        rate = self.config.hidden_dropout_prob
        if x.shape.rank == 2:
            return own.layer_norm(dropout(own.dense(x), rate, seed) + skip)
        width = self.config.hidden_size
        kernel, bias = (tf.cast(v.value, x.dtype) for v in own.dense.weights)
        kernel = tf.reshape(kernel, [x.shape[1], x.shape[3], width])
        x = tf.einsum("bhld,hdw->blw", x, kernel) + bias
        x = dropout(x, rate, seed) + tf.reshape(skip, tf.shape(x))
        return tf.reshape(own.layer_norm(x), [-1, width])
