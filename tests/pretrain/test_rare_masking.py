# SPDX-License-Identifier: Apache-2.0
"""Rare tokens are masked more often, and as many tokens in all."""

import numpy as np
import tensorflow as tf

from electra_tf.pretrain import rare_masking
from tests.helpers.masked_sequences import (
    CLS,
    LENGTH,
    MASK,
    SEP,
    VOCAB_SIZE,
    as_batch,
    mask,
    sequences,
)
from tests.helpers.statistics import assert_like


def test_weights_by_hand():
    """Counts 4, 1 and 0 (counted as 1) to the power -1/2 are 1/2, 1 and 1.

    Over the data 4 x 1/2 + 1 + 1 = 4 for 6 tokens, so all are multiplied by 6 / 4.
    """
    found = rare_masking.token_weights(np.array([4, 1, 0]), 0.5)
    np.testing.assert_allclose(found, [0.75, 1.5, 1.5])
    assert found.dtype == np.float32
    equal = rare_masking.token_weights(np.array([4, 1, 0]), 0.0)
    np.testing.assert_allclose(equal, [1, 1, 1])


def test_draws_are_in_proportion_to_the_weights():
    """The first of four by w / sum, the second by w / sum without the first."""
    rng = np.random.default_rng(0)
    weights = np.array([1, 2, 3, 4], np.float32)
    uniform = rng.random([50_000, 4], np.float32)
    keys = rare_masking.draw_keys(
        tf.constant(uniform), tf.broadcast_to(weights, uniform.shape)
    )
    first, second = np.argsort(-keys.numpy(), axis=1)[:, :2].T
    counts, expected = [], []
    for i in range(4):
        for j in range(4):
            if i != j:
                counts.append(((first == i) & (second == j)).sum())
                share = weights[i] / 10 * weights[j] / (10 - weights[i])
                expected.append(len(uniform) * share)
    assert_like(counts, expected)


def test_keys_are_numbers_whatever_is_drawn():
    uniform = tf.constant([[0.0, 1e-30, 0.5, 0.99999994]])
    for weight in (1e-6, 1.0, 1e6):
        keys = rare_masking.draw_keys(uniform, tf.fill([1, 4], weight)).numpy()
        assert np.isfinite(keys).all() and (keys >= 0).all() and (keys <= 1).all()
        assert (np.diff(keys) > 0).all()


def test_masked_tokens_over_a_batch():
    """Half of the words have four times the weight of the others."""
    weights = np.ones(VOCAB_SIZE, np.float32)
    weights[VOCAB_SIZE // 2 :] = 4.0
    batch = sequences(2048)
    found = mask(batch, mode="fixed", token_weights=weights)
    usual = mask(batch, mode="fixed")
    for name in ("masked_lm_weights", "sample_uniform"):
        np.testing.assert_array_equal(found[name], usual[name])
    ids, positions = found["masked_lm_ids"], found["masked_lm_positions"]
    assert not np.isin(ids, [CLS, SEP, MASK]).any()
    assert all(len(set(row)) == len(row) for row in positions.tolist())
    rare = found["input_ids"] >= VOCAB_SIZE // 2
    rates = (
        (ids >= VOCAB_SIZE // 2).sum() / rare.sum(),
        (ids < VOCAB_SIZE // 2).sum() / (~rare & (found["input_ids"] > MASK)).sum(),
    )
    # Below 4, because a word is masked once at most.
    assert 3.2 < rates[0] / rates[1] < 4.0
    again = mask(batch, mode="fixed", token_weights=weights)
    np.testing.assert_array_equal(again["masked_lm_positions"], positions)


def test_padding_is_not_masked_where_words_are_frequent():
    ids = np.full([4, LENGTH], 7)
    ids[:, 0], ids[:, 9], ids[:, 10:] = CLS, SEP, 0
    weights = np.full(VOCAB_SIZE, 1e-6, np.float32)
    weights[0] = 1e6
    batch = as_batch(ids, (ids > 0) & (np.arange(LENGTH) < 10))
    found = mask(batch, mode="fixed", mask_prob=0.5, token_weights=weights)
    used = found["masked_lm_weights"] > 0
    assert used.sum() == 4 * 5 and (found["masked_lm_ids"][used] == 7).all()
