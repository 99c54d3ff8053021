# SPDX-License-Identifier: Apache-2.0
"""ELECTRA 15 %, Replace MLM and All-Tokens MLM: their losses by hand, who learns."""

import types

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import ablations
from electra_tf.pretrain.generator import MaskedInputs
from electra_tf.pretrain.objectives import CorruptedText, LossWeights, objective_class
from tests.helpers.tiny_pretraining import gradients, tiny_batch, tiny_model

log = np.log


class Encoder:
    """Hidden states that are given; its embeddings are the unit vectors."""

    def __init__(self, states):
        self.states = tf.constant(states, tf.float32)
        tables = {"word_embeddings": tf.eye(4)}
        self.embeddings = types.SimpleNamespace(table=tables.get)

    def __call__(self, *_):
        return types.SimpleNamespace(sequence_output=self.states)


def inputs(positions, weights, other=None):
    """One row of three tokens, the words 0, 1 and 2."""
    return MaskedInputs(
        input_ids=tf.constant([[0, 1, 2]]),
        input_mask=tf.constant([[1, 1, 1]]),
        segment_ids=tf.zeros([1, 3], tf.int32),
        masked_input_ids=tf.constant([[0, 3, 3]]),
        masked_lm_positions=tf.constant([positions]),
        masked_lm_ids=tf.constant([positions]) * tf.cast([weights], tf.int32),
        masked_lm_weights=tf.constant([weights], tf.float32),
        other_weights=None if other is None else tf.constant([other], tf.float32),
    )


def outputs(name, states, batch, corrupted, new_logits=None, **settings):
    """What an objective makes of hidden states that are scores of the four words.

    The heads are the identity and, of the discriminator's kind, `new_logits`.
    """
    settings = {"cloze_chunk_size": 2, "embedding_size": 4, "vocab_size": 4} | settings
    objective = objective_class(name)(types.SimpleNamespace(**settings))
    head = ablations.MaskedLMHead(4, 4, "token_predictions")
    head.build((None, 4))
    head.call = lambda hidden: hidden
    model = types.SimpleNamespace(
        electra=Encoder(states),
        token_predictions=head,
        discriminator_predictions=lambda _: tf.constant([new_logits], tf.float32),
    )
    corrupted = tf.constant([corrupted])
    replaced = corrupted != batch.input_ids
    text = CorruptedText(corrupted, replaced, batch, None)
    return objective.discriminate(model, text, None, LossWeights())


def test_electra_15_by_hand():
    """Three tokens, the third masked and replaced; logits of "replaced" 0, 1 and -2.

    Over the masked one: -log sigmoid(-2) = log(1 + e^2) = 2.1269.
    Over another, the second, which is original: -log sigmoid(-1) = log(1 + e) = 1.3133.
    (ELECTRA: (log 2 + 1.3133 + 2.1269) / 3 = 1.3778.)
    """
    batch = inputs([2, 0], [1, 0], other=[0, 1, 0])
    states, corrupted = np.zeros([1, 3, 4]), [0, 1, 3]
    for name, settings, expected in (
        ("electra_15", {"electra_15_positions": "masked"}, log(1 + np.e**2)),
        ("electra_15", {"electra_15_positions": "other"}, log(1 + np.e)),
        ("electra", {}, (log(2) + log(1 + np.e) + log(1 + np.e**2)) / 3),
    ):
        out = outputs(name, states, batch, corrupted, [0, 1, -2], **settings)
        assert float(out.loss) == pytest.approx(expected, rel=1e-5)


def test_replace_mlm_by_hand():
    """Three tokens 0 1 2 of four words; 1 and 2 masked, the network reads 0 1 3.

    Scores at the second token: log 1, 2, 3, 4, so p(1) = 2 / 10 and 3 is predicted.
    At the third: log 1, 1, 6, 2, so p(2) = 6 / 10 and 2 is predicted.
    Loss (log 5 + log(10 / 6)) / 2 = 1.0601; one of two is right, and the replaced one.
    """
    states = np.log([[[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 6, 2]]])
    batch = inputs([1, 2, 0], [1, 1, 0])
    out = outputs("replace_mlm", states, batch, [0, 1, 3])
    assert float(out.loss) == pytest.approx((log(5) + log(10 / 6)) / 2, rel=1e-5)
    assert out.predictions.numpy()[0, :2].tolist() == [3, 2]
    assert out.is_replaced.numpy()[0, :2].tolist() == [False, True]


def test_all_tokens_mlm_by_hand():
    """Three tokens 0 1 2 of four words; the network reads 0 1 3.

    Probability D of copying 1/2, 3/4 and 1/5, that is logits of "new" 0, log(1/3) and
    log 4. Softmax at the first: 1/4 each; at the second p(1) = 2/10; at the third
    p(2) = 6/10 (as for Replace MLM).
      p(0) = 1/2 + 1/2 1/4 = 5/8; p(1) = 3/4 + 1/4 2/10 = 4/5; p(2) = 4/5 6/10 = 12/25
    Loss (log(8/5) + log(5/4) + log(25/12)) / 3 = 0.4757. Predicted: 0 and 1 by copying,
    2 anew (12/25 against 1/5 + 4/5 2/10 = 9/25 for 3).
    """
    states = np.log([[[1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 6, 2]]])
    batch = inputs([1, 2, 0], [1, 1, 0])
    new = [0, log(1 / 3), log(4)]
    out = outputs("all_tokens_mlm", states, batch, [0, 1, 3], new)
    expected = [log(8 / 5), log(5 / 4), log(25 / 12)]
    np.testing.assert_allclose(out.per_token_loss[0], expected, rtol=1e-5)
    assert float(out.loss) == pytest.approx(np.mean(expected), rel=1e-5)
    assert out.predictions.numpy().tolist() == [[0, 1, 2]]
    np.testing.assert_allclose(out.probs, [[1 / 2, 1 / 4, 4 / 5]], rtol=1e-5)


@pytest.mark.parametrize("logit", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("log_softmax", [-500.0, -1.0, 0.0])
def test_copying_in_log_space(logit, log_softmax):
    """Nothing overflows; the gradients of extreme cases are numbers."""
    variables = [tf.Variable(logit), tf.Variable(log_softmax)]
    with tf.GradientTape(persistent=True) as tape:
        copied, other = (
            ablations.log_with_copying(*variables, tf.constant(c))
            for c in (1 > 0, 1 < 0)
        )
    copying, exact = np.logaddexp(0, logit), np.float64(log_softmax)
    expected = np.logaddexp(-copying, -np.logaddexp(0, -logit) + exact)
    assert float(copied) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert float(other) == pytest.approx(-np.logaddexp(0, -logit) + exact, rel=1e-5)
    for loss in (copied, other):
        assert np.isfinite(tape.gradient(loss, variables)).all()


def test_the_distribution_with_copying_sums_to_one():
    rng = np.random.default_rng(0)
    scores = tf.constant(rng.normal(size=[7, 11]), tf.float32)
    logits = tf.constant(rng.normal(size=[7, 1]), tf.float32)
    is_copy = tf.one_hot(rng.integers(0, 11, 7), 11) > 0
    log_p = ablations.log_with_copying(logits, tf.nn.log_softmax(scores), is_copy)
    np.testing.assert_allclose(np.exp(log_p).sum(1), 1, rtol=1e-5)


def test_all_tokens_mlm_does_not_depend_on_the_chunks():
    batch = tiny_batch()
    whole, parts = (
        gradients(
            tiny_model("all_tokens_mlm", cloze_chunk_size=size),
            lambda out: out.total_loss,
            batch,
        )
        for size in (1024, 7)
    )
    for path, expected in whole.items():
        np.testing.assert_allclose(parts[path], expected, rtol=1e-3, atol=1e-5)


def test_the_other_positions_have_to_be_drawn():
    model = tiny_model("electra_15", electra_15_positions="other")
    batch = tiny_batch(draw_others=True)
    out = model(batch)
    others = batch["other_weights"].numpy() > 0
    logits = out.discriminated.logits.numpy()[others]
    replaced = out.is_replaced.numpy()[others]
    # Else there would be nothing to learn but "original".
    assert 0 < replaced.mean() < 1
    expected = (np.logaddexp(0, logits) - replaced * logits).mean()
    assert float(out.discriminated.loss) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["replace_mlm", "all_tokens_mlm"])
def test_no_gradient_reaches_the_generator(name):
    """And none of the generator's reaches the heads of the main network."""
    model, batch = tiny_model(name), tiny_batch()
    found = gradients(model, lambda out: out.discriminated.loss, batch)
    for path, gradient in found.items():
        if path.startswith("generator"):
            assert gradient is None or not gradient.any(), path
        elif not path.endswith("key/bias"):
            assert np.any(gradient), path
    found = gradients(model, lambda out: out.generated.loss, batch)
    heads = ("token_predictions", "discriminator_predictions", "electra/encoder")
    for path, gradient in found.items():
        if path.startswith(heads):
            assert gradient is None or not gradient.any(), path
