# SPDX-License-Identifier: Apache-2.0
"""What every loaded model can do, and the error where a model lacks a part."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from electra_tf.errors import UserError
from electra_tf.inference.scoring import TextWindow, batches, windows_of
from electra_tf.text import packing
from electra_tf.text.tokenization import Tokenizer, each_text

if TYPE_CHECKING:
    from electra_tf.model.encoder import TextEncoder

# Texts whose states are in memory at a time.
_CHUNK = 1024
_POOLINGS: dict[str | None, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    None: lambda states: states,
}
_TASK = "a trial of run_finetuning.py or a Hugging Face model with the head of a task"
_PRETRAINED = "a run of pre-training"
_WEIGHTS = "what it was exported from"
# Method or attribute -> (what it needs, what has that).
_NEEDS = {
    "predict": ("the head of a task", _TASK),
    "detect": (
        "a discriminator",
        f"{_PRETRAINED} or Hugging Face's ElectraForPreTraining",
    ),
    "corrupt": ("a discriminator and its generator", _PRETRAINED),
    "fill_mask": (
        "a generator that fills masks",
        "a run of ELECTRA or Hugging Face's ElectraForMaskedLM",
    ),
    **dict.fromkeys(
        ("score", "scorer", "score_texts", "score_tokens"),
        ("a discriminator or a generator", _PRETRAINED),
    ),
    "save": ("the weights of a pre-trained model", _PRETRAINED),
    "encoder": ("an encoder with its weights", _WEIGHTS),
    "tokenizer": ("the vocabulary", _WEIGHTS),
}


class MissingPartError(UserError, AttributeError):
    """A model lacks the part that a method needs."""


class Model:
    """A loaded model, see `electra_tf.load`.

    A method for which it lacks a part raises `MissingPartError`.

    Attributes:
      name: the path that it was loaded from.
      what: what it is, "an ELECTRA model".
      tokenizer: a `Tokenizer`.
      encoder: a Keras layer, int32 ids, mask and segment ids [B, L] -> EncoderOutput.
      max_seq_length: tokens of a window, [CLS] and [SEP] included.
    """

    name: str
    what: str
    tokenizer: Tokenizer
    encoder: TextEncoder
    max_seq_length: int

    def __getattr__(self, name: str) -> Any:
        if name in _NEEDS:
            raise self.lacks(name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def lacks(self, name: str) -> MissingPartError:
        """The error of a method or attribute that this model has no part for."""
        part, owner = _NEEDS[name]
        return MissingPartError(
            f"{self.name} is {self.what}: {name} needs {part}, which {owner} has."
        )

    def __repr__(self) -> str:
        try:
            encoder, words = self.encoder, len(self.tokenizer.vocab)
        except MissingPartError:
            return f"<{self.what} from {self.name}>"
        layers = len(encoder.encoder.transformer_layers)
        return (
            f"<{self.what} from {self.name}: {layers} layers of width "
            f"{encoder.hidden_size}, {words:,} tokens, max_seq_length "
            f"{self.max_seq_length}>"
        )

    def encode(
        self, texts: Any, pooling: str | None = "mean"
    ) -> np.ndarray | list[np.ndarray]:
        """Vectors of texts, float32 [n, H].

        Args:
          texts: one or several, str or bytes, or tensors of them. What is longer than
            `max_seq_length` is read in consecutive windows.
          pooling: "mean" over the tokens of a text, [CLS] and [SEP] included; "cls",
            the vector of [CLS]; None: no pooling, a list of [tokens, H].
        """
        if pooling not in _POOLINGS:
            raise UserError(f'pooling is {pooling!r}; it is "mean", "cls" or None.')
        width, texts = self.encoder.hidden_size, each_text(texts)
        found: list[np.ndarray] = []
        while chunk := list(itertools.islice(texts, _CHUNK)):
            found += map(_POOLINGS[pooling], self._states(chunk))
        if pooling is None:
            return found
        return np.array(found, np.float32).reshape(-1, width)

    def _states(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The last layer of [CLS], the tokens and [SEP] of each text."""
        ids = [self.tokenizer.encode(text) for text in texts]
        width = self.encoder.hidden_size
        states = [np.zeros([len(row) + 2, width], np.float32) for row in ids]
        windows = [TextWindow(n, [], 0, 0, 0) for n, row in enumerate(ids) if not row]
        for number, row in enumerate(ids):
            windows += windows_of(number, row, self.max_seq_length - 2, overlap=0)
        windows.sort(key=lambda window: len(window.ids))
        for batch in batches(windows, lambda window: len(window.ids) + 2):
            packed = packing.pack(self.tokenizer.vocab, [w.ids for w in batch])
            for window, row in zip(batch, self._hidden(*packed).numpy(), strict=True):
                found, count = states[window.text], len(window.ids)
                # Of windows in a row, [CLS] is that of the first, [SEP] of the last.
                begin = int(window.start > 0)
                end = count + 1 + (window.start + count + 2 == len(found))
                found[window.start + begin : window.start + end] = row[begin:end]
        return states

    @functools.cached_property
    def _hidden(self):
        import tensorflow as tf

        def hidden(*inputs):
            return tf.cast(self.encoder(*inputs).sequence_output, tf.float32)

        ids = tf.TensorSpec([None, None], tf.int32)
        return tf.function(hidden, [ids, ids, ids], autograph=False)
