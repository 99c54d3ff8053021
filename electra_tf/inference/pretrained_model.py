# SPDX-License-Identifier: Apache-2.0
"""A pre-trained model at work, or an encoder alone.

model = electra_tf.load("data/models/electra_small")
[tokens] = model.detect("The doctor opened the giraffe and read it.")
max(tokens, key=lambda token: token.probability).text
[[best, *others]] = model.fill_mask("The doctor opened the [MASK] and read it.")
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from electra_tf import startup
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import say_nothing
from electra_tf.errors import UserError
from electra_tf.inference.model import Model
from electra_tf.inference.scoring import (
    METHODS,
    TextScore,
    TextScorer,
    TextWindow,
    TokenScore,
    windows_of,
)
from electra_tf.interop import huggingface, keras_hub, readers, tf1
from electra_tf.interop.checkpoint import HEADS, StoredModel, empty_pretrainer
from electra_tf.paths import local_of
from electra_tf.storage.stored_tensors import of_arrays
from electra_tf.text import packing, word_list
from electra_tf.text.tokenization import Tokenizer, each_text
from electra_tf.text.vocabulary import (
    MASK,
    TokenizerConfig,
    Vocabulary,
    resolve_settings,
)


class TokenPrediction(NamedTuple):
    """One token of a text and what the discriminator thinks of it."""

    text: str  # as it stands in the text
    start: int  # characters of the text
    end: int
    probability: float  # that the token was replaced
    replacement: str | None = None  # what the generator put there, if anything

    @property
    def is_replaced(self) -> bool:
        """Whether the discriminator saw another token than the text's."""
        return self.replacement is not None


_Part = tuple[TextWindow, list[tuple[int, int]]]  # with the offsets of its tokens


class TokenGuess(NamedTuple):
    """What a generator puts in the place of a [MASK]."""

    token: str
    probability: float


class TextModel(Model):
    """A model that detects, scores or fills [MASK]: as far as it has the functions.

    Texts longer than `max_seq_length` are read in consecutive windows that do not
    overlap.

    Attributes:
      vocab: its vocabulary.
      origin: the checkpoint or directory that the weights are of.
      methods: by which it scores, the best one first.
    """

    vocab: Vocabulary
    origin: str
    methods: Sequence[str] = ()
    # Of ids, mask and segment ids [B, L]: P(token was replaced) [B, L]; with positions
    # [B, N] besides, the logits of all tokens there [B, N, V].
    _detect: Callable[..., Any] | None = None
    _logits_at: Callable[..., Any] | None = None

    def _score_function(self, method: str) -> Callable[..., Any]:
        """As `pseudo_likelihood.function_of`."""
        raise NotImplementedError

    def detect(self, texts: Any, batch_size: int = 32) -> list[list[TokenPrediction]]:
        """How much each token of each text looks replaced."""
        if self._detect is None:
            raise self.lacks("detect")
        texts = list(each_text(texts))
        predictions: list[list[TokenPrediction]] = [[] for _ in texts]
        for windows, packed in self._batches(texts, batch_size):
            probs = self._detect(*packed).numpy()
            for row, (window, offsets) in enumerate(windows):
                for place, (start, end) in enumerate(offsets, start=1):
                    text = texts[window.text][start:end]
                    probability = float(probs[row, place])
                    prediction = TokenPrediction(text, start, end, probability)
                    predictions[window.text].append(prediction)
        return predictions

    def fill_mask(self, texts: Any, top_k: int = 5) -> list[list[list[TokenGuess]]]:
        """The most likely tokens for each [MASK] of each text, the best first."""
        import tensorflow as tf

        if self._logits_at is None:
            raise self.lacks("fill_mask")
        found, mask_id = [], self.vocab.mask_id
        most = packing.room(self.max_seq_length)
        for number, text in enumerate(each_text(texts)):
            parts = [self.tokenizer.encode(part) for part in text.split(MASK)]
            ids = parts[0] + [i for part in parts[1:] for i in (mask_id, *part)]
            if len(ids) > most:
                raise UserError(
                    f"text {number} has {len(ids)} tokens; fill_mask reads {most}."
                )
            packed = packing.pack(self.vocab, [ids])
            places = np.flatnonzero(packed.input_ids == mask_id)[None]
            logits = self._logits_at(*packed, places.astype(np.int32))[0]
            best = tf.math.top_k(tf.nn.softmax(logits), top_k)
            rows = zip(best.indices.numpy(), best.values.numpy(), strict=True)
            tokens = self.vocab.tokens
            found.append(
                [
                    [TokenGuess(tokens[i], float(p)) for i, p in zip(*row, strict=True)]
                    for row in rows
                ]
            )
        return found

    @functools.cached_property
    def _scorers(self) -> dict[str, TextScorer]:
        return {}

    def scorer(self, method: str | None = None) -> TextScorer:
        """What scores texts by a method of `pseudo_likelihood`.

        By default it is Electric's, or else the best that the model offers, which a
        line on stderr names. Raises `UserError`, naming those that it offers, for
        another.
        """
        method = self._checked_method(method)
        if method not in self._scorers:
            self._scorers[method] = TextScorer(
                self._score_function(method),
                self.vocab,
                self.tokenizer,
                self.max_seq_length,
                method,
                self.name,
            )
        return self._scorers[method]

    def _checked_method(self, method: str | None) -> str:
        """`method` if the model offers it; of None the best one, named on stderr."""
        if method not in (None, *METHODS):
            raise UserError(
                f"unknown scoring method {method!r}; "
                f"{self.name} offers {', '.join(self.methods)}."
            )
        if not self.methods:
            raise self.lacks("score")
        if method is None:
            method = self.methods[0]
            if method != "electric":
                _to_stderr(f"Scored by {method}: {METHODS[method]}.")
        if method in self.methods:
            return method
        listed = "; ".join(f"{offer} ({METHODS[offer]})" for offer in self.methods)
        raise UserError(
            f"{self.name} is {self.what} and has no scores by the method {method!r}.\n"
            f"It offers: {listed}."
        )

    def score(
        self, texts: Any, method: str | None = None, overlap: int = 0
    ) -> list[TextScore]:
        """The score of each text; see `TextScorer.score_texts`."""
        return list(self.scorer(method).score_texts(texts, overlap))

    def score_tokens(
        self, texts: Any, method: str | None = None, overlap: int = 0
    ) -> Iterator[list[TokenScore]]:
        """Scores of each text's tokens, in order; see `TextScorer.score_tokens`."""
        return self.scorer(method).score_tokens(texts, overlap)

    def score_texts(
        self, texts: Any, method: str | None = None, overlap: int = 0
    ) -> Iterator[TextScore]:
        """The score of each text, in order; see `TextScorer.score_texts`."""
        return self.scorer(method).score_texts(texts, overlap)

    def _batches(
        self, texts: list[str], batch_size: int, least_length: int = 0
    ) -> Iterator[tuple[list[_Part], packing.PackedTexts]]:
        windows = list(self._windows(texts))
        for first in range(0, len(windows), batch_size):
            part = windows[first : first + batch_size]
            rows = [packing.join(self.vocab, window.ids) for window, _ in part]
            length = max(least_length, *(len(row.input_ids) for row in rows))
            yield part, packing.pad(rows, self.vocab.pad_id, length)

    def _windows(self, texts: list[str]) -> Iterator[_Part]:
        size = self.max_seq_length - 2
        for number, text in enumerate(texts):
            ids, offsets = self.tokenizer.encode_with_offsets(text)
            for window in windows_of(number, ids, size, overlap=0):
                yield window, offsets[window.start : window.start + len(window.ids)]


class PretrainedModel(TextModel):
    """A pre-trained ELECTRA or Electric model with its tokenizer; see `load`.

    Args:
      network: an ElectraPretrainer, or a TextEncoder alone.
      tokenizer_config: None: what lies beside the vocabulary, or config's.
      name: of the model, for messages.
      has_generator: whether its files hold a generator, or say that it is uniform.
      origin: the checkpoint or directory that the weights are of.
      known: see `StoredModel.known`.
    """

    def __init__(
        self,
        config: PretrainingConfig,
        vocab: Vocabulary,
        network,
        tokenizer_config: TokenizerConfig | None = None,
        name: str | None = None,
        has_generator: bool = True,
        origin: str | None = None,
        known: Mapping[str, Any] = MappingProxyType({}),
    ):
        import tensorflow as tf

        from electra_tf.inference import pseudo_likelihood
        from electra_tf.model.encoder import TextEncoder
        from electra_tf.pretrain.generator import FillsMasks

        self.config = config
        self.vocab = vocab
        settings = tokenizer_config or resolve_settings(
            vocab, do_lower_case=config.do_lower_case
        )
        self.tokenizer = Tokenizer(vocab, *settings)
        self.name = name or config.model_dir
        self.has_generator = has_generator
        self.origin = origin or self.name
        self.max_seq_length = config.max_seq_length
        self._network, self._known = network, known
        if isinstance(network, TextEncoder):
            self.pretrainer, self.encoder = None, network
            self.what = "an encoder without heads"
            return
        self.pretrainer, self.what = network, network.objective.model
        if network.electra.encoder.transformer_layers:  # not only two towers
            self.encoder = network.electra
        if not has_generator:
            self.what += " without its generator"
        self.methods = pseudo_likelihood.methods_of(network)
        traced = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        if network.discriminator_predictions is not None:
            self._detect = traced(self._probabilities)
            self._corrupt = traced(self._corrupted)
        if isinstance(network.generator, FillsMasks):
            self._logits_at = network.generator.logits_at

    def _score_function(self, method: str) -> Callable[..., Any]:
        from electra_tf.inference import pseudo_likelihood

        return pseudo_likelihood.function_of(
            self.pretrainer, method, self.vocab.mask_id
        )

    def corrupt(
        self, texts: Any, seed: int = 0, batch_size: int = 32
    ) -> list[list[TokenPrediction]]:
        """Lets the generator replace tokens as in training, and detects them.

        Places are distinct, though, and drawn without `rare_mask_power`, which needs
        the counts of the training data; no text is left intact. Tokens whose sample is
        the original stay as they are.
        """
        if self._detect is None or not self.has_generator:
            raise self.lacks("corrupt")
        texts = list(each_text(texts))
        # There must be room for as many positions as masking draws.
        least = self.config.max_predictions_per_seq
        predictions: list[list[TokenPrediction]] = [[] for _ in texts]
        parts = self._batches(texts, batch_size, least)
        for number, (windows, packed) in enumerate(parts):
            # For each new number of Python's there would be a new graph.
            key = np.int64(seed), np.int64(number)
            found = self._corrupt(packed._asdict(), self._words, *key)
            ids, probs = (x.numpy() for x in found)
            for row, (window, offsets) in enumerate(windows):
                for place, (start, end) in enumerate(offsets, start=1):
                    replaced = ids[row, place] != window.ids[place - 1]
                    predictions[window.text].append(
                        TokenPrediction(
                            texts[window.text][start:end],
                            start,
                            end,
                            float(probs[row, place]),
                            self.vocab.tokens[ids[row, place]] if replaced else None,
                        )
                    )
        return predictions

    def save(self, path: str | os.PathLike, format: str = "huggingface") -> None:
        """Writes the model with its present weights into a new directory.

        Args:
          format: "huggingface" or "keras_hub", a directory for each network; "tf1", a
            checkpoint of the original.
        """
        writers = {
            "huggingface": huggingface.write_huggingface,
            "keras_hub": keras_hub.write_keras_hub,
            "tf1": tf1.write_tf1,
        }
        if format not in writers:
            raise UserError(
                f"format is {format!r}; it is one of {', '.join(writers)}.\n"
                "export_model.py has others."
            )
        tensors = {v.path: np.array(v) for v in self._network.variables}
        settings = self.vocab, self.tokenizer.config
        stored = StoredModel(
            self.config, *settings, tensors, {}, 0, self.origin, self._known
        )
        writers[format](stored, "all", path, log=say_nothing)

    @functools.cached_property
    def _words(self):
        """The config's list of words; None, and a line on stderr, if it is gone."""
        from electra_tf.pretrain.word_masking import WordTables

        if self.config.word_list is None:
            return None
        try:
            return WordTables.of(
                word_list.load(
                    self.config.word_list, self.vocab, self.config.do_lower_case
                )
            )
        except UserError as error:
            why = " ".join(str(error).split())
            _to_stderr(f"Note: {why} Words are masked by their ## pieces only.")
            return None

    def _masked(self, batch, words, seed, number):
        from electra_tf.pretrain import masking

        settings = masking.MaskingSettings.of(self.config, self.vocab, words)
        own = {"repeated_masks": "fixed", "intact_share": 0.0}
        settings = dataclasses.replace(settings, **own)
        return masking.mask_batch(batch, seed, number, settings)

    def _corrupted(self, batch, words, seed, number):
        output = self.pretrainer(self._masked(batch, words, seed, number))
        return output.corrupted_ids, output.discriminated.probs

    def _probabilities(self, input_ids, input_mask, segment_ids):
        import tensorflow as tf

        return tf.sigmoid(
            self.pretrainer.replaced_logits(input_ids, input_mask, segment_ids)
        )


def load(path: str | os.PathLike) -> PretrainedModel:
    """Loads a pre-trained model.

    Args:
      path: the directory of a run, `<data-dir>/models/<model-name>`, whose newest
        intact checkpoint is taken; or any other path that `interop.readers` reads.

    Raises `UserError` if the path holds none, or if its files do not fit each other.
    """
    try:
        found = readers.find(path, log=say_nothing)
    except readers.NoModelError as error:
        raise _with_runs(path, error) from None
    path = os.path.abspath(local_of(os.fspath(path)))
    startup.import_tensorflow()
    log = say_nothing if found.run else _to_stderr
    stored = found.read(log=log, slots=False, strict=False)
    if any(name.startswith(HEADS) for name in stored.tensors):
        network = empty_pretrainer(stored.config, stored.vocab)
    else:
        from electra_tf.model.encoder import TextEncoder

        shape, width = stored.config.model_config(), stored.config.embedding_size
        network = TextEncoder(shape, width, dtype="float32")
        network.build(None)
    weights = of_arrays(stored.origin, stored.tensors)
    weights.assign_to({v.path: v.value for v in network.variables})
    # Without a generator, a uniform one is assumed; a run's files say it.
    assumed = "generator" not in stored.known
    return PretrainedModel(
        stored.config,
        stored.vocab,
        network,
        stored.tokenizer_config,
        path,
        has_generator=stored.config.generator != "uniform" or not assumed,
        origin=found.origin,
        known=stored.known,
    )


def _with_runs(path: str | os.PathLike, error: UserError) -> UserError:
    """The error, or for a data directory the one that names its runs."""
    runs = sorted(Path(path).glob("models/*/config.json"))
    if not runs:
        return error
    names = ", ".join(str(config.parent) for config in runs)
    return UserError(f"{path} is a data directory.\nGive one of its runs: {names}.")


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def score_tokens(
    texts: Any, model: TextModel | str | os.PathLike, **options
) -> Iterator[list[TokenScore]]:
    """Scores of each text's tokens by a model or the model of a run's directory.

    `options`: those of `TextModel.score_tokens`.
    """
    model = model if isinstance(model, TextModel) else load(model)
    return model.score_tokens(texts, **options)


def score_texts(
    texts: Any, model: TextModel | str | os.PathLike, **options
) -> Iterator[TextScore]:
    """The score of each text, otherwise as `score_tokens`."""
    model = model if isinstance(model, TextModel) else load(model)
    return model.score_texts(texts, **options)
