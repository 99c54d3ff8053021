# SPDX-License-Identifier: Apache-2.0
"""The text encoder: embeddings and a stack of transformer layers.

ELECTRA's encoder is BERT's (section 3.1 of the paper), with embeddings that may be
narrower than the hidden states.  Layer and variable names are the original program's,
so that `variable.path` is the name in its checkpoints.

Shapes: B batch, L length, E embedding width, H hidden width.  Inside the encoder
activations are matrices [B * L, H]: one plain matrix product per dense layer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import keras
import tensorflow as tf

from electra_tf.dropout import dropout, fold_in

LAYER_NORM_EPSILON = 1e-12

# Added to the attention scores of positions that may not be attended to.  Finite, as in
# the original: a query with no visible key attends to all of them.
MASKED_SCORE = -10000.0

DIRECTIONS = ("bidirectional", "ltr", "rtl")


class EncoderOutput(NamedTuple):
    """What a TextEncoder computes, all float [B, L, H]."""

    sequence_output: tf.Tensor
    all_layer_outputs: list[tf.Tensor]
    embedding_output: tf.Tensor  # the input of the first transformer layer


def gelu(x: tf.Tensor) -> tf.Tensor:
    """x * Phi(x) with the exact error function, not the tanh approximation."""
    half = tf.cast(0.5, x.dtype)
    return half * x * (1 + tf.math.erf(x * tf.cast(math.sqrt(0.5), x.dtype)))


def initializer(stddev: float) -> keras.initializers.Initializer:
    """Normal, cut at two standard deviations: BERT's initializer for most weights."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


class LayerNorm(keras.layers.Layer):
    """Layer normalisation over the last axis, with gain `gamma` and bias `beta`.

    Biased variance, epsilon 1e-12; computed in float32 whatever the compute type.
    """

    def __init__(self, name: str = "LayerNorm", **kwargs):
        super().__init__(name=name, autocast=False, **kwargs)

    def build(self, input_shape):
        # autocast: Keras would hand them out in the compute type.
        self.beta = self.add_weight(
            name="beta", shape=input_shape[-1:], initializer="zeros", autocast=False
        )
        self.gamma = self.add_weight(
            name="gamma", shape=input_shape[-1:], initializer="ones", autocast=False
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        y = tf.cast(x, tf.float32)
        centered = y - tf.reduce_mean(y, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        scale = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)
        return tf.cast(centered * scale * self.gamma + self.beta, x.dtype)


class Embeddings(keras.layers.Layer):
    """Sum of word, segment and position embeddings, normalised: [B, L] -> [B, L, E]."""

    def __init__(
        self,
        vocab_size: int,
        embedding_size: int,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        dropout_rate: float = 0.1,
        initializer_range: float = 0.02,
        name: str = "embeddings",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.vocab_size = vocab_size
        self.embedding_size = embedding_size
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.dropout_rate = dropout_rate
        self.initializer_range = initializer_range
        self.layer_norm = LayerNorm(dtype=self.dtype_policy)

    def build(self, input_shape=None):
        def table(name, rows):
            return self.add_weight(
                name=name,
                shape=(rows, self.embedding_size),
                initializer=initializer(self.initializer_range),
                autocast=False,
            )

        self.word_embeddings = table("word_embeddings", self.vocab_size)
        self.token_type_embeddings = table(
            "token_type_embeddings", self.type_vocab_size
        )
        self.position_embeddings = table(
            "position_embeddings", self.max_position_embeddings
        )
        self.layer_norm.build((None, self.embedding_size))

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        length = tf.shape(input_ids)[1]
        words = tf.gather(self.word_embeddings.value, input_ids)
        segments = tf.gather(self.token_type_embeddings.value, segment_ids)
        positions = self.position_embeddings.value[:length]
        embedded = self.layer_norm(words + segments + positions)  # [B, L, E]
        embedded = tf.cast(embedded, self.compute_dtype)
        return dropout(embedded, self.dropout_rate, seed)

    def get_config(self):
        return super().get_config() | {
            "vocab_size": self.vocab_size,
            "embedding_size": self.embedding_size,
            "max_position_embeddings": self.max_position_embeddings,
            "type_vocab_size": self.type_vocab_size,
            "dropout_rate": self.dropout_rate,
            "initializer_range": self.initializer_range,
        }


def _dense(units: int, name: str, layer: keras.layers.Layer, stddev: float):
    return keras.layers.Dense(
        units,
        name=name,
        dtype=layer.dtype_policy,
        kernel_initializer=initializer(stddev),
    )


class SelfAttention(keras.layers.Layer):
    """Multi-head scaled dot-product attention: [B * L, H] -> [B * L, H]."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        dropout_rate: float,
        initializer_range: float,
        name: str = "self",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.num_heads = num_heads
        self.head_size = head_size
        self.dropout_rate = dropout_rate
        width = num_heads * head_size
        self.query = _dense(width, "query", self, initializer_range)
        self.key = _dense(width, "key", self, initializer_range)
        self.value = _dense(width, "value", self, initializer_range)

    def build(self, input_shape):
        for projection in (self.query, self.key, self.value):
            projection.build(input_shape)

    def probabilities(self, x: tf.Tensor, score_bias: tf.Tensor) -> tf.Tensor:
        """Attention of each query to each key, float32 [B, heads, L, L]."""
        length = score_bias.shape[-1] or tf.shape(score_bias)[-1]
        scale = tf.cast(1 / math.sqrt(self.head_size), self.compute_dtype)
        # Scaling the query instead of the scores touches L / head_size fewer numbers.
        query = self._split_heads(self.query(x) * scale, length)
        key = self._split_heads(self.key(x), length)
        scores = tf.matmul(query, key, transpose_b=True)  # [B, heads, L, L]
        return tf.nn.softmax(tf.cast(scores, tf.float32) + score_bias)

    def call(
        self, x: tf.Tensor, score_bias: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        length = score_bias.shape[-1] or tf.shape(score_bias)[-1]
        probs = tf.cast(self.probabilities(x, score_bias), self.compute_dtype)
        probs = dropout(probs, self.dropout_rate, seed)
        value = self._split_heads(self.value(x), length)
        context = tf.matmul(probs, value)  # [B, heads, L, head]
        context = tf.transpose(context, [0, 2, 1, 3])
        return tf.reshape(context, [-1, self.num_heads * self.head_size])

    def _split_heads(self, x: tf.Tensor, length) -> tf.Tensor:
        x = tf.reshape(x, [-1, length, self.num_heads, self.head_size])
        return tf.transpose(x, [0, 2, 1, 3])  # [B, heads, L, head]


class Residual(keras.layers.Layer):
    """Dense layer, dropout, skip connection, layer norm: "output" in the original."""

    def __init__(
        self,
        width: int,
        dropout_rate: float,
        initializer_range: float,
        name: str = "output",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.width = width
        self.dropout_rate = dropout_rate
        self.dense = _dense(width, "dense", self, initializer_range)
        self.layer_norm = LayerNorm(dtype=self.dtype_policy)

    def build(self, input_shape):
        self.dense.build(input_shape)
        self.layer_norm.build((None, self.width))

    def call(
        self, x: tf.Tensor, skip: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        return self.layer_norm(dropout(self.dense(x), self.dropout_rate, seed) + skip)


class Attention(keras.layers.Layer):
    """Self-attention and its residual connection."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        hidden_dropout: float,
        attention_dropout: float,
        initializer_range: float,
        name: str = "attention",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.self_attention = SelfAttention(
            num_heads,
            hidden_size // num_heads,
            attention_dropout,
            initializer_range,
            dtype=self.dtype_policy,
        )
        self.output_layer = Residual(
            hidden_size, hidden_dropout, initializer_range, dtype=self.dtype_policy
        )

    def build(self, input_shape):
        self.self_attention.build(input_shape)
        self.output_layer.build(input_shape)

    def call(self, x, score_bias, seed=None):
        context = self.self_attention(x, score_bias, fold_in(seed, 0))
        return self.output_layer(context, x, fold_in(seed, 1))


class Intermediate(keras.layers.Layer):
    """The wide half of the feed-forward block."""

    def __init__(
        self,
        width: int,
        initializer_range: float,
        name: str = "intermediate",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.dense = _dense(width, "dense", self, initializer_range)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, x):
        return gelu(self.dense(x))


class TransformerLayer(keras.layers.Layer):
    """Self-attention and feed-forward, each followed by its norm (post-norm)."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(autocast=False, **kwargs)
        self.intermediate_size = intermediate_size
        self.attention = Attention(
            hidden_size,
            num_heads,
            hidden_dropout,
            attention_dropout,
            initializer_range,
            dtype=self.dtype_policy,
        )
        self.intermediate = Intermediate(
            intermediate_size, initializer_range, dtype=self.dtype_policy
        )
        self.output_layer = Residual(
            hidden_size, hidden_dropout, initializer_range, dtype=self.dtype_policy
        )

    def build(self, input_shape):
        self.attention.build(input_shape)
        self.intermediate.build(input_shape)
        self.output_layer.build((None, self.intermediate_size))

    def call(self, x, score_bias, seed=None):
        attended = self.attention(x, score_bias, fold_in(seed, 0))
        wide = self.intermediate(attended)
        return self.output_layer(wide, attended, fold_in(seed, 1))


def attention_bias(input_mask: tf.Tensor, direction: str) -> tf.Tensor:
    """What is added to the scores: [B, 1, 1, L], or [B, 1, L, L] for one direction.

    "ltr" lets a position see itself and what is before it, "rtl" itself and after it.
    """
    visible = tf.cast(input_mask, tf.float32)[:, None, None, :]
    if direction != "bidirectional":
        length = input_mask.shape[1] or tf.shape(input_mask)[1]
        keep = (-1, 0) if direction == "ltr" else (0, -1)
        visible *= tf.linalg.band_part(tf.ones([length, length]), *keep)
    return (1.0 - visible) * MASKED_SCORE


class Encoder(keras.layers.Layer):
    """A stack of transformer layers over [B, L, H], looking in one or two directions.

    Args:
      direction: "bidirectional", "ltr" (left to right) or "rtl".
    """

    def __init__(
        self,
        num_layers: int,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        initializer_range: float = 0.02,
        direction: str = "bidirectional",
        name: str = "encoder",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        if direction not in DIRECTIONS:
            raise ValueError(f"direction is {direction!r}; it is one of {DIRECTIONS}")
        if hidden_size % num_heads:
            raise ValueError(
                f"hidden_size {hidden_size} is not divisible by num_heads {num_heads}"
            )
        self.settings = {
            "hidden_size": hidden_size,
            "num_heads": num_heads,
            "intermediate_size": intermediate_size,
            "hidden_dropout": hidden_dropout,
            "attention_dropout": attention_dropout,
            "initializer_range": initializer_range,
        }
        self.hidden_size = hidden_size
        self.direction = direction
        self.transformer_layers = [
            TransformerLayer(
                name=f"layer_{i}", dtype=self.dtype_policy, **self.settings
            )
            for i in range(num_layers)
        ]

    def build(self, input_shape=None):
        for layer in self.transformer_layers:
            layer.build((None, self.hidden_size))

    def call(
        self,
        embedded: tf.Tensor,
        input_mask: tf.Tensor,
        seed: tf.Tensor | None = None,
    ) -> list[tf.Tensor]:
        """Returns the output of every layer, each [B, L, H]."""
        shape = tf.shape(embedded)
        score_bias = attention_bias(input_mask, self.direction)
        x = tf.reshape(embedded, [-1, self.hidden_size])
        outputs = []
        for i, layer in enumerate(self.transformer_layers):
            x = layer(x, score_bias, fold_in(seed, i))
            outputs.append(tf.reshape(x, shape))
        return outputs

    def get_config(self):
        return (
            super().get_config()
            | self.settings
            | {
                "num_layers": len(self.transformer_layers),
                "direction": self.direction,
            }
        )


class TextEncoder(keras.layers.Layer):
    """Embeddings and encoder under one name: "electra", "generator", ...

    Args:
      config: a ModelConfig (sizes and dropout rates).
      embedding_size: width of the embeddings; where it is not the hidden size, a
        dense layer `embeddings_project` lies between them.
      embeddings: an Embeddings layer to share; None makes an own one.
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
        self.hidden_size = config.hidden_size
        self.embedding_size = embedding_size
        self.owns_embeddings = embeddings is None
        self.embeddings = embeddings or make_embeddings(
            config, embedding_size, dtype=self.dtype_policy
        )
        self.embeddings_project = None
        if embedding_size != config.hidden_size:
            self.embeddings_project = keras.layers.Dense(
                config.hidden_size, name="embeddings_project", dtype=self.dtype_policy
            )
        self.encoder = Encoder(
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
            config.hidden_dropout_prob,
            config.attention_probs_dropout_prob,
            config.initializer_range,
            direction,
            dtype=self.dtype_policy,
        )

    def build(self, input_shape=None):
        if not self.embeddings.built:
            self.embeddings.build(None)
        if self.embeddings_project is not None:
            self.embeddings_project.build((None, self.embedding_size))
        self.encoder.build(None)

    def call(
        self,
        input_ids: tf.Tensor,
        input_mask: tf.Tensor,
        segment_ids: tf.Tensor,
        seed: tf.Tensor | None = None,
    ) -> EncoderOutput:
        """Encodes int32 [B, L] inputs; `seed` (int32 [2]) switches dropout on."""
        embedded = self.embeddings(input_ids, segment_ids, fold_in(seed, 0))
        if self.embeddings_project is not None:
            shape = tf.shape(input_ids)
            flat = tf.reshape(embedded, [-1, self.embedding_size])
            flat = self.embeddings_project(flat)
            embedded = tf.reshape(flat, [shape[0], shape[1], self.hidden_size])
        outputs = self.encoder(embedded, input_mask, fold_in(seed, 1))
        return EncoderOutput(outputs[-1] if outputs else embedded, outputs, embedded)


def make_embeddings(config, embedding_size: int, dtype=None) -> Embeddings:
    """The Embeddings that a ModelConfig describes."""
    return Embeddings(
        config.vocab_size,
        embedding_size,
        config.max_position_embeddings,
        config.type_vocab_size,
        config.hidden_dropout_prob,
        config.initializer_range,
        dtype=dtype,
    )
