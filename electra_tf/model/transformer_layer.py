# SPDX-License-Identifier: Apache-2.0
"""A transformer layer and its parts, named as in the original program.

Activations are matrices [B * L, H]: one plain matrix product per dense layer.

Shapes: B batch, L length, H hidden width.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import keras
import tensorflow as tf

from electra_tf.model import target
from electra_tf.model.dropout import dropout, fold_in

LAYER_NORM_EPSILON = 1e-12
_Class = TypeVar("_Class", bound=type)


def serializable(cls: _Class) -> _Class:
    """Registers a layer with Keras; its config is the arguments of its constructor.

    Arguments may be layers and dataclasses.
    """
    make = cls.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def construct(self, *args, **kwargs):
        if type(self) is cls:
            arguments = signature.bind(self, *args, **kwargs).arguments
            arguments |= arguments.pop("kwargs", {})
            # Keras must not track layers among the arguments.
            object.__setattr__(self, "_arguments", dict(list(arguments.items())[1:]))
        make(self, *args, **kwargs)

    def get_config(self) -> dict[str, Any]:
        config = {name: _saved(value) for name, value in self._arguments.items()}
        return config | keras.layers.Layer.get_config(self)

    def from_config(cls, config: dict[str, Any]):
        dtype = {"dtype": config["dtype"]}
        return cls(**{name: _restored(v) for name, v in config.items()} | dtype)

    construct.__signature__ = signature  # Keras reads it.
    cls.__init__, cls.get_config = construct, get_config
    cls.from_config = classmethod(from_config)
    return keras.saving.register_keras_serializable("electra_tf")(cls)


def _saved(value: Any) -> Any:
    if isinstance(value, keras.layers.Layer):
        return keras.saving.serialize_keras_object(value)
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value


def _restored(value: Any) -> Any:
    is_layer = isinstance(value, dict) and "registered_name" in value
    return keras.saving.deserialize_keras_object(value) if is_layer else value


def gelu(x: tf.Tensor) -> tf.Tensor:
    """x * Phi(x) with the exact error function, not the tanh approximation."""
    half = tf.cast(0.5, x.dtype)
    return half * x * (1 + tf.math.erf(x * tf.cast(math.sqrt(0.5), x.dtype)))


def gelu_tanh(x: tf.Tensor) -> tf.Tensor:
    """GELU's approximation by tanh, as in some other programs."""
    return tf.nn.gelu(x, approximate=True)


def activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """The function for a name of `hidden_act`; the original has no gelu_tanh.

    Raises ValueError for an unknown name.
    """
    functions = {
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "relu": tf.nn.relu,
        "tanh": tf.tanh,
        "linear": tf.identity,
    }
    if name not in functions:
        raise ValueError(f"hidden_act {name!r} is not one of {', '.join(functions)}")
    return functions[name]


def initializer(stddev: float) -> keras.initializers.Initializer:
    """BERT's initializer for most weights: normal, truncated at two deviations."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


def softmax(scores: tf.Tensor, dtype: tf.DType | str) -> tf.Tensor:
    """The softmax over the last axis, computed in float32 and returned in `dtype`.

    The gradient is computed from the result in `dtype`. For long sequences,
    probabilities in float32 would need most of the memory of a step.

    Args:
      scores: float32.
    """
    if tf.as_dtype(dtype) == tf.float32:
        return tf.nn.softmax(scores)

    @tf.custom_gradient
    def run(scores):
        probs = tf.cast(tf.nn.softmax(scores), dtype)

        def gradient(d_probs):
            p, d = tf.cast(probs, tf.float32), tf.cast(d_probs, tf.float32)
            return p * (d - tf.reduce_sum(p * d, axis=-1, keepdims=True))

        return probs, gradient

    return run(scores)


@serializable
class LayerNorm(keras.layers.Layer):
    """Layer normalisation over the last axis, with gain `gamma` and bias `beta`.

    Biased variance, epsilon 1e-12; computed in float32 for all compute types.
    """

    def __init__(self, name: str = "LayerNorm", **kwargs):
        super().__init__(name=name, autocast=False, **kwargs)

    def build(self, input_shape):
        # autocast=False: Keras would cast them to the compute type.
        self.beta = self.add_weight(
            name="beta", shape=input_shape[-1:], initializer="zeros", autocast=False
        )
        self.gamma = self.add_weight(
            name="gamma", shape=input_shape[-1:], initializer="ones", autocast=False
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if target.is_for_tpu():
            return _normalized(x, self.gamma.value, self.beta.value)
        y = tf.cast(x, tf.float32)
        centered = y - tf.reduce_mean(y, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        scale = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)
        return tf.cast(centered * scale * self.gamma + self.beta, x.dtype)


@tf.custom_gradient
def _normalized(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor):
    """LayerNorm in one pass over `x`, and its gradient in two.

    In LayerNorm each sum waits for the previous one, which takes a pass for each.
    Memory traffic limits the speed of a TPU.
    """
    y = tf.cast(x, tf.float32)
    mean = tf.reduce_mean(y, axis=-1, keepdims=True)
    square = tf.reduce_mean(tf.square(y), axis=-1, keepdims=True)
    variance = tf.maximum(square - tf.square(mean), 0.0)
    scale = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)

    def gradient(dy):
        dy = tf.cast(dy, tf.float32)
        normal = (tf.cast(x, tf.float32) - mean) * scale
        rows = list(range(x.shape.rank - 1))
        scaled = dy * gamma
        along = tf.reduce_mean(scaled * normal, axis=-1, keepdims=True)
        level = tf.reduce_mean(scaled, axis=-1, keepdims=True)
        dx = (scaled - level - normal * along) * scale
        d_gamma = tf.reduce_sum(dy * normal, rows)
        return tf.cast(dx, x.dtype), d_gamma, tf.reduce_sum(dy, rows)

    return tf.cast((y - mean) * scale * gamma + beta, x.dtype), gradient


@keras.saving.register_keras_serializable("electra_tf")
class _Dense(keras.layers.Dense):
    """A Dense layer that XLA compiles faster, bitwise the same.

    TensorFlow lowers the gradient of its BiasAdd through MLIR, 6 ms for each of the 144
    in a small model.
    """

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if not target.compiled_for():
            return super().call(x)
        return tf.matmul(x, self.kernel) + tf.convert_to_tensor(self.bias)


def _dense(units: int, name: str, layer: keras.layers.Layer, stddev: float):
    return _Dense(
        units,
        name=name,
        dtype=layer.dtype_policy,
        kernel_initializer=initializer(stddev),
    )


@tf.custom_gradient
def _swap_heads(x: tf.Tensor):
    """[B, L, heads, head] -> [B, heads, L, head] and back.

    Has its own gradient because that of tf.transpose reads the order of the axes from
    the forward pass. XLA would evaluate the whole forward function at compile time for
    these four numbers.
    """
    return tf.transpose(x, [0, 2, 1, 3]), lambda dy: tf.transpose(dy, [0, 2, 1, 3])


@serializable
class SelfAttention(keras.layers.Layer):
    """Multi-head scaled dot-product attention: [B * L, H] -> [B * L, H].

    On TPUs -> [B, heads, L, head]. With plain matrix products, TPUs spend a seventh of
    a step on copying queries, keys, values and gradients to another layout.
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        dropout_rate: float,
        initializer_range: float,
        chunk_size: int = 0,
        name: str = "self",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.num_heads = num_heads
        self.head_size = head_size
        self.dropout_rate = dropout_rate
        self.chunk_size = chunk_size
        width = num_heads * head_size
        self.query = _dense(width, "query", self, initializer_range)
        self.key = _dense(width, "key", self, initializer_range)
        self.value = _dense(width, "value", self, initializer_range)

    def build(self, input_shape):
        for projection in (self.query, self.key, self.value):
            projection.build(input_shape)

    def probabilities(self, x: tf.Tensor, score_bias: tf.Tensor) -> tf.Tensor:
        """Attention of each query to each key [B, heads, L, L]."""
        length = score_bias.shape[-1] or tf.shape(score_bias)[-1]
        query, key = self._query_and_key(x, length)
        scores = tf.matmul(query, key, transpose_b=True)  # [B, heads, L, L]
        return softmax(tf.cast(scores, tf.float32) + score_bias, self.compute_dtype)

    def call(
        self, x: tf.Tensor, score_bias: tf.Tensor, seed: tf.Tensor | None = None
    ) -> tf.Tensor:
        length = score_bias.shape[-1] or tf.shape(score_bias)[-1]
        if self.chunk_size and (score_bias.shape[-1] or math.inf) > self.chunk_size:
            qkv = *self._query_and_key(x, length), self._heads(self.value, x, length)
            settings = self.chunk_size, self.dropout_rate, seed
            context = _attend_in_chunks(*qkv, score_bias, *settings)
        else:
            probs = self.probabilities(x, score_bias)
            probs = dropout(probs, self.dropout_rate, seed)
            value = self._heads(self.value, x, length)
            context = tf.matmul(probs, value)  # [B, heads, L, head]
        if target.is_for_tpu():
            return context
        context = _swap_heads(context)
        return tf.reshape(context, [-1, self.num_heads * self.head_size])

    def _query_and_key(self, x: tf.Tensor, length) -> tuple[tf.Tensor, tf.Tensor]:
        """Both [B, heads, L, head], the query scaled.

        The query has L / head_size fewer numbers than the scores.
        """
        scale = tf.cast(1 / math.sqrt(self.head_size), self.compute_dtype)
        query = self._heads(self.query, x, length, scale)
        return query, self._heads(self.key, x, length)

    def _heads(self, projection, x: tf.Tensor, length, scale=None) -> tf.Tensor:
        """The output of a dense layer for `x` [B * L, H]: [B, heads, L, head]."""
        heads = [self.num_heads, self.head_size]
        if not target.is_for_tpu():
            x = projection(x) if scale is None else projection(x) * scale
            return _swap_heads(tf.reshape(x, [-1, length, *heads]))
        width = x.shape[-1]
        kernel, bias = (tf.cast(v.value, x.dtype) for v in projection.weights)
        x = tf.reshape(x, [-1, length, width])
        x = tf.einsum("blw,whd->bhld", x, tf.reshape(kernel, [width, *heads]))
        x += tf.reshape(bias, [heads[0], 1, heads[1]])
        return x if scale is None else x * scale


@serializable
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
        if x.shape.rank == 4:
            return self._project_heads(x, skip, seed)
        return self.layer_norm(dropout(self.dense(x), self.dropout_rate, seed) + skip)

    def _project_heads(self, x, skip, seed) -> tf.Tensor:
        """The same for `x` [B, heads, L, head]: [B * L, H].

        XLA fuses the following operations with the product if shapes stay [B, L, H].
        """
        kernel, bias = (tf.cast(v.value, x.dtype) for v in self.dense.weights)
        kernel = tf.reshape(kernel, [x.shape[1], x.shape[3], self.width])
        x = tf.einsum("bhld,hdw->blw", x, kernel) + bias
        x = dropout(x, self.dropout_rate, seed) + tf.reshape(skip, tf.shape(x))
        return tf.reshape(self.layer_norm(x), [-1, self.width])


@serializable
class Attention(keras.layers.Layer):
    """Self-attention and its residual connection."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        hidden_dropout: float,
        attention_dropout: float,
        initializer_range: float,
        attention_chunk_size: int = 0,
        name: str = "attention",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.self_attention = SelfAttention(
            num_heads,
            hidden_size // num_heads,
            attention_dropout,
            initializer_range,
            attention_chunk_size,
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


@serializable
class Intermediate(keras.layers.Layer):
    """The wide half of the feed-forward block."""

    def __init__(
        self,
        width: int,
        initializer_range: float,
        hidden_act: str = "gelu",
        name: str = "intermediate",
        **kwargs,
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.activation = activation(hidden_act)
        self.dense = _dense(width, "dense", self, initializer_range)

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, x):
        return self.activation(self.dense(x))


@serializable
class TransformerLayer(keras.layers.Layer):
    """Self-attention and feed-forward, each followed by a layer norm (post-norm)."""

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        intermediate_size: int,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        initializer_range: float = 0.02,
        hidden_act: str = "gelu",
        attention_chunk_size: int = 0,
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
            attention_chunk_size,
            dtype=self.dtype_policy,
        )
        self.intermediate = Intermediate(
            intermediate_size, initializer_range, hidden_act, dtype=self.dtype_policy
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


class _Chunks(NamedTuple):
    """Rows of [B, heads, L, n], `size` at a time."""

    length: int | tf.Tensor
    size: int | tf.Tensor

    @property
    def count(self) -> int | tf.Tensor:
        return -(-self.length // self.size)

    def padded(self, x: tf.Tensor) -> tf.Tensor:
        """Pads the rows with zeros to a multiple of the chunk size."""
        missing = self.count * self.size - self.length
        return tf.pad(x, [[0, 0], [0, 0], [0, missing], [0, 0]])

    def at(self, x: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        """Chunk `i` of a padded tensor."""
        sizes = tf.concat([tf.shape(x)[:2], [self.size], tf.shape(x)[3:]], 0)
        return tf.slice(x, [0, 0, i * self.size, 0], sizes)

    def loop(self, body, dtype: tf.DType, *start: tf.Tensor) -> list[tf.Tensor]:
        """Loops `body` over (i, chunks, *start); joins the chunks."""
        chunks = tf.TensorArray(dtype, self.count)
        _, chunks, *others = tf.while_loop(
            lambda i, *_: i < self.count,
            body,
            (0, chunks, *start),
            parallel_iterations=1,
        )
        x = tf.transpose(chunks.stack(), [1, 2, 0, 3, 4])
        shape = tf.concat([tf.shape(x)[:2], [-1], tf.shape(x)[4:]], 0)
        return [tf.reshape(x, shape)[:, :, : self.length], *others]


def _attend_in_chunks(
    query: tf.Tensor,
    key: tf.Tensor,
    value: tf.Tensor,
    score_bias: tf.Tensor,
    chunk_size: int,
    rate: float,
    seed: tf.Tensor | None,
) -> tf.Tensor:
    """Attention in limited memory, for a chunk of queries at a time.

    For long sequences, the probabilities of all queries, float32 [B, heads, L, L],
    would need most of the memory of a step. The backward pass computes them again.

    Returns: the values, weighted by the softmax of the scores: [B, heads, L, head].

    Args:
      query, key, value: float [B, heads, L, head]; the query is scaled.
      score_bias: float32 [B, 1, 1, L] or [B, 1, L, L], without a gradient.
      chunk_size: number of queries per chunk.
      rate, seed: of the dropout of the probabilities, see `dropout`.
    """
    dtype = query.dtype
    chunks = _Chunks(query.shape[2], chunk_size)
    if query.shape[2] is None:
        length = tf.shape(query)[2]
        chunks = _Chunks(length, tf.minimum(length, chunk_size))
    has_query_axis = score_bias.shape[2] != 1
    bias = chunks.padded(score_bias) if has_query_axis else score_bias

    def dropped(x: tf.Tensor, i: tf.Tensor) -> tf.Tensor:
        return dropout(x, rate, seed, rows=(i * chunks.size, chunks.length))

    @tf.custom_gradient
    def run(query, key, value):
        queries = chunks.padded(query)

        def probabilities(i):  # float32 [B, heads, C, L]
            scores = tf.matmul(chunks.at(queries, i), key, transpose_b=True)
            chunk_bias = chunks.at(bias, i) if has_query_axis else bias
            return tf.nn.softmax(tf.cast(scores, tf.float32) + chunk_bias)

        def forward(i, found):
            probs = dropped(tf.cast(probabilities(i), dtype), i)
            return i + 1, found.write(i, tf.matmul(probs, value))

        def gradient(d_context):
            d_rows = chunks.padded(d_context)

            def backward(i, d_queries, d_key, d_value):
                probs, d_chunk = probabilities(i), chunks.at(d_rows, i)
                d_probs = dropped(tf.matmul(d_chunk, value, transpose_b=True), i)
                d_probs = tf.cast(d_probs, tf.float32)
                level = tf.reduce_sum(d_probs * probs, axis=-1, keepdims=True)
                d_scores = tf.cast(probs * (d_probs - level), dtype)
                kept = dropped(tf.cast(probs, dtype), i)
                more_key = tf.matmul(d_scores, chunks.at(queries, i), transpose_a=True)
                more_value = tf.matmul(kept, d_chunk, transpose_a=True)
                d_key += tf.cast(more_key, tf.float32)
                d_value += tf.cast(more_value, tf.float32)
                d_queries = d_queries.write(i, tf.matmul(d_scores, key))
                return i + 1, d_queries, d_key, d_value

            zeros = tf.zeros_like(key, tf.float32)
            d_query, *others = chunks.loop(backward, dtype, zeros, zeros)
            return d_query, *(tf.cast(d, dtype) for d in others)

        return chunks.loop(forward, dtype)[0], gradient

    return run(query, key, value)
