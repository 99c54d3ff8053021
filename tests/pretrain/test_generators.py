# SPDX-License-Identifier: Apache-2.0
"""Generators: what each sees, computes and draws; the temperature of the draws."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.model import heads
from electra_tf.model.dropout import fold_in
from electra_tf.pretrain import generators, masking, pretrain_data
from electra_tf.pretrain.generators import MaskedInputs, weighted_mean
from tests.helpers.encoder_passes import traced_for
from tests.helpers.statistics import assert_like
from tests.helpers.tiny_pretraining import (
    CLS,
    LENGTH,
    MASK,
    SEP,
    VOCAB_SIZE,
    shared_model,
    tiny_batch,
    tiny_config,
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
    sample = tf.function(generators.sample_by_weight, jit_compile=jit)
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


# Draws.

ALMOST_ONE = np.float32(0.99999994)


COMPILED_SAMPLER = tf.function(generators.sample_from_softmax, jit_compile=True)


def sampler_for_tpus(*args, **options):
    with traced_for("tpu"):
        return generators.sample_from_softmax(*args, **options)


SAMPLERS = [
    generators.sample_from_softmax,
    COMPILED_SAMPLER,
    sampler_for_tpus,
    tf.function(sampler_for_tpus, jit_compile=True),
]
any_sampler = pytest.mark.parametrize(
    "sampler", SAMPLERS, ids=["cpu", "cpu-xla", "tpu", "tpu-xla"]
)
plain_and_tpu = pytest.mark.parametrize("sampler", SAMPLERS[::2], ids=["cpu", "tpu"])


def softmax(logits, temperature=1.0):
    scaled = np.asarray(logits, np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def draws(sampler, logits, count, temperature=1.0, seed=0, **options):
    """`count` samples from one row of logits."""
    rng = np.random.default_rng(seed)
    uniform = rng.random(count, np.float32)
    sampled = []
    for part in np.array_split(uniform, max(1, count * len(logits) // 20_000_000)):
        rows = tf.broadcast_to(tf.constant(logits), [len(part), len(logits)])
        ids = sampler(rows, tf.constant(part), temperature=temperature, **options)
        sampled.append(ids.numpy())
    return np.concatenate(sampled)


@plain_and_tpu
@pytest.mark.parametrize(
    "vocab_size, temperature, count",
    [(12, 0.5, 40_000), (257, 2.0, 40_000), (1000, 1.0, 40_000), (30522, 1.0, 4000)],
)
def test_sampler_chi_square(sampler, vocab_size, temperature, count):
    rng = np.random.default_rng(vocab_size)
    logits = rng.normal(0, 1.5, vocab_size).astype(np.float32)
    ids = draws(sampler, logits, count, temperature)
    assert ids.dtype == np.int32
    expected = softmax(logits, temperature) * count
    assert_like(np.bincount(ids, minlength=vocab_size), expected)


@pytest.mark.parametrize("vocab_size", [2, 255, 256, 257, 30522])
@pytest.mark.parametrize("sampler", [generators.sample_from_softmax, COMPILED_SAMPLER])
def test_sampler_inverts_the_cumulative_distribution(sampler, vocab_size):
    """Every id is the float64 answer, but for a uniform next to a boundary."""
    rng = np.random.default_rng(vocab_size + 1)
    logits = rng.normal(0, 3, (64, vocab_size)).astype(np.float32)
    uniform = rng.random(64, np.float32)
    ids = sampler(tf.constant(logits), tf.constant(uniform)).numpy()
    cumulative = np.cumsum(softmax(logits), axis=1)
    for row, index in enumerate(ids):
        low = cumulative[row, index - 1] if index else 0.0
        assert low - 2e-6 <= uniform[row] <= cumulative[row, index] + 2e-6


@any_sampler
@pytest.mark.parametrize("vocab_size", [12, 256, 257, 30522])
def test_sampler_never_draws_an_impossible_id(sampler, vocab_size):
    """Few ids have weight, anywhere in the vocabulary; the uniform is extreme."""
    rng = np.random.default_rng(vocab_size)
    rows = 64
    share = rng.choice([0.002, 0.05, 0.9], (rows, 1))
    possible = rng.random((rows, vocab_size)) < share
    possible[np.arange(rows), rng.integers(0, vocab_size, rows)] = True
    possible[:2] = False
    possible[0, 0] = possible[1, -1] = True
    logits = np.where(possible, rng.normal(0, 2, possible.shape), -1e4)
    logits = tf.constant(logits, tf.float32)
    for u in (0.0, 1e-38, 0.5, 1 - 2**-23, ALMOST_ONE):
        ids = sampler(logits, tf.fill([rows], np.float32(u))).numpy()
        assert (0 <= ids).all() and (ids < vocab_size).all()
        assert possible[np.arange(rows), ids].all()


@any_sampler
def test_sampler_at_the_edge_of_impossible_ids(sampler):
    """The uniform is the cumulative weight where a run of impossible ids begins."""
    rng = np.random.default_rng(29)
    rows = np.arange(1024)
    possible = rng.random((1024, 1000)) < rng.choice([0.01, 0.2, 0.5], (1024, 1))
    possible[:, 333:500] = False
    possible[:, 900:] = False
    possible[:, 0] = True
    logits = np.where(possible, rng.normal(0, 1, possible.shape), -1e4)
    logits = logits.astype(np.float32)
    ends = [np.flatnonzero(row[:-1] & ~row[1:]) for row in possible]
    edge = np.cumsum(softmax(logits), axis=1)[rows, [rng.choice(e) for e in ends]]
    for ulps in range(-3, 4):
        uniform = np.clip(edge + ulps * 2**-24, 0, ALMOST_ONE).astype(np.float32)
        ids = sampler(tf.constant(logits), tf.constant(uniform)).numpy()
        assert possible[rows, ids].all()


@any_sampler
def test_sampler_stays_in_the_vocabulary_without_finite_logits(sampler):
    logits = np.zeros([4, 300], np.float32)
    logits[0, 5], logits[1, 5], logits[2, 5] = np.nan, np.inf, -np.inf
    logits[3] = -np.inf
    uniform = tf.constant([0.3, 0.6, 0.9, 0.999], tf.float32)
    ids = sampler(tf.constant(logits), uniform).numpy()
    assert (0 <= ids).all() and (ids < 300).all()


@plain_and_tpu
def test_sampler_shapes_and_types(sampler):
    logits = tf.random.stateless_normal([2, 3, 50], [0, 1])
    uniform = tf.random.stateless_uniform([2, 3], [2, 3])
    together = sampler(logits, uniform).numpy()
    assert together.shape == (2, 3)
    for place in np.ndindex(2, 3):
        alone = sampler(logits[place][None], uniform[place][None])
        assert alone.numpy().tolist() == [together[place]]
    # bfloat16 logits are drawn from in float32.
    low = tf.cast(logits, tf.bfloat16)
    same = sampler(tf.cast(low, tf.float32), uniform)
    np.testing.assert_array_equal(sampler(low, uniform), same)
    assert sampler(tf.zeros([0, 50]), tf.zeros([0])).shape == (0,)


@any_sampler
@pytest.mark.parametrize("margin, temperature", [(0.0, 1.0), (10.0, 0.5), (300.0, 0.5)])
def test_disallowed_id_is_never_sampled(sampler, margin, temperature):
    rng = np.random.default_rng(17)
    logits = rng.normal(0, 1, (600, 300)).astype(np.float32)
    disallowed = rng.integers(0, 300, 600).astype(np.int32)
    disallowed[:3] = 0, 299, 255
    logits[np.arange(600), disallowed] += margin
    uniform = rng.random(600, np.float32)
    uniform[:3] = 0.0, ALMOST_ONE, ALMOST_ONE
    ids = sampler(
        tf.constant(logits),
        tf.constant(uniform),
        temperature=temperature,
        disallowed_ids=tf.constant(disallowed),
    ).numpy()
    assert (ids != disallowed).all()
    assert (0 <= ids).all() and (ids < 300).all()


@plain_and_tpu
@pytest.mark.parametrize("disallowed", [0, 7])
def test_the_others_keep_their_proportions(sampler, disallowed):
    rng = np.random.default_rng(19)
    logits = rng.normal(0, 1.5, 12).astype(np.float32)
    options = {"temperature": 0.7, "disallowed_ids": tf.fill([40_000], disallowed)}
    ids = draws(sampler, logits, 40_000, **options)
    expected = softmax(logits, 0.7)
    expected[disallowed] = 0
    assert_like(np.bincount(ids, minlength=12), expected / expected.sum() * 40_000)


def test_noise_of_neighbours_is_independent():
    """Two ids of equal scores at two positions: all four outcomes are as likely."""
    rng = np.random.default_rng(31)
    uniform = rng.random((20_000, 2), np.float32)
    logits = tf.zeros([20_000, 2, 2])
    ids = sampler_for_tpus(logits, tf.constant(uniform)).numpy()
    assert_like(np.bincount(2 * ids[:, 0] + ids[:, 1], minlength=4), np.full(4, 5000.0))
    # Neighbours among the uniforms, too: 2**-23 is the step between them.
    steps = np.arange(40_000, dtype=np.float32) * np.float32(2**-23)
    ids = sampler_for_tpus(tf.zeros([40_000, 2]), tf.constant(steps)).numpy()
    pairs = 2 * ids[::2] + ids[1::2]
    assert_like(np.bincount(pairs, minlength=4), np.full(4, 5000.0))


@pytest.mark.parametrize("disallowed", [None, 0, 100])
def test_uniform_sampler(disallowed):
    rng = np.random.default_rng(23)
    uniform = rng.random(60_000, np.float32)
    uniform[:2] = 0.0, ALMOST_ONE
    fill = None if disallowed is None else tf.fill([60_000], disallowed)
    found = masking.sample_uniformly(tf.constant(uniform), 1000, disallowed_ids=fill)
    ids = found.numpy()
    assert ids.dtype == np.int32
    assert (0 <= ids).all() and (ids < 1000).all()
    expected = np.ones(1000)
    if disallowed is not None:
        expected[disallowed] = 0
    expected *= 60_000 / expected.sum()
    assert_like(np.bincount(ids, minlength=1000), expected)


def test_uniform_sampler_reaches_both_ends():
    uniform = tf.constant([[0.0, ALMOST_ONE]])
    for vocab_size in (2, 257, 30522):
        ids = masking.sample_uniformly(uniform, vocab_size)
        assert ids.numpy().tolist() == [[0, vocab_size - 1]]
        ends = tf.constant([[0, vocab_size - 1]])
        ids = masking.sample_uniformly(uniform, vocab_size, disallowed_ids=ends)
        assert ids.numpy().tolist() == [[1, vocab_size - 2]]


@pytest.mark.parametrize(
    "step, expected",
    [
        (200, 4.0),
        (220, 1 + 3 * math.exp(-2)),
        (300, 1 + 3 * math.exp(-10)),
        (900, 1 + 3 * math.exp(-10)),
    ],
)
def test_temperature_by_hand(step, expected):
    """A phase of 100 steps begins at step 200; the temperature falls from 4 to 1."""
    config = tiny_config(temperature_start=4.0)
    found = pretrain_data.temperature_at(config, 200, tf.constant(step))
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_samples_are_drawn_at_the_temperature_of_the_step():
    constant, batch = tiny_model("electra", temperature=3.0), tiny_batch(rows=64)
    falling = tiny_model("electra", temperature=1.0)
    for ours, theirs in zip(falling.variables, constant.variables, strict=True):
        ours.assign(theirs)
    config = tiny_config(temperature_start=3.0)
    heated = functools.partial(pretrain_data.temperature_at, config, 0)
    found = falling(tiny_batch(rows=64, temperature=heated)).sampled_ids
    np.testing.assert_array_equal(found, constant(batch).sampled_ids)
    assert (found != falling(batch).sampled_ids).numpy().any()
