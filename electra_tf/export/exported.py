# SPDX-License-Identifier: Apache-2.0
"""What is exported and what comes of it: types that all kinds of SavedModel share."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from electra_tf.export.inputs import Limits
from electra_tf.finetune.model import FinetuningModel
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


class Source(NamedTuple):
    """A model to export, with the tokenizer that it was trained with."""

    name: str
    vocab: Vocabulary
    tokenizer_config: TokenizerConfig
    max_seq_length: int
    pretrainer: ElectraPretrainer | FinetuningModel
    facts: dict[str, Any]  # for the manifest: step, data, ...

    @property
    def objective(self) -> str:
        """What it was trained for."""
        if isinstance(self.pretrainer, ElectraPretrainer):
            return self.pretrainer.objective.name
        return "fine-tuned"

    @property
    def limits(self) -> Limits:
        """What its networks can read."""
        config = self.pretrainer.model_config
        return Limits(
            config.vocab_size, config.type_vocab_size, config.max_position_embeddings
        )

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


class Export(NamedTuple):
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


def probe_ids(source: Source, rows: int = 3) -> dict[str, np.ndarray]:
    """A fixed batch of ids: rows of different lengths, two segments, padding."""
    limits = source.limits
    length = min(limits.max_length, 40)
    rng = np.random.default_rng(20)
    ids = rng.integers(0, limits.vocab_size, [rows, length])
    real = np.linspace(max(1, length // 3), length, rows).astype(int)
    mask = np.arange(length) < real[:, None]
    types = (np.arange(length) >= real[:, None] // 2) & mask
    arrays = (np.where(mask, ids, source.vocab.pad_id), mask, types)
    names = ("input_word_ids", "input_mask", "input_type_ids")
    return {name: a.astype(np.int32) for name, a in zip(names, arrays, strict=True)}
