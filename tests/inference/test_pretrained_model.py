# SPDX-License-Identifier: Apache-2.0
"""Predictions of a trained model for tokens: load, detect, corrupt, and the marks."""

import json
import re
import shutil

import numpy as np
import pytest

import electra_tf
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.inference import detection
from electra_tf.inference.model import TokenPrediction
from electra_tf.pretrain.pretraining import build_pretrainer
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.exporting import model_of
from tests.helpers.runs import SPECIAL, TINY

TEXT = "w1 W2, w3 w4"  # "," is not in the vocabulary


@pytest.fixture(scope="module")
def run(pretrained):
    return pretrained("electra") / "models" / "electra"


@pytest.fixture(scope="module")
def model(run):
    return electra_tf.load(run)


@pytest.fixture
def copy(run, tmp_path):
    """A copy of the run that may be changed; its vocabulary is tmp_path/vocab.txt."""
    shutil.copy(run.parents[1] / "vocab.txt", tmp_path)
    return shutil.copytree(run, tmp_path / "models" / "copy")


def test_probabilities_are_the_discriminators(model):
    """The head's output on exactly these ids, computed layer by layer."""
    (tokens,) = model.detect(TEXT)
    ids = np.array([[2, 6, 7, 1, 8, 9, 3]])
    encoded = model.pretrainer.electra(ids, np.ones_like(ids), np.zeros_like(ids))
    logits = model.pretrainer.discriminator_predictions(encoded.sequence_output)
    probs = 1 / (1 + np.exp(-np.asarray(logits)[0, 1:-1]))
    assert [t.probability for t in tokens] == pytest.approx(probs.tolist(), abs=1e-6)


def test_probabilities_are_independent_of_the_batch(model):
    texts = [TEXT, "", "w5 " * 20, "w9"]
    together = model.detect(texts)
    assert [len(tokens) for tokens in together] == [5, 0, 20, 1]
    for text, tokens in zip(texts, together, strict=True):
        (alone,) = model.detect([text])
        assert [t[:3] for t in alone] == [t[:3] for t in tokens]
        assert [t.probability for t in alone] == pytest.approx(
            [t.probability for t in tokens], abs=1e-5
        )
    assert model.detect([]) == []


def test_long_texts_are_read_in_windows(model):
    text = " ".join(f"w{i % 50}" for i in range(70))  # max_seq_length is 32
    (tokens,) = model.detect(text)
    assert [t.text for t in tokens] == text.split()
    (second,) = model.detect(" ".join(text.split()[30:60]))
    assert [t.probability for t in tokens[30:60]] == pytest.approx(
        [t.probability for t in second], abs=1e-5
    )


def test_corrupt_replaces_some_tokens_as_in_training(model):
    texts = [" ".join(f"w{(i + k) % 50}" for i in range(30)) for k in range(60)]
    found = model.corrupt(texts, seed=3)
    replaced = [t for tokens in found for t in tokens if t.is_replaced]
    # int((0.15 + 0.005) * 32) = 4 positions of each; few samples are the original.
    assert 0.85 * 4 * 60 < len(replaced) <= 4 * 60
    assert all(t.replacement != t.text for t in replaced)
    assert model.corrupt(texts, seed=3) == found
    assert model.corrupt(texts, seed=4) != found
    assert model.corrupt(texts, seed=3 + 2**64) == found  # of any size
    for count in range(1, 6):
        model.corrupt(["w1 w2"] * count)
    assert model._corrupt.experimental_get_tracing_count() <= 3  # of 9 calls


def test_a_checkpoint_keeps_the_noise_of_its_training(copy):
    """config.json has that of a later start; Electric's scores depend on it."""
    config = json.loads((copy / "config.json").read_text())
    config |= {"mask_prob": 0.5, "temperature": 2.0, "disallow_correct": True}
    (copy / "config.json").write_text(json.dumps(config))
    found = electra_tf.load(copy / "model.ckpt-12").config
    assert (found.mask_prob, found.temperature) == (0.15, 1.0)
    assert not found.disallow_correct


def test_corrupt_replaces_whole_words():
    """Both tokens of a word are masked or neither, as in training."""
    vocab = Vocabulary((*SPECIAL, *"abcd", "##e", "##f"))
    # Every sample is a fake.
    hparams = TINY | {"vocab_size": len(vocab), "disallow_correct": True}
    hparams |= {"mask_unit": "word"}
    config = PretrainingConfig.from_hparams("/nowhere", "words", hparams)
    network = build_pretrainer(config, vocab, at_rest=True)
    model = model_of(vocab, network)
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(["ae", "bf", "ce", "df"], 14)) for _ in range(40)]
    at = [[t.is_replaced for t in tokens] for tokens in model.corrupt(texts)]
    found = np.reshape(at, (-1, 2)).sum(axis=1)
    assert (found == 2).sum() == 80 and not (found == 1).any()  # 4 of 28 tokens each


# Marks.


def prediction(text, start, probability, replacement=None):
    return TokenPrediction(text, start, start + len(text), probability, replacement)


TOKENS = [
    prediction("a", 0, 0.9, "x"),  # caught
    prediction("<", 2, 0.1, "##y"),  # missed
    prediction("b", 3, 0.6),  # a false alarm: second of two
    prediction(">", 4, 0.2),
    prediction("cd", 6, 0.3),
]


def test_as_many_tokens_are_flagged_as_were_replaced():
    assert detection.flagged(TOKENS) == {0, 2}
    assert detection.score(TOKENS) == (2, 1)
    untouched = [token._replace(replacement=None) for token in TOKENS]
    assert detection.flagged(untouched, threshold=0.5) == {0, 2}
    assert detection.flagged(untouched, threshold=0.7) == {0}
    # A corrupted text in which the generator drew nothing but the original tokens.
    assert detection.score(untouched) == (0, 0)


def test_control_characters_do_not_reach_the_terminal():
    tokens = [token._replace(text="\x1b[2J") for token in TOKENS]
    for text in ("x\x1b]0;title\x07y", "\x9b2J", "\r\x7f\x08"):
        shown = detection.to_terminal(text * 3, tokens, colour=False)
        assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown), shown


def test_a_model_trained_in_a_program_has_the_methods_of_a_loaded_one(model, tmp_path):
    parts = model.config, model.vocab, model.pretrainer
    trained = electra_tf.PretrainedModel.trained(*parts)
    assert trained.detect(TEXT) == model.detect(TEXT)
    trained.save(tmp_path / "saved")
    loaded = electra_tf.load(tmp_path / "saved" / "discriminator")
    [found], [expected] = loaded.detect(TEXT), model.detect(TEXT)
    np.testing.assert_allclose(
        [t.probability for t in found], [t.probability for t in expected], atol=1e-5
    )
