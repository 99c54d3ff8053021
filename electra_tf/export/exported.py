# SPDX-License-Identifier: Apache-2.0
"""What is exported and what comes of it: types that all kinds of SavedModel share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.export.inputs import NAMES, EncoderInputs, checked, encoder_specs
from electra_tf.finetune.model import FinetuningModel
from electra_tf.interop import verification
from electra_tf.pretrain.pretraining import ElectraPretrainer
from electra_tf.text.tokenization import TFTokenizer, Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

# Texts of every kind of character, on which each export is compared with the model.
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "Café crème, 50 % off! Ελληνικός; русский …",
    "中文語 한국어 かな \U0001f680\ufe0f [MASK] ﬁ ß",
    "",
    "one two three four five six seven eight nine ten " * 12,
)
# Where a padded row has no token.
NO_OFFSET = -1


class ExportedModel(NamedTuple):
    """A model to export, with the tokenizer that it was trained with."""

    name: str
    vocab: Vocabulary
    tokenizer_config: TokenizerConfig
    max_seq_length: int
    pretrainer: ElectraPretrainer | FinetuningModel
    facts: dict[str, Any]  # for the manifest: step, data, ...
    jit_compile: bool = False  # XLA compiles what signatures for ids compute

    @property
    def objective(self) -> str:
        """What it was trained for."""
        if isinstance(self.pretrainer, ElectraPretrainer):
            return self.pretrainer.objective.name
        return "fine-tuned"

    @property
    def shape(self) -> ModelConfig:
        """Of its encoder: what that can read."""
        return self.pretrainer.model_config

    def tokenizer(self) -> Tokenizer:
        """The tokenizer in Python."""
        return Tokenizer(self.vocab, *self.tokenizer_config)

    def tf_tokenizer(self) -> TFTokenizer:
        """The tokenizer as TensorFlow ops."""
        return TFTokenizer(self.vocab, *self.tokenizer_config)


class Check(NamedTuple):
    """Inputs of a signature and what the model itself says to them."""

    signature: str
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]  # the outputs that are compared


class Servable(NamedTuple):
    """A SavedModel to be: its root object and how it is called."""

    root: tf.train.Checkpoint
    signatures: dict[str, Any]
    checks: list[Check]
    facts: dict[str, Any]  # for the manifest


def reusable_root(variables=()) -> tf.train.Checkpoint:
    """An empty root with the attributes of TensorFlow Hub's reusable SavedModels.

    It holds the variables themselves: through Keras's objects each would be stored
    twice.
    """
    values = [v.value for v in variables]
    trainable = [v.value for v in variables if v.trainable]
    return tf.train.Checkpoint(
        variables=values, trainable_variables=trainable, regularization_losses=[]
    )


def computed(source: ExportedModel, function: Callable) -> Callable:
    """A function of checked ids, compiled where its model is exported so.

    The checks stay outside: XLA leaves assertions out.
    """
    if not source.jit_compile:
        return function
    return tf.function(function, jit_compile=True, autograph=False)


def servable(
    source: ExportedModel,
    variables: Sequence,
    of_texts: Callable,
    ids_answer: Callable[[EncoderInputs], dict[str, tf.Tensor]],
    checks: list[Check],
    facts: dict[str, Any],
    least_length: int = 1,
) -> Servable:
    """A SavedModel with the signatures `serving_default`, for texts, and `ids`.

    Args:
      of_texts: the tf.function for texts.
      ids_answer: the outputs for the encoder's inputs, which are checked before.
      least_length: tokens that they must have.
    """
    answer = computed(source, ids_answer)

    @tf.function(autograph=False, input_signature=list(encoder_specs().values()))
    def of_ids(input_word_ids, input_mask, input_type_ids):
        inputs = (input_word_ids, input_mask, input_type_ids)
        inputs = dict(zip(NAMES, inputs, strict=True))
        return answer(checked(inputs, source.shape, least_length))

    root = reusable_root(variables)
    root.__call__, root.ids = of_texts, of_ids
    return Servable(root, {"serving_default": of_texts, "ids": of_ids}, checks, facts)


def probe_ids(source: ExportedModel, length: int = 32) -> dict[str, np.ndarray]:
    """A fixed batch of ids: rows of different lengths, two segments, padding."""
    batch = verification.fixed_batch(source.shape, source.vocab.pad_id, length)
    return dict(zip(NAMES, batch.values(), strict=True))


def ids_check(
    source: ExportedModel,
    ids_answer: Callable[[EncoderInputs], dict[str, tf.Tensor]],
    length: int = 32,
) -> Check:
    """What the model says to `probe_ids`, for the signature `ids`."""
    ids = probe_ids(source, length)
    expected = ids_answer(EncoderInputs(*map(tf.constant, ids.values())))
    return Check("ids", ids, {k: v.numpy() for k, v in expected.items()})


def encoded(texts: Sequence[str]) -> np.ndarray:
    """Texts as bytes, as a signature takes them."""
    return np.array([text.encode() for text in texts])


def padded(rows: Sequence[list], fill) -> np.ndarray:
    """Rows of different lengths as one array."""
    width = max(map(len, rows))
    return np.array([row + [fill] * (width - len(row)) for row in rows])
