# SPDX-License-Identifier: Apache-2.0
"""What blocks, embeddings and heads are made of: activations, layer norm, dense layer.

Shapes: B batch, L length, N positions, D width.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import keras
import tensorflow as tf

from electra_tf.config.model import BLOCKS, BlockKind
from electra_tf.model import target


@tf.custom_gradient
def gelu(x: tf.Tensor):
    """x * Phi(x) with the exact error function, not the tanh approximation.

    The gradient is TensorFlow's own, but computed from `x`: steps without XLA would
    keep three more matrices as wide as the feed-forward of each layer.
    """
    half, root = tf.cast(0.5, x.dtype), tf.cast(math.sqrt(0.5), x.dtype)

    def gradient(dy):
        with tf.control_dependencies([dy]):  # Otherwise in advance, and kept.
            y = tf.identity(x)
        slope = dy * (half * y) * tf.constant(2 / math.sqrt(math.pi), x.dtype)
        slope = slope * tf.exp(-tf.square(y * root)) * root
        return half * (dy * (1 + tf.math.erf(y * root))) + slope

    return half * x * (1 + tf.math.erf(x * root)), gradient


def activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """The function for a name of `hidden_act`; the original has no gelu_tanh."""
    return {
        "gelu": gelu,
        "gelu_tanh": functools.partial(tf.nn.gelu, approximate=True),
        "relu": tf.nn.relu,
        "tanh": tf.tanh,
        "linear": tf.identity,
    }[name]


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


def gather_positions(sequence: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Takes the entries of `sequence` [B, L] or [B, L, D] at `positions` [B, N]."""
    return tf.gather(sequence, positions, batch_dims=1)


class LayerNorm(keras.layers.Layer):
    """Layer normalisation over the last axis, with gain `gamma` and bias `beta`.

    Biased variance; computed in float32 for all compute types.

    Args:
      kind: of the blocks; decides epsilon, and whether there is a bias.
    """

    def __init__(
        self, kind: BlockKind = BLOCKS["bert"], name: str = "LayerNorm", **kwargs
    ):
        super().__init__(name=name, autocast=False, **kwargs)
        self.kind = kind

    def build(self, input_shape):
        # autocast=False: Keras would cast them to the compute type.
        self.beta = None
        if self.kind.has_biases:
            self.beta = self.add_weight(
                name="beta", shape=input_shape[-1:], initializer="zeros", autocast=False
            )
        self.gamma = self.add_weight(
            name="gamma", shape=input_shape[-1:], initializer="ones", autocast=False
        )

    def call(self, x: tf.Tensor) -> tf.Tensor:
        epsilon, beta = self.kind.norm_epsilon, self.beta
        if target.is_for_tpu():
            gamma = self.gamma.value
            shift = tf.zeros_like(gamma) if beta is None else beta.value
            return _normalized(x, gamma, shift, epsilon)
        y = tf.cast(x, tf.float32)
        centered = y - tf.reduce_mean(y, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        y = centered * tf.math.rsqrt(variance + epsilon) * self.gamma
        return tf.cast(y if beta is None else y + beta, x.dtype)


def _normalized(
    x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor, epsilon: float
) -> tf.Tensor:
    """LayerNorm in one pass over `x`, and its gradient in two.

    In LayerNorm each sum waits for the previous one, which takes a pass for each.
    Memory traffic limits the speed of a TPU.
    """

    @tf.custom_gradient
    def run(x, gamma, beta):
        y = tf.cast(x, tf.float32)
        mean = tf.reduce_mean(y, axis=-1, keepdims=True)
        square = tf.reduce_mean(tf.square(y), axis=-1, keepdims=True)
        variance = tf.maximum(square - tf.square(mean), 0.0)
        scale = tf.math.rsqrt(variance + epsilon)

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

    return run(x, gamma, beta)


class Dense(keras.layers.Dense):
    """A Dense layer that XLA compiles faster, bitwise the same.

    TensorFlow lowers the gradient of its BiasAdd through MLIR, 6 ms for each of the 144
    in a small model.
    """

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if not target.compiled_for():
            return super().call(x)
        x = tf.matmul(x, self.kernel)
        return x if self.bias is None else x + tf.convert_to_tensor(self.bias)
