# SPDX-License-Identifier: Apache-2.0
"""The methods of all loaded models, and the error if a model lacks a part."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from electra_tf.config.model import ModelConfig
from electra_tf.config.run import RunConfig
from electra_tf.errors import EXIT_DIVERGED, UserError
from electra_tf.finetune.inputs import Input, Source, shown
from electra_tf.finetune.task import Head, plain
from electra_tf.inference import scoring
from electra_tf.inference.scoring import METHODS, TextScore, TextWindow, TokenScore
from electra_tf.text import tokenization
from electra_tf.text.tokenization import Tokenizer, each_text, refuse_table
from electra_tf.text.vocabulary import MASK, Vocabulary
from electra_tf.train.reporting import finite

if TYPE_CHECKING:
    from electra_tf.model.encoder import TextEncoder

# Texts whose states are in memory at a time.
_CHUNK = 1024
_POOLINGS: dict[str | None, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    None: lambda states: states,
}
# Method or attribute -> the part that it needs.
_NEEDS = {
    "predict": "the head of a task, which fine-tuning makes",
    "detect": "a discriminator",
    "corrupt": "a discriminator and its generator",
    "fill_mask": "a generator that fills masks",
    "score": "a discriminator or a generator",
    "save": "the weights of a pre-trained model",
    "encoder": "an encoder with its weights, which exports do not show",
    "tokenizer": "the vocabulary",
}


class MissingPartError(UserError, AttributeError):
    """A model lacks the part that a method needs."""


class TokenPrediction(NamedTuple):
    """A token and its probability.

    `detect` and `corrupt` give tokens of the text and the probability that they were
    replaced; `fill_mask` gives candidates for a [MASK].
    """

    text: str
    start: int  # of the token or the [MASK], in characters of the text
    end: int
    probability: float
    replacement: str | None = None  # by the generator

    @property
    def is_replaced(self) -> bool:
        """Whether the discriminator saw another token than the text's."""
        return self.replacement is not None


class Model:
    """A loaded model, see `electra_tf.load`.

    A method raises `MissingPartError` if the model lacks a part for it.

    Texts longer than `max_seq_length` are read in consecutive windows that do not
    overlap.

    Attributes:
      name: the path that it was loaded from.
      what: its kind, such as "an ELECTRA model".
      tokenizer: the `Tokenizer`.
      encoder: the `TextEncoder`, a Keras layer.
      vocab: the tokenizer's `Vocabulary`.
      max_seq_length: tokens of a window, [CLS] and [SEP] included.
      origin: the checkpoint or directory of the weights.
      config: of its run; a SavedModel has none.
      network: the Keras model, or the SavedModel.
      methods: scoring methods by name, the best first: functions of ids, mask and
        segment ids [B, L] that return the scores of all tokens [B, L]. Those of
        `scoring.ONE_BY_ONE` also take positions [B] and return their scores [B].
    """

    name: str
    what: str
    tokenizer: Tokenizer
    encoder: TextEncoder
    vocab: Vocabulary
    max_seq_length: int
    origin: str
    config: RunConfig
    network: Any
    methods: Mapping[str, Callable[..., Any]] = MappingProxyType({})
    # ids, mask and segment ids [B, L] -> P(token was replaced) [B, L]
    _detect: Callable[..., Any] | None = None
    # ids, mask, segment ids [B, L] and positions [B, N] -> logits [B, N, V]
    _logits_at: Callable[..., Any] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _NEEDS:
            raise self.lacks(name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def title(self) -> str:
        """Its name in published files, without a path."""
        return self.config.model_name

    @property
    def shape(self) -> ModelConfig:
        """The shape of its encoder."""
        return self.config.model_config()

    @property
    def precision(self) -> str:
        """The type of its computation, as the hparam has it."""
        return self.network.dtype_policy.name

    def lacks(self, name: str) -> MissingPartError:
        """The error for a method or attribute whose part this model lacks."""
        return MissingPartError(
            f"{self.name} is {self.what}: {name} needs {_NEEDS[name]}."
        )

    def __repr__(self) -> str:
        return f"<{self.what} from {self.name}>"

    def encode(
        self, texts: Any, pooling: str | None = "mean"
    ) -> np.ndarray | list[np.ndarray]:
        """Vectors of texts, float32 [n, H].

        Args:
          texts: one or several, str or bytes, or tensors of them.
          pooling: "mean" over the tokens of a text, [CLS] and [SEP] included; "cls",
            the vector of [CLS]; None: no pooling, a list of [tokens, H].
        """
        if pooling not in _POOLINGS:
            raise UserError(f'pooling is {pooling!r}; it is "mean", "cls" or None.')
        width, texts = self.encoder.hidden_size, each_text(texts)
        found: list[np.ndarray] = []
        for chunk in scoring.chunks(texts, _CHUNK):
            found += map(_POOLINGS[pooling], self._states(chunk))
        if pooling is None:
            return found
        return np.array(found, np.float32).reshape(-1, width)

    def _states(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The last layer of [CLS], the tokens and [SEP] of each text."""
        ids = [self.tokenizer.encode(text) for text in texts]
        width, size = self.encoder.hidden_size, self.max_seq_length - 2
        states = [np.zeros([len(row) + 2, width], np.float32) for row in ids]
        windows = [TextWindow(n, [], 0, 0, 0) for n, row in enumerate(ids) if not row]
        for number, row in enumerate(ids):
            windows += scoring.windows_of(number, row, size, overlap=0)
        for window, row in scoring.rows_of(self._hidden, self.tokenizer.vocab, windows):
            found, count = states[window.text], len(window.ids)
            # [CLS] comes from a text's first window, [SEP] from its last.
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

    def detect(self, texts: Any) -> list[list[TokenPrediction]]:
        """The probability of each token of each text that it was replaced."""
        if self._detect is None:
            raise self.lacks("detect")
        return [
            [TokenPrediction(*token[:4]) for token in tokens]
            for tokens in self._token_scores(self._detect, texts)
        ]

    def fill_mask(
        self, texts: Any, top_k: int = 5
    ) -> list[list[list[TokenPrediction]]]:
        """The most likely tokens for each [MASK] of each text, the best first."""
        if self._logits_at is None:
            raise self.lacks("fill_mask")
        return [
            self._filled(number, text, top_k)
            for number, text in enumerate(each_text(texts))
        ]

    def _filled(self, number: int, text: str, top_k: int):
        import tensorflow as tf

        mask_id, most = self.vocab.mask_id, tokenization.room(self.max_seq_length)
        parts = [self.tokenizer.encode(part) for part in text.split(MASK)]
        ids = parts[0] + [i for part in parts[1:] for i in (mask_id, *part)]
        if len(ids) > most:
            raise UserError(
                f"text {number} has {len(ids)} tokens; fill_mask reads {most}."
            )
        packed = tokenization.pack(self.vocab, [ids])
        places = np.flatnonzero(packed.input_ids == mask_id)[None]
        logits = self._logits_at(*packed, places.astype(np.int32))[0]
        best = tf.math.top_k(tf.nn.softmax(logits), top_k)
        found = []
        masks = re.finditer(re.escape(MASK), text)
        for mask, ids, shares in zip(masks, best.indices, best.values, strict=True):
            tokens = [self.vocab.tokens[i] for i in ids.numpy()]
            rows = zip(tokens, shares.numpy().tolist(), strict=True)
            found.append([TokenPrediction(t, *mask.span(), p) for t, p in rows])
        return found

    def method(self, name: str | None = None) -> str:
        """A method of scoring, by default the best one of the model.

        A line on stderr names the default unless it is Electric's. Raises `UserError`
        for a method that the model lacks.
        """
        if not self.methods:
            raise self.lacks("score")
        if name is None:
            [name, *_] = self.methods
            if name != "electric":
                print(f"Scored by {name}: {METHODS[name]}.", file=sys.stderr)
        if name not in self.methods:
            methods = "; ".join(f"{name} ({METHODS[name]})" for name in self.methods)
            raise UserError(
                f"{self.name} is {self.what} and has no scores by the method "
                f"{name!r}.\nIt has: {methods}."
            )
        return name

    def score(
        self, texts: Any, method: str | None = None, overlap: int = 0
    ) -> list[TextScore]:
        """The score of each text, in order; arguments as in `score_tokens`."""
        return list(self.score_texts(texts, method, overlap))

    def score_tokens(
        self, texts: Any, method: str | None = None, overlap: int = 0
    ) -> Iterator[list[TokenScore]]:
        """Yields the scores of each text's tokens; [] for a text without tokens.

        Args:
          texts: one or several, str or bytes, or tensors of them.
          method: one of docs/electric.md; None: the best of the model.
          overlap: tokens that two windows of a long text share.

        Raises `UserError` if a score is not finite.
        """
        return self._token_scores(self.methods[self.method(method)], texts, overlap)

    def score_texts(
        self, texts: Any, method: str | None = None, overlap: int = 0
    ) -> Iterator[TextScore]:
        """Yields the score of each text, in order; arguments as in `score_tokens`."""
        network, unk_id = self.methods[self.method(method)], self.vocab.unk_id
        scored = self._scored(
            network, texts, overlap, lambda text: (self.tokenizer.encode(text), None)
        )
        return (
            TextScore(math.fsum(scores), len(ids), ids.count(unk_id))
            for _, ids, _, scores in scored
        )

    def check_overlap(self, overlap: int) -> None:
        """Raises `UserError` for an overlap that windows cannot have."""
        size = tokenization.room(self.max_seq_length)
        if not 0 <= overlap < size:
            raise UserError(
                f"an overlap of {overlap} tokens: it must be at least 0 and less than "
                f"the {size} tokens of a window."
            )

    def _token_scores(
        self, network: Callable[..., Any], texts: Any, overlap: int = 0
    ) -> Iterator[list[TokenScore]]:
        """Yields what a network gives each token of each text, in order."""
        encode, unk_id = self.tokenizer.encode_with_offsets, self.vocab.unk_id
        for text, *rows in self._scored(network, texts, overlap, encode):
            yield [
                TokenScore(text[start:end], start, end, float(score), i == unk_id)
                for i, (start, end), score in zip(*rows, strict=True)
            ]

    def _scored(self, network, texts, overlap, encode):
        """Yields (text, its ids and offsets by `encode`, float scores), in order."""
        self.check_overlap(overlap)
        encoded = ((text, *encode(text)) for text in each_text(texts))
        limit = scoring.POOL_TOKENS
        for pool in scoring.chunks(encoded, limit, lambda one: len(one[1]) + 2):
            scores = self._score_pool(network, [ids for _, ids, _ in pool], overlap)
            for (text, ids, offsets), values in zip(pool, scores, strict=True):
                if not np.isfinite(values).all():
                    raise UserError(
                        f"{self.name} gives a text the score {values.sum()}: its "
                        "weights or activations are not finite.\nThe text begins "
                        f"{text[:60]!r}.",
                        EXIT_DIVERGED,
                    )
                yield text, ids, offsets, values

    def _score_pool(
        self, network, texts: list[list[int]], overlap: int
    ) -> list[np.ndarray]:
        """Scores of the tokens of each text, given as ids."""
        found = [np.zeros(len(ids), np.float32) for ids in texts]
        size = tokenization.room(self.max_seq_length)
        windows = [
            window
            for number, ids in enumerate(texts)
            for window in scoring.windows_of(number, ids, size, overlap)
        ]
        if network in map(self.methods.get, scoring.ONE_BY_ONE):
            rows = scoring.token_scores_of(network, self.vocab, windows)
            for window, place, score in rows:
                found[window.text][window.start + place - window.first] = score
            return found
        for window, row in scoring.rows_of(network, self.vocab, windows):
            end = window.start + window.last - window.first
            values = row[1 + window.first : 1 + window.last]
            found[window.text][window.start : end] = values
        return found


@dataclasses.dataclass(eq=False, repr=False)
class Predictor(Model):
    """A model that predicts.

    Args:
      origin: the checkpoint or directory of the weights.
      task: the name of the fine-tuning task.
      head: its type's.
      read_inputs: reads the inputs of a user's file.
      predictions: yields each input with its prediction, in order.
      num_fields: of an input that is given as a tuple, at most.
      facts: in JSON, all that answers depend on besides the weights.
    """

    origin: str
    task: str
    head: type[Head]
    read_inputs: Callable[[Source], Iterator[Input]]
    predictions: Callable[[Iterable[Input]], Iterator[tuple[Input, dict[str, Any]]]]
    num_fields: int = 1
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.name, self.what = self.origin, f"a model fine-tuned on {self.task}"

    @property
    def reads(self) -> str:
        """The kind of its inputs, a key of `inputs.FORMS`."""
        return self.head.reads

    def rows(self, inputs: Iterable[Input]) -> Iterator[dict[str, Any]]:
        """Yields the fields of each input and its prediction, in order.

        Raises `UserError` (70) for outputs that are not finite.
        """
        for one, found in self.predictions(inputs):
            if finite(found) != found:
                raise UserError(
                    f"{one.where}: {self.origin} gives it {shown(found)}: its weights "
                    "or activations are not finite.",
                    EXIT_DIVERGED,
                )
            yield one.fields | found

    def predict(self, inputs: Iterable[Any]) -> list[dict[str, Any]]:
        """Predictions in order; docs/prediction.md describes them.

        Args:
          inputs: texts, pairs of texts, lists of words or pairs (question, context), as
            str, bytes or tensors; or objects by column, like lines of .jsonl.

        Raises `UserError` naming the first unusable input.
        """
        inputs = plain(inputs) if hasattr(inputs, "ndim") else inputs
        inputs = [inputs] if isinstance(inputs, str | bytes | Mapping) else inputs
        refuse_table(inputs)
        objects = (self._object(number, one) for number, one in enumerate(inputs))
        return list(self.rows(self.read_inputs(Source.of_objects(objects))))

    def _object(self, number: int, one: Any) -> Mapping[str, Any]:
        if isinstance(one, Mapping):
            return one
        one, most = plain(one), self.num_fields
        if isinstance(one, Iterable):
            found = self.head.object_of(one, most)
            if found is not None:
                return found
        fields = " and ".join(self.head.fields[:most])
        raise UserError(
            f"input {number} is {shown(one)}; {self.task} takes {fields or 'words'}."
        )
