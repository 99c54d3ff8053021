# SPDX-License-Identifier: Apache-2.0
"""A pre-trained model at work: which tokens of a text look replaced?

model = electra_tf.load("data/models/electra_small")
[tokens] = model.detect("The doctor opened the giraffe and read it.")
max(tokens, key=lambda token: token.probability).text

Its scores, how likely a text is, are in `scoring`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from electra_tf import startup
from electra_tf.config.hparams import read_hparams
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.inference.scoring import Scorer, TextScore, TokenScore
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary, resolve_settings


class TokenVerdict(NamedTuple):
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


class _Window(NamedTuple):
    """A part of a text that fits the model: `ids` without [CLS] and [SEP]."""

    text: int  # which text
    ids: list[int]
    offsets: list[tuple[int, int]]


class PretrainedModel:
    """A pre-trained ELECTRA or Electric model with its tokenizer; see `load`.

    Texts longer than `max_seq_length` are read in consecutive windows that do not
    overlap.
    """

    def __init__(self, config: PretrainingConfig, vocab: Vocabulary, pretrainer):
        import tensorflow as tf

        self.config = config
        self.vocab = vocab
        settings = resolve_settings(vocab, do_lower_case=config.do_lower_case)
        self.tokenizer = Tokenizer(vocab, *settings)
        self.pretrainer = pretrainer
        self._detect = tf.function(self._probabilities, reduce_retracing=True)
        self._corrupt = tf.function(self._corrupted, reduce_retracing=True)
        self._scorers: dict[str | None, Scorer] = {}

    def detect(
        self, texts: str | Iterable[str], batch_size: int = 32
    ) -> list[list[TokenVerdict]]:
        """How much each token of each text looks replaced, as it stands.

        Raises `UserError` for a model without discriminator (`electra_objective`
        false).
        """
        texts = self._texts(texts)
        verdicts: list[list[TokenVerdict]] = [[] for _ in texts]
        for windows, batch in self._batches(texts, batch_size):
            probs = self._detect(batch).numpy()
            for row, window in enumerate(windows):
                for place, (start, end) in enumerate(window.offsets, start=1):
                    text = texts[window.text][start:end]
                    probability = float(probs[row, place])
                    verdict = TokenVerdict(text, start, end, probability)
                    verdicts[window.text].append(verdict)
        return verdicts

    def corrupt(
        self, texts: str | Iterable[str], seed: int = 0, batch_size: int = 32
    ) -> list[list[TokenVerdict]]:
        """Lets the generator replace tokens as in training; the verdicts on the result.

        Tokens whose sample is the original stay as they are.  Raises `UserError` as
        `detect` does.
        """
        texts = self._texts(texts)
        verdicts: list[list[TokenVerdict]] = [[] for _ in texts]
        for number, (windows, batch) in enumerate(self._batches(texts, batch_size)):
            ids, probs = (x.numpy() for x in self._corrupt(batch, seed, number))
            for row, window in enumerate(windows):
                for place, (start, end) in enumerate(window.offsets, start=1):
                    replaced = ids[row, place] != window.ids[place - 1]
                    verdicts[window.text].append(
                        TokenVerdict(
                            texts[window.text][start:end],
                            start,
                            end,
                            float(probs[row, place]),
                            self.vocab.tokens[ids[row, place]] if replaced else None,
                        )
                    )
        return verdicts

    def scorer(self, way: str | None = None) -> Scorer:
        """What scores texts in a way of `pseudo_likelihood`; by default Electric's.

        Raises `UserError`, naming the ways that this model offers, if it is another.
        """
        if way not in self._scorers:
            self._scorers[way] = Scorer(
                self.pretrainer,
                self.vocab,
                self.tokenizer,
                self.config.max_seq_length,
                way,
                self.config.model_dir,
            )
        return self._scorers[way]

    def score_tokens(
        self, texts: str | Iterable[str], way: str | None = None, overlap: int = 0
    ) -> Iterator[list[TokenScore]]:
        """Scores of each text's tokens, in order; see `Scorer.score_tokens`."""
        return self.scorer(way).score_tokens(texts, overlap)

    def score_texts(
        self, texts: str | Iterable[str], way: str | None = None, overlap: int = 0
    ) -> Iterator[TextScore]:
        """The score of each text, in order; see `Scorer.score_texts`."""
        return self.scorer(way).score_texts(texts, overlap)

    def _texts(self, texts: str | Iterable[str]) -> list[str]:
        if self.pretrainer.discriminator_predictions is None:
            raise UserError(
                f"{self.config.model_dir} is a masked language model: it has no "
                "discriminator that could tell replaced tokens."
            )
        return [texts] if isinstance(texts, str) else list(texts)

    def _batches(
        self, texts: list[str], batch_size: int
    ) -> Iterator[tuple[list[_Window], dict[str, np.ndarray]]]:
        windows = list(self._windows(texts))
        for first in range(0, len(windows), batch_size):
            part = windows[first : first + batch_size]
            length = max(len(window.ids) for window in part) + 2
            # There must be room for as many positions as masking draws.
            length = max(length, self.config.max_predictions_per_seq)
            ids = np.full([len(part), length], self.vocab.pad_id, np.int32)
            mask = np.zeros([len(part), length], np.int32)
            for row, window in enumerate(part):
                real = len(window.ids) + 2
                ids[row, :real] = [self.vocab.cls_id, *window.ids, self.vocab.sep_id]
                mask[row, :real] = 1
            batch = {"input_ids": ids, "input_mask": mask}
            yield part, batch | {"segment_ids": np.zeros_like(ids)}

    def _windows(self, texts: list[str]) -> Iterator[_Window]:
        size = self.config.max_seq_length - 2
        for number, text in enumerate(texts):
            ids, offsets = self.tokenizer.encode_with_offsets(text)
            for first in range(0, len(ids), size):
                last = first + size
                yield _Window(number, ids[first:last], offsets[first:last])

    def _masked(self, batch, seed, number):
        from electra_tf.pretrain import masking

        return masking.mask_batch(
            batch,
            seed,
            number,
            mask_prob=self.config.mask_prob,
            max_predictions_per_seq=self.config.max_predictions_per_seq,
            cls_id=self.vocab.cls_id,
            sep_id=self.vocab.sep_id,
            mask_id=self.vocab.mask_id,
            repeated_masks="fixed",
        )

    def _corrupted(self, batch, seed, number):
        output = self.pretrainer(self._masked(batch, seed, number))
        return output.corrupted_ids, output.discriminated.probs

    def _probabilities(self, batch):
        import tensorflow as tf

        return tf.sigmoid(self.pretrainer.replaced_logits(**batch))


def load(model_dir: str | os.PathLike) -> PretrainedModel:
    """Loads the newest intact checkpoint of a pre-training run.

    Args:
      model_dir: `<data-dir>/models/<model-name>`; its config.json says the rest.

    Raises `UserError` if there is no run or no checkpoint, or if they do not fit.
    """
    model_dir = os.path.abspath(os.fspath(model_dir))
    path = os.path.join(model_dir, "config.json")
    if not os.path.isfile(path):
        raise UserError(
            f"{path} not found: {model_dir} is not the directory of a run.\n"
            "It is <data-dir>/models/<model-name> of run_pretraining.py."
        )
    models_dir, name = os.path.split(model_dir)
    config = PretrainingConfig.from_hparams(
        os.path.dirname(models_dir), name, {"model_dir": model_dir}, read_hparams(path)
    )
    vocab = Vocabulary.load(config.vocab_file)
    vocab.check_size(config.vocab_size)
    checkpoints = Checkpoints(model_dir, read_only=True, log=lambda line: None)
    saved = checkpoints.newest_intact()
    if saved is None:
        raise UserError(f"{model_dir} has no checkpoint yet.", EXIT_DAMAGED)
    expected = saved.identity.get("vocab_sha256", vocab.sha256)
    if expected != vocab.sha256:
        raise UserError(
            f"{checkpoints.prefix(saved.step)} was trained with another vocabulary:\n"
            f"sha256 {expected[:16]}... there, {vocab.sha256[:16]}... in {vocab.path}."
        )

    startup.import_tensorflow()
    from electra_tf.pretrain.pretraining import build_pretrainer

    pretrainer = build_pretrainer(
        config, (vocab.cls_id, vocab.sep_id, vocab.mask_id), dtype="float32"
    )
    weights = {v.path: v.value for v in pretrainer.variables}
    checkpoints.restore(saved, weights, partial=True)
    return PretrainedModel(config, vocab, pretrainer)


def score_tokens(
    texts: str | Iterable[str], model: PretrainedModel | str | os.PathLike, **options
) -> Iterator[list[TokenScore]]:
    """Scores of each text's tokens by a model or the model of a run's directory.

    `options`: those of `PretrainedModel.score_tokens`.
    """
    model = model if isinstance(model, PretrainedModel) else load(model)
    return model.score_tokens(texts, **options)


def score_texts(
    texts: str | Iterable[str], model: PretrainedModel | str | os.PathLike, **options
) -> Iterator[TextScore]:
    """The score of each text, otherwise as `score_tokens`."""
    model = model if isinstance(model, PretrainedModel) else load(model)
    return model.score_texts(texts, **options)
