# SPDX-License-Identifier: Apache-2.0
"""Generators: what each sees, computes and draws."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.model import heads
from electra_tf.model.dropout import fold_in
from electra_tf.pretrain import sampling
from electra_tf.pretrain.generators import MaskedInputs, weighted_mean
from tests.helpers.statistics import assert_like
from tests.helpers.tiny_pretraining import (
    CLS,
    LENGTH,
    MASK,
    SEP,
    VOCAB_SIZE,
    shared_model,
    tiny_batch,
    tiny_model,
    total_gradients,
)


def inputs_of(batch) -> MaskedInputs:
    return MaskedInputs.of(batch)


def cloze_of(model, ids, batch):
    changed = batch | {"input_ids": tf.convert_to_tensor(ids)}
    return model.generator(inputs_of(changed)).cloze


def candidates(batch) -> np.ndarray:
    ids, mask = batch["input_ids"].numpy(), batch["input_mask"].numpy()
    return (mask > 0) & ~np.isin(ids, [CLS, SEP, MASK])


def replace(ids, position):
    """`ids` with another word at one position of every row."""
    changed = ids.copy()
    changed[:, position] = (changed[:, position] + 40) % (VOCAB_SIZE - 5) + 5
    assert (changed[:, position] != ids[:, position]).all()
    return changed


# Two towers.


@pytest.mark.parametrize("variant", ["two_tower", "electric_untied"])
def test_no_prediction_sees_its_own_token(variant):
    """Changing token t changes no prediction at t, and those beside it do change."""
    model, batch = tiny_model(variant, layers=2), tiny_batch()
    ids, counted = batch["input_ids"].numpy(), candidates(batch)
    cloze = tf.function(lambda ids: cloze_of(model, ids, batch))
    before = cloze(tf.constant(ids))
    seen_own = np.zeros(ids.shape, bool)
    for position in range(LENGTH):
        after = cloze(tf.constant(replace(ids, position)))
        hidden = np.abs(after.hidden - before.hidden).max(axis=-1)
        normalizer = np.abs(after.log_normalizer - before.log_normalizer)
        assert hidden[counted[:, position], position].max(initial=0) == 0
        assert normalizer[counted[:, position], position].max(initial=0) == 0
        seen_own[:, position] = hidden[:, position] > 0
        # It reaches every other candidate: from before or from after.
        real = batch["input_mask"].numpy()[:, position] > 0
        others = counted & real[:, None] & (np.arange(LENGTH) != position)
        assert (hidden[others] > 0).all()
    # A right-to-left tower at padding sees the whole row, and rolls around at the end:
    # positions that see themselves are the last real one and padding, never counted.
    np.testing.assert_array_equal(seen_own & counted, False)
    assert seen_own.any()


def direct_log_probabilities(model, cloze):
    """log q of every token at every position by forming all scores, [B, L, V]."""
    table = model.generator.ltr.embeddings.word_embeddings.numpy().astype(np.float64)
    scores = cloze.hidden.numpy().astype(np.float64) @ table.T
    scores += model.generator.head.output_bias.numpy()
    top = scores.max(axis=-1, keepdims=True)
    return scores - top - np.log(np.exp(scores - top).sum(-1, keepdims=True))


@pytest.mark.parametrize("variant", ["electric", "electric_untied"])
def test_cloze_loss_and_log_q(variant):
    model, batch = shared_model(variant), tiny_batch()
    out = model.generator(inputs_of(batch))
    cloze, ids = out.cloze, batch["input_ids"].numpy()
    log_q = direct_log_probabilities(model, cloze)
    of_text = np.take_along_axis(log_q, ids[..., None], -1)[..., 0]
    np.testing.assert_allclose(cloze.per_token_loss, -of_text, rtol=1e-5, atol=1e-5)
    counted = candidates(batch)
    np.testing.assert_array_equal(cloze.weights, counted)
    assert float(out.loss) == pytest.approx(-of_text[counted].mean(), rel=1e-5)
    np.testing.assert_array_equal(cloze.predictions, log_q.argmax(-1))
    other = np.random.default_rng(1).integers(0, VOCAB_SIZE, ids.shape)
    expected = np.take_along_axis(log_q, other[..., None], -1)[..., 0]
    found = model.generator.log_q(out, tf.constant(other, tf.int32))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    # The masked positions' logits are the same scores.
    at = batch["masked_lm_positions"].numpy()
    expected = np.take_along_axis(log_q, at[..., None], 1)
    found = tf.nn.log_softmax(out.logits)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("objective", ["electric", "all_tokens_mlm"])
def test_the_size_of_chunks_changes_nothing(objective, monkeypatch):
    model, batch = shared_model(objective), tiny_batch()
    whole = total_gradients(model, batch)
    monkeypatch.setattr(heads, "_CPU_ROWS", 7)
    parts = total_gradients(model, batch)
    for path, expected in whole.items():
        atol = 2e-6 * np.abs(expected).max() + 1e-8
        np.testing.assert_allclose(parts[path], expected, atol=atol, err_msg=path)


def test_towers_have_dropout_of_their_own():
    model = tiny_model("electric", dropout=0.3)
    inputs = inputs_of(tiny_batch())
    # With the same weights and no direction the towers differ by their dropout only.
    model.generator.rtl.set_weights(model.generator.ltr.get_weights())
    model.generator.ltr.encoder.direction = "bidirectional"
    model.generator.rtl.encoder.direction = "bidirectional"

    def towers(seed):
        states = np.asarray(model.generator.towers(inputs, seed))
        before, after = np.split(states, 2, axis=-1)
        return np.roll(before, -1, axis=1), np.roll(after, 1, axis=1)

    before, after = towers(None)
    np.testing.assert_allclose(before, after, atol=1e-6)
    before, after = towers(fold_in(tf.constant([1, 2]), 0))
    assert np.abs(before - after).mean() > 0.1


# Masked language models.


@pytest.mark.parametrize("variant", ["electra", "tied_all"])
def test_generator_reads_the_masked_text(variant):
    """Its logits depend on masked_input_ids and on nothing that masking hides."""
    model, batch = shared_model(variant), tiny_batch()
    before = model.generator(inputs_of(batch)).logits.numpy()
    other = replace(batch["input_ids"].numpy(), 5)
    hidden = batch | {"input_ids": tf.constant(other)}
    after = model.generator(inputs_of(hidden)).logits.numpy()
    np.testing.assert_array_equal(after, before)
    other = replace(batch["masked_input_ids"].numpy(), 5)
    seen = batch | {"masked_input_ids": tf.constant(other)}
    assert (model.generator(inputs_of(seen)).logits.numpy() != before).any()


def test_weighted_mean():
    values, weights = tf.constant([1.0, 5.0, 9.0]), tf.constant([1.0, 1.0, 0.0])
    assert float(weighted_mean(values, weights, None)) == pytest.approx(3.0, rel=1e-5)
    assert float(weighted_mean(values, weights, 4.0)) == pytest.approx(1.5, rel=1e-5)
    # Nothing masked at all is a loss of 0, not of NaN.
    assert float(weighted_mean(values, tf.zeros([3]), None)) == 0.0


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


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("vocab_size", [1, 256, 257, 30522])
def test_sample_by_weight_at_the_edges(vocab_size, jit):
    """The lowest and highest uniform draw the first and last token with a weight."""
    sample = tf.function(sampling.sample_by_weight, jit_compile=jit)
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
