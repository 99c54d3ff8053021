# SPDX-License-Identifier: Apache-2.0
"""Models with random weights that can be asked for scores, without a run."""

from pathlib import Path

from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL
from tests.helpers.tiny_pretraining import VARIANTS, VOCAB_SIZE, tiny_config, tiny_model


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
