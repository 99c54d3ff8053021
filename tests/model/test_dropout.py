# SPDX-License-Identifier: Apache-2.0
"""Dropout masks: rate, mean, independence of seeds and positions."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.model.dropout import dropout, fold_in, tag_words


def kept(size, seed, rate=0.1):
    """Which entries dropout keeps, bool of shape `size`."""
    return dropout(tf.ones(size), rate, tf.constant(seed)).numpy() > 0


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.01])
def test_dropout_rate_and_mean(rate):
    x = tf.fill([100, 1001], 3.0)
    out = dropout(x, rate, tf.constant([1, 2])).numpy()
    zero = (out == 0).mean()
    assert abs(zero - rate) < 5 * np.sqrt(rate * (1 - rate) / out.size) + 1e-5
    np.testing.assert_allclose(out[out > 0], 3 / (1 - rate), rtol=1e-4)
    assert out.mean() == pytest.approx(3.0, rel=0.01)


def test_dropout_is_off_without_seed_or_rate():
    x = tf.random.stateless_normal([5, 7], [0, 0])
    for rate, seed in ((0.1, None), (0.0, tf.constant([1, 2])), (0, None)):
        np.testing.assert_array_equal(dropout(x, rate, seed), x)
    assert fold_in(None, 3) is None


@pytest.mark.parametrize("shape", [(7,), (3, 5, 7), (0, 4)])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_dropout_of_odd_sizes_and_types(shape, dtype):
    out = dropout(tf.ones(shape, dtype), 0.5, tf.constant([3, 4]))
    assert out.shape == shape
    assert out.dtype == dtype
    assert np.isin(np.float32(out), [0.0, 2.0]).all()


def test_dropout_is_a_function_of_the_seed():
    x = tf.ones([1000])
    drop = tf.function(lambda seed: dropout(x, 0.3, seed))
    compiled = tf.function(drop, jit_compile=True)
    for seed in ([5, 6], [0, 0], [2**31 - 1, -(2**31)]):
        first = dropout(x, 0.3, tf.constant(seed))
        for other in (dropout(x, 0.3, tf.constant(seed)), drop(seed)):
            np.testing.assert_array_equal(first, other)
        np.testing.assert_allclose(first, compiled(tf.constant(seed)), rtol=1e-6)


def test_dropout_gradient_is_its_mask():
    x = tf.random.stateless_normal([501], [0, 0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = dropout(x, 0.25, tf.constant([7, 8]))
    gradient = tape.gradient(out, x)
    np.testing.assert_allclose(gradient * x, out, rtol=1e-6)
    np.testing.assert_allclose(np.unique(gradient), [0.0, 4 / 3], rtol=1e-6)


def seeds_in_use():
    """Seeds as they occur: (seed, step), folded with replica, network, layer, use."""
    return [
        fold_in(fold_in(tf.constant([seed, step], tf.int32), a), b)
        for seed, step in itertools.product((0, 1, 42), (0, 1, 2, 1000))
        for a, b in itertools.product(range(2), range(4))
    ]


def test_masks_of_different_seeds_are_independent():
    """Every pair agrees as often as unrelated ones do; none is a shift of another."""
    size, rate = 4096, 0.1
    matrix = np.stack([kept([size], seed) for seed in seeds_in_use()]).astype(float)
    assert len(np.unique(matrix, axis=0)) == len(matrix) == 12 * 8
    # The rate of each mask.
    deviation = (1 - matrix.mean(axis=1) - rate) / np.sqrt(rate * (1 - rate) / size)
    assert np.abs(deviation).max() < 5
    assert 0.7 < deviation.std() < 1.3
    # Correlation of each pair, at every relative shift up to the width of a model.
    centred = (matrix - (1 - rate)) / np.sqrt(rate * (1 - rate))
    worst = 0.0
    for shift in (0, 1, 2, 3, 64, 128, 256):
        moved = np.roll(centred, shift, axis=1)
        correlation = centred @ moved.T / np.sqrt(size)
        if shift == 0:
            np.fill_diagonal(correlation, 0)
        worst = max(worst, np.abs(correlation).max())
        assert 0.9 < correlation[~np.eye(len(matrix), dtype=bool)].std() < 1.1
    # The largest of 60,000 normal deviates is about 4.3.
    assert worst < 6


def test_entries_of_a_mask_are_independent():
    """Pairs at any distance, and runs: as often dropped together as by chance."""
    rate, rows, size = 0.25, 64, 8192
    seeds = [fold_in(tf.constant([9, step]), 1) for step in range(rows)]
    dropped = np.stack([~kept([size], seed, rate) for seed in seeds])
    centred = dropped - rate
    for lag in [*range(1, 40), 64, 128, 256, 512, 1024, 2048, 4096]:
        covariance = (centred[:, lag:] * centred[:, :-lag]).sum()
        count = rows * (size - lag)
        assert abs(covariance) < 5 * np.sqrt(count) * rate * (1 - rate), lag
    # All patterns of 6 neighbours.
    patterns = dropped.reshape(-1)[: rows * size // 6 * 6].reshape(-1, 6)
    codes = patterns @ (1 << np.arange(6))
    counts = np.bincount(codes, minlength=64)
    ones = np.array([bin(code).count("1") for code in range(64)])
    expected = len(codes) * rate**ones * (1 - rate) ** (6 - ones)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 63) < 5 * np.sqrt(2 * 63)
    # No entry is dropped more often than others over the steps.
    per_entry = dropped.sum(axis=0)
    variance = per_entry.var() / (rows * rate * (1 - rate))
    assert abs(variance - 1) < 5 * np.sqrt(2 / size)


def test_tags_as_words():
    """XLA compiles layers once if they differ by an argument only."""
    seed = tf.constant([5, 6])
    for number in range(3):
        found = fold_in(seed, tag_words(number))
        np.testing.assert_array_equal(found, fold_in(seed, number))
