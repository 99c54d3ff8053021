# SPDX-License-Identifier: Apache-2.0
"""Shared by all served models: inputs, their checks in the graph, batches.

Inputs are ids of packed texts or raw texts. Without the checks an id of -1 or a mask of
another length gives a number, and on a GPU an id beyond the vocabulary.

Shapes: B batch, W windows, L length; N tokens in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.inference.model import Model
from electra_tf.interop import verification
from electra_tf.text.tf_tokenization import TFTokenizer, require
from electra_tf.text.tokenization import PackedTexts

# The names of TensorFlow Hub's text API.
NAMES = ("input_word_ids", "input_mask", "input_type_ids")
TEXT = tf.TensorSpec([None], tf.string, name="text")


def encoder_specs() -> dict[str, tf.TensorSpec]:
    """The signature of an encoder: int32 [B, L] by name."""
    return {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in NAMES}


def checked(
    ids: tf.Tensor, mask: tf.Tensor, type_ids: tf.Tensor, shape: ModelConfig
) -> PackedTexts:
    """The same tensors; reading them raises InvalidArgument for invalid values.

    Args:
      shape: of the encoder that they are for.
    """
    # A signature states its ranks, but callers are not bound to them.
    inputs = [tf.ensure_shape(x, [None, None]) for x in (ids, mask, type_ids)]
    (rows, length), most = tf.unstack(tf.shape(ids)), shape.max_length
    found = [
        require(
            (length >= 1) & (length <= most),
            f"this model reads from 1 to {most} tokens; input_word_ids has",
            length,
        )
    ]
    for name, x in zip(NAMES[1:], inputs[1:], strict=True):
        same = tf.reduce_all(tf.shape(x) == tf.stack([rows, length]))
        what = f"{name} must have the shape of input_word_ids; the two are"
        found.append(require(same, what, tf.shape(x), rows, length))
    sizes = shape.vocab_size, 2, shape.type_vocab_size
    with tf.control_dependencies(found + list(map(in_range, NAMES, inputs, sizes))):
        return PackedTexts(*map(tf.identity, inputs))


def in_range(name: str, ids: tf.Tensor, size: tf.Tensor | int) -> tf.Operation:
    """An op that raises InvalidArgument unless 0 <= ids < size."""
    fits = tf.reduce_all((ids >= 0) & (ids < size))
    low, high = tf.reduce_min(ids), tf.reduce_max(ids)
    limit = f"{name} must be from 0 to"
    return require(fits, limit, size - 1, "; the lowest and the highest are", low, high)


# Texts of every kind of character, on which each export is compared with the model.
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "Café crème, 50 % off! Ελληνικός; русский …",
    "中文語 한국어 かな \U0001f680\ufe0f [MASK] ﬁ ß",
    "",
    "one two three four five six seven eight nine ten " * 12,
)


def tf_tokenizer(model: Model) -> TFTokenizer:
    """The tokenizer of a model as TensorFlow ops.

    Raises `UserError` (65) if the two differ on PROBES.
    """
    tokenizer = TFTokenizer(model.vocab, *model.tokenizer.config)
    expected = [model.tokenizer.encode(text) for text in PROBES]
    if tokenizer.tokenize(PROBES).to_list() != expected:
        raise UserError(
            f"{model.vocab.path}: the tokenizer gives other ids in TensorFlow's graph "
            "than in Python.\n--what encoder reads ids instead.",
            EXIT_DAMAGED,
        )
    return tokenizer


class Check(NamedTuple):
    """Inputs of a signature and the outputs for them before it was saved."""

    signature: str
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]  # the outputs that are compared


def check_of_texts(
    of_texts: Callable, asked: Mapping[str, Sequence], exact: bool
) -> Check:
    """The `serving_default` of texts.

    Args:
      asked: texts by the names of the inputs.
      exact: whether all outputs are compared, or fractions alone: rounding may change
        which of nearly equal ones is the best.
    """
    inputs = {
        name: np.char.encode(np.array(texts, str), "utf-8")
        for name, texts in asked.items()
    }
    outputs = of_texts(*map(tf.constant, inputs.values()))
    expected = {
        name: value.numpy()
        for name, value in outputs.items()
        if exact or value.dtype.is_floating
    }
    return Check("serving_default", inputs, expected)


class Servable(NamedTuple):
    """The content of a SavedModel."""

    root: tf.train.Checkpoint
    signatures: dict[str, Any]
    checks: list[Check]  # the last is of the signature for ids
    facts: dict[str, Any]  # for the manifest


def reusable_root(variables=()) -> tf.train.Checkpoint:
    """An empty root with the attributes of TensorFlow Hub's reusable SavedModels.

    It holds the variables themselves, each once: through Keras's objects each would be
    stored twice.
    """
    variables = {id(v): v for v in variables}.values()
    values = [v.value for v in variables]
    trainable = [v.value for v in variables if v.trainable]
    return tf.train.Checkpoint(
        variables=values, trainable_variables=trainable, regularization_losses=[]
    )


def ids_signature(
    source: Model, answer: Callable[[PackedTexts], dict[str, tf.Tensor]]
) -> Callable:
    """A tf.function for the encoder's inputs, which are checked before `answer`."""

    @tf.function(autograph=False, input_signature=list(encoder_specs().values()))
    def of_ids(input_word_ids, input_mask, input_type_ids):
        inputs = input_word_ids, input_mask, input_type_ids
        return answer(checked(*inputs, source.shape))

    return of_ids


def servable(
    source: Model,
    variables: Sequence,
    of_texts: Callable,
    ids_answer: Callable[[PackedTexts], dict[str, tf.Tensor]],
    check: Check,
    facts: dict[str, Any],
) -> Servable:
    """A SavedModel with the signatures `serving_default`, for texts, and `ids`.

    Args:
      of_texts: the tf.function for texts.
      ids_answer: the outputs for the encoder's inputs.
      check: of `serving_default`.
    """
    ids = probe_ids(source)
    expected = ids_answer(PackedTexts(*map(tf.constant, ids.values())))
    # Rounding may change the order of the best.
    expected = {k: v.numpy() for k, v in expected.items() if "_top_" not in k}
    root = reusable_root(variables)
    root.__call__ = of_texts
    root.ids = ids_signature(source, ids_answer)
    signatures = {"serving_default": of_texts, "ids": root.ids}
    return Servable(root, signatures, [check, Check("ids", ids, expected)], facts)


def probe_ids(source: Model) -> dict[str, np.ndarray]:
    """A fixed batch of ids: rows of different lengths, two segments, padding."""
    batch = verification.fixed_batch(source.shape, source.vocab.pad_id)
    return dict(zip(NAMES, batch.values(), strict=True))
