# SPDX-License-Identifier: Apache-2.0
"""The ids that a served model takes, checked inside its graph.

Without the checks an id of -1 or a mask of another length gives a number, on a GPU even
an id beyond the vocabulary does.

Shapes: B batch, L length.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf.config.model import ModelConfig

# The names of TensorFlow Hub's text API.
NAMES = ("input_word_ids", "input_mask", "input_type_ids")
TEXT = tf.TensorSpec([None], tf.string, name="text")


class EncoderInputs(NamedTuple):
    """Packed texts, int32 [B, L] each."""

    ids: tf.Tensor
    mask: tf.Tensor  # 1 at tokens, 0 at padding
    type_ids: tf.Tensor


def encoder_specs() -> dict[str, tf.TensorSpec]:
    """The signature of an encoder: int32 [B, L] by name."""
    return {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in NAMES}


def checked(
    inputs: dict[str, tf.Tensor], shape: ModelConfig, least_length: int = 1
) -> EncoderInputs:
    """The same tensors; reading them raises InvalidArgument unless they make sense.

    Args:
      shape: of the encoder that they are for.
      least_length: tokens that they must have.
    """
    # A signature states its ranks, but nothing holds callers to it.
    matrices = (tf.ensure_shape(inputs[name], [None, None]) for name in NAMES)
    ids, mask, type_ids = matrices
    with tf.control_dependencies(
        [
            _same_shape("input_mask", mask, ids),
            _same_shape("input_type_ids", type_ids, ids),
            _length(ids, least_length, shape.max_position_embeddings),
            in_range("input_word_ids", ids, shape.vocab_size),
            in_range("input_mask", mask, 2),
            in_range("input_type_ids", type_ids, shape.type_vocab_size),
        ]
    ):
        return EncoderInputs(*map(tf.identity, (ids, mask, type_ids)))


def require(condition: tf.Tensor, *message) -> tf.Operation:
    """An op that raises InvalidArgument with `message` unless `condition` holds."""
    return tf.debugging.Assert(condition, list(message), summarize=10)


def in_range(name: str, ids: tf.Tensor, size: tf.Tensor | int) -> tf.Operation:
    """An op that raises InvalidArgument unless 0 <= ids < size."""
    fits = tf.reduce_all((ids >= 0) & (ids < size))
    low, high = tf.reduce_min(ids), tf.reduce_max(ids)
    limit = f"{name} must be from 0 to"
    return require(fits, limit, size - 1, "; the lowest and the highest are", low, high)


def _same_shape(name: str, x: tf.Tensor, ids: tf.Tensor) -> tf.Operation:
    shape, expected = tf.shape(x), tf.shape(ids)
    return require(
        tf.reduce_all(shape == expected),
        f"{name} must have the shape of input_word_ids; the two are",
        shape,
        expected,
    )


def _length(ids: tf.Tensor, least: int, most: int) -> tf.Operation:
    length = tf.shape(ids)[1]
    return require(
        (length >= least) & (length <= most),
        f"this model reads from {least} to {most} tokens; input_word_ids has",
        length,
    )
