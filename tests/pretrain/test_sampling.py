# SPDX-License-Identifier: Apache-2.0
"""Sampling of replacements: the distribution, its edges, schedules."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import sampling
from tests.helpers.encoder_passes import traced_for
from tests.helpers.statistics import assert_like
from tests.helpers.tiny_pretraining import tiny_batch, tiny_config, tiny_model

ALMOST_ONE = np.float32(0.99999994)


COMPILED_SAMPLER = tf.function(sampling.sample_from_softmax, jit_compile=True)


def sampler_for_tpus(*args, **options):
    with traced_for("tpu"):
        return sampling.sample_from_softmax(*args, **options)


SAMPLERS = [
    sampling.sample_from_softmax,
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
@pytest.mark.parametrize("sampler", [sampling.sample_from_softmax, COMPILED_SAMPLER])
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
    found = sampling.sample_uniformly(tf.constant(uniform), 1000, disallowed_ids=fill)
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
        ids = sampling.sample_uniformly(uniform, vocab_size)
        assert ids.numpy().tolist() == [[0, vocab_size - 1]]
        ends = tf.constant([[0, vocab_size - 1]])
        ids = sampling.sample_uniformly(uniform, vocab_size, disallowed_ids=ends)
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
    found = sampling.temperature_at(config, 200, tf.constant(step))
    assert float(found) == pytest.approx(expected, rel=1e-6)


def test_samples_are_drawn_at_the_temperature_of_the_step():
    constant, batch = tiny_model("electra", temperature=3.0), tiny_batch(rows=64)
    falling = tiny_model("electra", temperature=1.0)
    for ours, theirs in zip(falling.variables, constant.variables, strict=True):
        ours.assign(theirs)
    config = tiny_config(temperature_start=3.0)
    heated = functools.partial(sampling.temperature_at, config, 0)
    found = falling(tiny_batch(rows=64, temperature=heated)).sampled_ids
    np.testing.assert_array_equal(found, constant(batch).sampled_ids)
    assert (found != falling(batch).sampled_ids).numpy().any()
