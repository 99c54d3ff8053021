# SPDX-License-Identifier: Apache-2.0
"""The unigram generator: what it draws, its log q, Electric with it as noise."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import masking
from electra_tf.pretrain.generator import MaskedInputs
from tests.helpers.statistics import assert_like
from tests.helpers.tiny_pretraining import VOCAB_SIZE, tiny_batch, tiny_model

# Zipf's law, and tokens that the data do not have.
COUNTS = (1_000_000 / np.arange(1, VOCAB_SIZE + 1)).astype(np.int64)
COUNTS[[0, 2, 3, 4, 40, VOCAB_SIZE - 1]] = 0


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_samples_are_as_frequent_as_tokens_in_the_data(temperature):
    check_samples(COUNTS, temperature)


def test_low_temperature_with_many_tokens():
    """Whose counts to the power of 1 / temperature are more than float32 holds."""
    check_samples((3e7 * 0.98 ** np.arange(VOCAB_SIZE)).astype(np.int64), 0.19)


def check_samples(counts, temperature):
    model, batch = tiny_model("unigram", temperature=temperature), tiny_batch(rows=4000)
    model.generator.adapt(counts)
    sampled = model(batch).sampled_ids.numpy()
    weights = (counts / counts.max()) ** (1 / temperature)
    expected = sampled.size * weights / weights.sum()
    assert_like(np.bincount(sampled.reshape(-1), minlength=VOCAB_SIZE), expected)


def test_disallow_correct():
    model = tiny_model("unigram", disallow_correct=True)
    model.generator.adapt(COUNTS)
    batch = tiny_batch(rows=4000)
    sampled = model(batch).sampled_ids.numpy()
    ids = batch["masked_lm_ids"].numpy()
    assert not (sampled == ids).any()
    # The rest of the distribution stays.
    of_one = sampled[ids == 7]
    weights = np.where(np.arange(VOCAB_SIZE) == 7, 0, COUNTS)
    expected = of_one.size * weights / weights.sum()
    assert_like(np.bincount(of_one, minlength=VOCAB_SIZE), expected)


def test_log_q_and_loss():
    model, batch = tiny_model("unigram"), tiny_batch()
    inputs = MaskedInputs.of(batch)
    # Before it is adapted every token is as likely.
    expected = pytest.approx(np.log(VOCAB_SIZE), rel=1e-5)
    assert float(model.generator(inputs).loss) == expected
    model.generator.adapt(COUNTS)
    out = model.generator(inputs)
    expected = np.log(np.maximum(COUNTS, 1) / COUNTS.sum())
    found = model.generator.log_q(out, batch["input_ids"])
    np.testing.assert_allclose(found, expected[batch["input_ids"]], rtol=1e-5)
    losses = -expected[batch["masked_lm_ids"]]
    weights = batch["masked_lm_weights"].numpy()
    loss = (losses * weights).sum() / weights.sum()
    assert float(out.loss) == pytest.approx(loss, rel=1e-5)
    assert (out.predictions.numpy() == COUNTS.argmax()).all()
    # It learns nothing and keeps its counts.
    trained = {v.path for v in model.trainable_variables}
    [kept] = [v for v in model.variables if v.path not in trained]
    assert kept.path == "unigram_generator/token_counts"
    np.testing.assert_array_equal(kept.numpy(), COUNTS)


def test_electric_takes_it_as_noise():
    model, batch = tiny_model("electric_unigram"), tiny_batch()
    model.generator.adapt(COUNTS)
    out = model(batch)
    found = out.discriminated.logits - out.discriminated.net_logits
    expected = np.log(np.maximum(COUNTS, 1) / COUNTS.sum())[out.corrupted_ids]
    expected += np.log(0.15 / 0.85)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 256, 257, 30522])
def test_sample_by_weight_at_the_edges(vocab_size, jit):
    """The lowest and highest uniform draw the first and last token with a weight."""
    sample = tf.function(masking.sample_by_weight, jit_compile=jit)
    weights = np.zeros(vocab_size, np.float32)
    used = np.unique([vocab_size // 3, vocab_size // 2, vocab_size * 2 // 3])
    used = used.astype(np.int32)
    weights[used] = [3.0, 1.0, 2.0][: len(used)]
    uniform = tf.constant([0.0, np.float32(0.99999994)])
    found = sample(tf.constant(weights), uniform).numpy()
    assert found.tolist() == [used[0], used[-1]]
    if len(used) == 3:
        found = sample(
            tf.constant(weights), uniform, disallowed_ids=tf.constant(used[[0, 2]])
        )
        assert found.numpy().tolist() == [used[1], used[1]]
