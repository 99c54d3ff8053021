# SPDX-License-Identifier: Apache-2.0
"""Scores of tokens and texts: each method against its definition, and hard inputs."""

import functools
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.inference import pretrained_model, scoring
from electra_tf.inference.scoring import windows_of
from electra_tf.pretrain.generators import MaskedInputs
from electra_tf.pretrain.objectives import log_probability, noise_contrastive_logits
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.exporting import model_of
from tests.helpers.runs import SPECIAL
from tests.helpers.tiny_pretraining import CLS, MASK, SEP, VOCAB_SIZE, tiny_model

IDS = [6, 40, 1, 7, 7, 90]  # "?" is not in the vocabulary: [UNK]
TEXT = "w1 w35 ? w2 w2 w85"
METHODS = {
    "electric": ["electric", "two_tower"],
    "electra": ["within_word_l2r", "mask_each", "discriminator"],
    "tied_all": ["within_word_l2r", "mask_each", "discriminator"],
    "mlm": ["within_word_l2r", "mask_each"],
    "two_tower": ["electra_tt", "two_tower", "discriminator"],
    "two_tower_alone": ["two_tower"],
    "unigram": ["electra_tt", "discriminator"],
    "uniform": ["discriminator"],
}
EVERY = [
    (variant, method) for variant, methods in METHODS.items() for method in methods
]
# One pair by default for each method, and one for each way to make it.
TELLING = {*EVERY[:5], ("two_tower", "electra_tt"), ("unigram", "electra_tt")}
every_method = pytest.mark.parametrize(
    ("variant", "method"),
    [
        pytest.param(*pair, marks=[pytest.mark.thorough] * (pair not in TELLING))
        for pair in EVERY
    ],
)


@pytest.fixture(scope="module")
def vocab():
    """The word wN has the id N + 5."""
    words = [f"w{i}" for i in range(VOCAB_SIZE - len(SPECIAL))]
    return Vocabulary((*SPECIAL, *words))


def scoring_model(variant, vocab, **changes):
    """A tiny model with random weights; 30 tokens fit it."""
    return model_of(vocab, tiny_model(variant, **changes))


@pytest.fixture(scope="module")
def models(vocab):
    return functools.cache(lambda variant: scoring_model(variant, vocab))


def texts_of(lengths, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(f"w{i}" for i in random.integers(0, 90, n)) for n in lengths]


def packed(ids):
    row = np.array([[CLS, *ids, SEP]], np.int32)
    return row, np.ones_like(row), np.zeros_like(row)


def log_softmax(x, axis=-1):
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum(axis=axis, keepdims=True))


def net(pretrainer, ids):
    hidden = pretrainer.electra(*packed(ids)).sequence_output
    return np.asarray(pretrainer.discriminator_predictions(hidden))[0, 1:-1]


def by_definition(model, method, ids):
    """Scores of a text that fits the model, without batches, padding or chunks."""

    def goes_on(place):
        return model.vocab.tokens[ids[place]].startswith("##")

    pretrainer, generator = model.pretrainer, model.pretrainer.generator
    if method == "electric":
        return -net(pretrainer, ids)
    if method == "discriminator":
        return -np.log1p(np.exp(net(pretrainer, ids)))
    if method == "electra_tt":
        probability = 1 / (1 + np.exp(net(pretrainer, ids).astype(np.float64)))
        text = MaskedInputs.unmasked(*map(tf.constant, packed(ids)))
        log_q = generator.log_q(generator(text), text.input_ids)[0, 1:-1]
        q, a = np.exp(np.float64(log_q)), 0.85 / 0.15
        return np.log(probability * q / (a * (1 - probability) + q))
    if method == "two_tower":
        before = np.asarray(generator.ltr(*packed(ids)).sequence_output)[0]
        after = np.asarray(generator.rtl(*packed(ids)).sequence_output)[0]
        states = np.concatenate([before[:-2], after[2:]], axis=-1)
        table = generator.ltr.embeddings.word_embeddings
        log_p = log_softmax(generator.head.logits(generator.head(states), table))
        return log_p[np.arange(len(ids)), ids]
    rows = np.repeat(packed(ids)[0], len(ids), axis=0)
    places = np.arange(len(ids))
    rows[places, places + 1] = MASK
    for place in places if method == "within_word_l2r" else ():
        for after in itertools.takewhile(goes_on, range(place + 1, len(ids))):
            rows[place, after + 1] = MASK
    states = generator.encoder(rows, np.ones_like(rows), np.zeros_like(rows))
    states = np.asarray(states.sequence_output)[places, places + 1]
    table = generator.encoder.embeddings.word_embeddings
    log_p = log_softmax(generator.head.logits(generator.head(states), table))
    return log_p[places, ids]


@every_method
def test_token_scores_follow_the_definition(models, variant, method):
    (tokens,) = models(variant).score_tokens(TEXT, method)
    expected = by_definition(models(variant), method, IDS)
    assert np.ptp(expected) > 0.1, "all alike: the test would not notice an exchange"
    np.testing.assert_allclose([t.score for t in tokens], expected, atol=2e-5)
    assert [t.text for t in tokens] == TEXT.split()
    assert all(TEXT[t.start : t.end] == t.text for t in tokens)
    assert [t.is_unknown for t in tokens] == [i == 1 for i in IDS]


def test_the_rest_of_a_word_is_masked_with_its_token():
    words = [f"w{i}" for i in range(VOCAB_SIZE - len(SPECIAL) - 2)]
    vocab = Vocabulary((*SPECIAL, *words, "##a", "##b"))
    model = scoring_model("mlm", vocab)
    ids = [vocab.ids[t] for t in "w1 ##a ##b w2 w3 ##b w4".split()]
    found = {}
    for method in METHODS["mlm"]:
        (tokens,) = model.score_tokens("w1ab w2 w3b w4", method)
        found[method] = [token.score for token in tokens]
        expected = by_definition(model, method, ids)
        np.testing.assert_allclose(found[method], expected, atol=2e-5)
    differs = np.not_equal(*found.values())
    assert differs.tolist() == [True, True, False, False, True, False, False]


@every_method
def test_a_text_scores_the_sum_of_its_tokens_in_any_batch(models, variant, method):
    """Texts without tokens keep their place."""
    texts = texts_of([3, 30, 1, 75, 0, 12, 29, 31, 0, 8])
    model = models(variant)
    together = list(model.score_texts(texts, method))
    assert len(together) == len(texts)
    for text, score in zip(texts, together, strict=True):
        ids = [int(word[1:]) + 5 for word in text.split()]
        parts = [ids[i : i + 30] for i in range(0, len(ids), 30)]
        expected = sum(by_definition(model, method, part).sum() for part in parts)
        assert score.score == pytest.approx(expected, abs=2e-3)
        assert (score.num_tokens, score.num_unknown) == (len(ids), 0)
    by_token = model.score_tokens(texts, method)
    sums = [sum(token.score for token in tokens) for tokens in by_token]
    assert sums == pytest.approx([score.score for score in together], abs=1e-3)


def test_texts_are_read_lazily(models, monkeypatch):
    monkeypatch.setattr(scoring, "POOL_TOKENS", 50)
    read = 0

    def endless():
        nonlocal read
        for text in itertools.cycle(texts_of([3, 12, 0, 7])):
            read += 1
            yield text

    scores = list(itertools.islice(models("electric").score_texts(endless()), 40))
    assert len(scores) == 40 and read < 60
    assert [s.num_tokens for s in scores] == [3, 12, 0, 7] * 10
    again = list(models("electric").score_texts(texts_of([3, 12, 0, 7])))
    for number, score in enumerate(scores):
        assert score.score == pytest.approx(again[number % 4].score, abs=1e-4)


def test_batches_hold_a_bounded_number_of_tokens():
    lengths = [2, 3, 3, 5, 9, 9, 40]
    found = list(scoring.batches(lengths * 400, lambda length: length))
    assert [item for batch in found for item in batch] == lengths * 400
    assert all(len(b) * max(b) <= scoring.BATCH_TOKENS + 40 * len(b) for b in found)
    # An item beyond the bound stands alone.
    (alone,) = scoring.batches([10**6], lambda length: length)
    assert alone == [10**6]


@pytest.mark.parametrize("overlap", [0, 1, 4, 9])
@pytest.mark.parametrize("length", [0, 1, 10, 11, 19, 20, 57])
def test_windows_count_every_token_once(length, overlap):
    ids = list(range(100, 100 + length))
    windows = list(windows_of(3, ids, 10, overlap))
    counted = [i for w in windows for i in w.ids[w.first : w.last]]
    assert counted == ids
    for window in windows:
        assert window.text == 3 and len(window.ids) <= 10
        assert ids[window.start] == window.ids[window.first]
    for one, two in itertools.pairwise(windows):
        shared = set(one.ids) & set(two.ids)
        assert len(shared) == overlap
        # A token of both counts where it is farther from the edge (or as far).
        for token in shared:
            in_one = token in one.ids[one.first : one.last]
            if not in_one and token not in two.ids[two.first : two.last]:
                continue  # a third one holds it, too
            to_end = len(one.ids) - one.ids.index(token)
            to_begin = two.ids.index(token) + 1
            assert (to_end >= to_begin) if in_one else (to_begin >= to_end)


@pytest.mark.parametrize(("variant", "method"), EVERY[1:3])
def test_overlapping_windows_of_long_texts(models, variant, method):
    (text,) = texts_of([50])
    ids = [int(word[1:]) + 5 for word in text.split()]
    (tokens,) = models(variant).score_tokens(text, method, overlap=11)
    first = by_definition(models(variant), method, ids[:30])
    second = by_definition(models(variant), method, ids[19:49])
    third = by_definition(models(variant), method, ids[38:])
    expected = [*first[:25], *second[6:25], *third[6:]]
    assert [t.score for t in tokens] == pytest.approx(expected, abs=2e-5)


def test_texts_without_known_tokens(models):
    texts = ["", " \t ", "? ! #", "w1 ?"]
    scores = list(models("electric").score_texts(texts))
    assert [s.num_tokens for s in scores] == [0, 0, 3, 2]
    assert [s.num_unknown for s in scores] == [0, 0, 3, 1]
    counts = [scoring.counts_of(s._asdict()) for s in scores]
    assert [c["texts_without_known_tokens"] for c in counts] == [1, 1, 1, 0]
    assert scores[0].score == 0 and math.isfinite(scores[2].score)
    assert list(models("electric").score_tokens([""])) == [[]]
    assert list(models("electric").score_texts([])) == []
    # Electric's own method is the default.
    (ours,) = models("electric").score_texts(TEXT)
    assert ours == next(models("electric").score_texts([TEXT], "electric"))


@pytest.mark.parametrize("mask_prob", [0.15, 0.4])
def test_the_best_discriminator_and_q_give_p(mask_prob):
    """By Bayes' rule over four words, where a right sample counts as original.

    P(x, original) = (1 - m) p(x) + m p(x) q(x); P(x, replaced) = m q(x) (1 - p(x)).
    """
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.1, 0.2, 0.3, 0.4])
    original = (1 - mask_prob) * p + mask_prob * p * q
    replaced = mask_prob * q * (1 - p)
    assert original.sum() + replaced.sum() == pytest.approx(1)
    logits = tf.constant(np.log(replaced / original)[None], tf.float32)
    log_q = tf.constant(np.log(q)[None], tf.float32)
    found = log_probability(logits, log_q, mask_prob)
    np.testing.assert_allclose(np.exp(found)[0], p, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{"disallow_correct": True}, {"temperature": 2.0}, {"objective": "electra_15"}],
)
def test_electra_tt_needs_q_and_the_share_of_samples(vocab, changes):
    model = scoring_model("two_tower", vocab, **changes)
    assert "electra_tt" not in pretrained_model.methods_of(model.pretrainer)


def test_the_right_energies_are_the_posterior_of_noise():
    """With E = -log p the training logit is Bayes' log odds of noise, signs and all."""
    random = np.random.default_rng(2)
    log_p, log_q = log_softmax(random.normal(0, 1, (2, 40, 7)))
    prior = 0.15
    energy = -log_p
    given = (tf.constant(values, tf.float32) for values in (energy, log_q))
    logits = noise_contrastive_logits(*given, prior)
    noise, data = prior * np.exp(log_q), (1 - prior) * np.exp(log_p)
    np.testing.assert_allclose(tf.sigmoid(logits), noise / (noise + data), atol=1e-6)

    # Another energy, or one with a normaliser other than 1, has a larger loss.
    def loss(energy):
        logits = energy + log_q + np.log(prior / (1 - prior))
        terms = noise * np.logaddexp(0, -logits) + data * np.logaddexp(0, logits)
        return terms.sum()

    for change in (0.01, -0.01, *(random.normal(0, 0.01, (5, *energy.shape)))):
        assert loss(energy + change) > loss(energy)
