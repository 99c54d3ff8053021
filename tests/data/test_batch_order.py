# SPDX-License-Identifier: Apache-2.0
"""Several data sets as one stream: shares, order, and random access."""

import numpy as np
import pytest

from electra_tf.data import batch_order
from electra_tf.data.batch_order import BLOCK, Rows, batch_examples, shares_of
from tests.helpers.statistics import assert_like


@pytest.mark.parametrize(
    "weights",
    [[1], [1, 1], [1, 2, 3], [0.7, 0.2, 0.1], [1e9, 1, 1], [1] * 1000, [1e-9, 1e-9, 5]],
)
def test_shares_are_in_proportion(weights):
    places = shares_of(weights)
    assert places.sum() == BLOCK and places.min() >= 1
    wanted = np.array(weights) / np.sum(weights) * BLOCK
    large = wanted > 1
    assert (np.abs(places - wanted)[large] < len(weights) + 1).all()


def stream(steps, sizes, weights, batch=64, seed=5, start=0, **options):
    """Data sets and examples of consecutive batches."""
    places = shares_of(weights)
    found = [
        batch_examples(step, batch, places, sizes, seed, **options)
        for step in range(start, start + steps)
    ]
    which, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
    return which, numbers


def test_each_data_set_is_read_in_its_own_order():
    """Over several blocks; the smallest is seen in part, the others several times."""
    sizes, weights = [1000, 100_000, 7], [0.2, 0.799, 0.001]
    which, numbers = stream(4 * BLOCK // 64, sizes, weights)
    for i, size in enumerate(sizes):
        own = numbers[which == i]
        assert len(own) == 4 * shares_of(weights)[i]
        epochs = [own[k : k + size] for k in range(0, len(own) - size + 1, size)]
        for epoch in epochs:
            assert sorted(epoch.tolist()) == list(range(size))
        orders = {epoch.tobytes() for epoch in epochs}
        assert len(orders) == len(epochs) > 1 or size > 7
    # Not one after the other: no run of equals is longer than by chance.
    assert np.diff(np.flatnonzero(which == 0)).max() < 100


def test_positions_of_each_data_set_are_random():
    """Batches of 64, over seeds: as many of each as independent draws would give."""
    weights = [0.5, 0.3, 0.2]
    counts = np.zeros(65)
    pairs = np.zeros((3, 3))
    for seed in range(20):
        which, _ = stream(100, [50, 60, 70], weights, seed=seed, start=seed * 1000)
        rows = which.reshape(-1, 64)
        np.add.at(counts, (rows == 0).sum(1), 1)
        np.add.at(pairs, (which[:-1], which[1:]), 1)
    n = np.arange(65)
    ways = np.cumsum(np.log(np.maximum(n, 1)))
    binomial = np.exp(ways[64] - ways[n] - ways[64 - n] + 64 * np.log(0.5))
    assert_like(counts, binomial * counts.sum())
    expected = np.outer(weights, weights) * pairs.sum()
    assert_like(pairs.ravel(), expected.ravel())


def test_a_batch_is_a_function_of_seed_and_step():
    sizes, weights = [40, 90], [3, 1]
    straight = stream(3000, sizes, weights)
    batch_order._block.cache_clear()
    later = stream(5, sizes, weights, start=2995)
    for one, other in zip(straight, later, strict=True):
        np.testing.assert_array_equal(one[-5 * 64 :], other)
    far = stream(1, sizes, weights, start=10**7)
    assert far[1].max() < 90 and len(far[0]) == 64
    other = stream(3000, sizes, weights, seed=6)
    assert (straight[0] != other[0]).any() and (straight[1] != other[1]).any()


def test_rows_are_those_of_the_batch():
    """Across the end of a block, too."""
    sizes, places = [40, 90, 11], shares_of([3, 1, 2])
    for step in (0, BLOCK // 60):
        whole = batch_examples(step, 60, places, sizes, 1)
        for first in range(0, 60, 20):
            part = batch_examples(step, 60, places, sizes, 1, rows=Rows(first, 20))
            for one, other in zip(whole, part, strict=True):
                np.testing.assert_array_equal(one[first : first + 20], other)


def test_without_shuffling_the_order_is_that_of_the_files():
    which, numbers = stream(20, [30, 50], [1, 1], shuffle=False)
    for i, size in enumerate((30, 50)):
        own = numbers[which == i]
        np.testing.assert_array_equal(own, np.arange(len(own)) % size)
