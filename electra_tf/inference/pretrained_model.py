# SPDX-License-Identifier: Apache-2.0
"""Pre-trained models, and encoders without heads: detect, corrupt, fill masks, score.

model = electra_tf.load("data/models/electra_small")
[tokens] = model.detect("The doctor opened the giraffe and read it.")
max(tokens, key=lambda token: token.probability).text
[[best, *others]] = model.fill_mask("The doctor opened the [MASK] and read it.")
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from electra_tf import startup
from electra_tf.console import silent
from electra_tf.errors import UserError
from electra_tf.inference.model import Model, TokenPrediction
from electra_tf.inference.scoring import METHODS, ONE_BY_ONE, chunks, windows_of
from electra_tf.interop import readers
from electra_tf.interop.checkpoint import HEADS, StoredModel
from electra_tf.paths import local_of
from electra_tf.pretrain.stored import read
from electra_tf.storage.checkpoints import of_arrays
from electra_tf.text import tokenization
from electra_tf.text.tokenization import Tokenizer, each_text
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

if TYPE_CHECKING:
    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.pretrain.pretraining import ElectraPretrainer


_BATCH = 32  # windows that are corrupted together


def methods_of(pretrainer: ElectraPretrainer) -> list[str]:
    """The scoring methods of a model, the best one first."""
    offered = {pretrainer.objective.scoring, pretrainer.generator.scoring}
    # The formula of electra_tt assumes that samples were drawn from q itself.
    settings = pretrainer.hparams
    drawn = settings.temperature == 1 and not settings.disallow_correct
    has_q = pretrainer.generator.log_q is not None and drawn
    if "discriminator" in offered and has_q:
        offered.add("electra_tt")
    if "mask_each" in offered:
        offered.update(ONE_BY_ONE)
    return [name for name in METHODS if name in offered]


def function_of(model: ElectraPretrainer, method: str, vocab: Vocabulary) -> Callable:
    """A scoring method as a graph; docs/electric.md derives the methods.

    | method | model | passes over a text of n tokens |
    |---|---|---|
    | electric | Electric: minus the energy | 1 |
    | electra_tt | ELECTRA with two towers: p from its discriminator and log q | 1 |
    | two_tower | Electric's generator, its own log-probabilities | 1 |
    | mask_each | a masked language model: each token masked in turn | n |
    | within_word_l2r | the same, with the rest of its word (arXiv 2305.10588) | n |
    | discriminator | ELECTRA: log-probability of "original"; no likelihood | 1 |

    Returns: function of ids, mask and segment ids, int32 [B, L], to float32 [B, L].
      Those of ONE_BY_ONE also take positions int32 [B] and return float32 [B].
    """
    import tensorflow as tf

    from electra_tf.pretrain.generators import MaskedInputs
    from electra_tf.pretrain.objectives import log_probability

    def electric(*texts):
        """-E(x)_t of every token (Electric paper, sections 2.1 and 2.4).

        The head's logit that a token was replaced is its energy. As noise-contrastive
        estimation drives the normaliser to 1, -E(x)_t estimates
        log p(x_t | the other tokens).
        """
        return -model.replaced_logits(*texts, net_only=True)

    def discriminator(*texts):
        """log P(token was not replaced)."""
        return tf.math.log_sigmoid(-model.replaced_logits(*texts))

    def two_tower(*texts):
        """log q(x_t | x before t, x after t), by the two towers."""
        generator = model.generator
        return generator.log_q(generator(MaskedInputs.unmasked(*texts)), texts[0])

    def electra_tt(*texts):
        """log p(x_t | the other tokens) from the discriminator and q (section 3.2)."""
        log_q, mask_prob = two_tower(*texts), model.hparams.mask_prob
        return log_probability(model.replaced_logits(*texts), log_q, mask_prob)

    def mask_each(ids, mask, segments, positions, masked=None):
        """log p(x_t | x without t) of the token t at each row's position."""
        if masked is None:
            masked = tf.range(tf.shape(ids)[1]) == positions[:, None]
        targets = tf.gather(ids, positions, batch_dims=1)
        ids = tf.where(masked, vocab.mask_id, ids)
        logits = model.generator.logits_at(ids, mask, segments, positions[:, None])
        return -tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits[:, 0])

    def within_word_l2r(ids, mask, segments, positions):
        """log p(x_t | x without t and what follows it in its word)."""
        begins = tf.logical_not(tf.gather(vocab.continuations, ids))
        word = tf.cumsum(tf.cast(begins, tf.int32), axis=1)
        is_own = word == tf.gather(word, positions, batch_dims=1)[:, None]
        follows = tf.range(tf.shape(ids)[1]) >= positions[:, None]
        return mask_each(ids, mask, segments, positions, is_own & follows)

    methods = electric, discriminator, two_tower, electra_tt
    methods += within_word_l2r, mask_each
    specs = [tf.TensorSpec([None, None], tf.int32)] * 3
    scores = {function.__name__: function for function in methods}
    if method in ONE_BY_ONE:
        specs.append(tf.TensorSpec([None], tf.int32))
    return tf.function(scores[method], input_signature=specs, autograph=False)


class PretrainedModel(Model):
    """A pre-trained ELECTRA or Electric model with its tokenizer; see `load`.

    Args:
      stored: what the files of the model state.
      network: an ElectraPretrainer, or a TextEncoder alone, with the weights.
    """

    def __init__(self, stored: StoredModel, network):
        import tensorflow as tf

        from electra_tf.model.encoder import TextEncoder

        self._stored = stored._replace(tensors={}, slots={})
        self.config, self.vocab, settings, *_ = stored
        self.tokenizer = Tokenizer(self.vocab, *settings)
        self.name, self.origin = stored.name, stored.origin
        self.max_seq_length = self.config.max_seq_length
        self.network, vocab = network, self.vocab
        # A uniform generator is assumed for files without one; a run's config names it.
        kind = self.config.generator_kind
        self.has_generator = "generator" in stored.known or bool(kind.scopes)
        if isinstance(network, TextEncoder):
            self.pretrainer, self.encoder = None, network
            self.what = "an encoder without heads"
            return
        self.pretrainer, self.what = network, network.objective.model
        if network.electra.encoder.transformer_layers:  # not only two towers
            self.encoder = network.electra
        if not self.has_generator:
            self.what += " without its generator"
        self.methods = {
            name: function_of(network, name, vocab) for name in methods_of(network)
        }
        traced = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        if network.discriminator_predictions is not None:
            self._detect = traced(self._probabilities)
            self._corrupt = traced(self._corrupted)
        self._logits_at = network.generator.logits_at

    @classmethod
    def trained(
        cls, config: PretrainingConfig, vocab: Vocabulary, network
    ) -> PretrainedModel:
        """The model of an ElectraPretrainer, or TextEncoder, that a program trained."""
        settings = resolve_settings(vocab, do_lower_case=config.do_lower_case)
        known = {k: getattr(config, k) for k in ("generator", "max_seq_length")}
        rest = settings, {}, {}, 0, config.model_dir, known
        return cls(StoredModel(config, vocab, *rest), network)

    @classmethod
    def of(cls, stored: StoredModel, precision: str = "float32") -> PretrainedModel:
        """The model of files that were read, with its weights.

        Args:
          precision: "float32" or "mixed_bfloat16", the type of the computation; weights
            and answers are float32.
        """
        if any(name.startswith(HEADS) for name in stored.tensors):
            from electra_tf.pretrain.pretraining import build_pretrainer

            parts = stored.config, stored.vocab, precision
            network = build_pretrainer(*parts, at_rest=True)
        else:
            from electra_tf.model.encoder import TextEncoder

            shape, width = stored.config.model_config(), stored.config.embedding_size
            network = TextEncoder(shape, width, dtype=precision)
            network.build(None)
        weights = of_arrays(stored.origin, stored.tensors)
        weights.assign_to({v.path: v.value for v in network.variables})
        return cls(stored, network)

    @property
    def provenance(self) -> dict[str, Any]:
        """Of the weights, for the manifest of an export."""
        return {
            "objective": self.config.objective,
            "step": self._stored.step,
            "trained_length": self._stored.trained_length,
        }

    def corrupt(self, texts: Any, seed: int = 0) -> list[list[TokenPrediction]]:
        """Lets the generator replace tokens as in training, and detects them.

        Unlike in training, positions are distinct. Tokens whose sample is the original
        stay as they are.
        """
        if self._detect is None or not self.has_generator:
            raise self.lacks("corrupt")
        texts, size = list(each_text(texts)), self.max_seq_length - 2
        predictions: list[list[TokenPrediction]] = [[] for _ in texts]
        windows = []
        for number, text in enumerate(texts):
            ids, offsets = self.tokenizer.encode_with_offsets(text)
            for window in windows_of(number, ids, size, overlap=0):
                windows.append((window, offsets[window.start :]))
        for number, batch in enumerate(chunks(windows, _BATCH)):
            # There must be room for as many positions as masking draws.
            lengths = [len(window.ids) + 2 for window, _ in batch]
            length = max(self.config.max_predictions_per_seq, *lengths)
            packed = tokenization.pack(self.vocab, [w.ids for w, _ in batch], length)
            # A Python int would make a new graph for each value.
            key = np.int64((seed + 2**63) % 2**64 - 2**63), np.int64(number)
            ids, probabilities = self._corrupt(packed._asdict(), *key)
            rows = zip(
                batch, ids.numpy()[:, 1:], probabilities.numpy()[:, 1:], strict=True
            )
            for (window, offsets), new_ids, values in rows:
                text, found = texts[window.text], predictions[window.text]
                tokens = zip(window.ids, offsets, new_ids, values, strict=False)
                for old, (start, end), new, probability in tokens:
                    token = text[start:end], start, end, float(probability)
                    replacement = self.vocab.tokens[new] if new != old else None
                    found.append(TokenPrediction(*token, replacement))
        return predictions

    def save(self, path: str | os.PathLike, format: str = "huggingface") -> None:
        """Writes the model with its current weights into a new directory.

        Args:
          format: "huggingface" or "keras_hub", with a directory for each network; or
            "tf1", a checkpoint of the original.
        """
        if format not in readers.WRITERS:
            raise UserError(
                f"format {format!r} is not one of {', '.join(readers.WRITERS)}.\n"
                "export_model.py has others."
            )
        stored = self.stored()._replace(step=0)  # The weights may have changed.
        readers.WRITERS[format](stored, "all", path, log=silent)

    def stored(self) -> StoredModel:
        """The model with its current weights, as files hold it."""
        tensors = {v.path: np.array(v) for v in self.network.variables}
        return self._stored._replace(tensors=tensors)

    def _corrupted(self, batch, seed, number):
        from electra_tf.pretrain import masking

        config = self.config.replaced(repeated_masks="fixed")
        how = masking.Masking.of(config, self.vocab)
        output = self.pretrainer(masking.mask_batch(batch, seed, number, how))
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
    found = readers.find(path, log=silent)
    startup.import_tensorflow()
    log = silent if found.run else functools.partial(print, file=sys.stderr)
    model = PretrainedModel.of(read(found, log=log, strict=False))
    model.name = os.path.abspath(local_of(os.fspath(path)))
    return model
