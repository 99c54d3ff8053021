# SPDX-License-Identifier: Apache-2.0
"""Models with random weights that can be asked for scores, without a run."""

from pathlib import Path

from conftest import SPECIAL
from tiny_pretraining import VARIANTS, VOCAB_SIZE, tiny_config, tiny_model

from electra_tf.detection import PretrainedModel
from electra_tf.vocabulary import Vocabulary


def word_vocabulary(folder: Path) -> Vocabulary:
    """The special tokens, then w0, w1, ...: the word wN has id N + 5."""
    path = folder / "vocab.txt"
    words = [f"w{i}" for i in range(VOCAB_SIZE - len(SPECIAL))]
    path.write_text("".join(f"{token}\n" for token in [*SPECIAL, *words]))
    return Vocabulary.load(str(path))


def scoring_model(variant: str, vocab: Vocabulary, **changes) -> PretrainedModel:
    """A tiny model of a variant of tiny_pretraining; 30 tokens fit it."""
    pretrainer = tiny_model(variant, **changes)
    config = tiny_config(**(VARIANTS[variant] | changes))
    return PretrainedModel(config, vocab, pretrainer)
