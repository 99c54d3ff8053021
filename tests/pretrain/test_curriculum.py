# SPDX-License-Identifier: Apache-2.0
"""Schedules of temperature and of samples from word frequencies."""

import math

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain.curriculum import Curriculum
from tests.helpers.statistics import assert_like
from tests.helpers.tiny_pretraining import (
    VOCAB_SIZE,
    tiny_batch,
    tiny_config,
    tiny_model,
)

COUNTS = np.where(np.arange(VOCAB_SIZE) < 10, 0.0, np.arange(VOCAB_SIZE) ** 2)


def curriculum(first=0, steps=100, decay="linear", **settings):
    return Curriculum(first, steps, decay, token_counts=COUNTS, **settings)


@pytest.mark.parametrize(
    "decay, step, expected",
    [
        ("linear", 200, 4.0),
        ("linear", 225, 3.25),
        ("linear", 300, 1.0),
        ("linear", 900, 1.0),
        ("exponential", 200, 4.0),
        ("exponential", 220, 1 + 3 * math.exp(-2)),
        ("exponential", 300, 1 + 3 * math.exp(-10)),
    ],
)
def test_temperature_by_hand(decay, step, expected):
    """A phase of 100 steps begins at step 200; the temperature falls from 4 to 1."""
    batch = tiny_batch()
    shape = batch["sample_uniform"].shape
    falling = curriculum(200, decay=decay, temperature=(4.0, 1.0))
    found = falling.apply(batch, tf.constant(step), tf.zeros(shape))["temperature"]
    np.testing.assert_allclose(found, np.full((shape[0], 1), expected), rtol=1e-6)


def test_samples_are_drawn_at_the_temperature_of_the_step():
    constant, batch = tiny_model("electra", temperature=3.0), tiny_batch(rows=64)
    falling = tiny_model("electra", temperature=1.0)
    for ours, theirs in zip(falling.variables, constant.variables, strict=True):
        ours.assign(theirs)
    heated = curriculum(temperature=(3.0, 1.0))
    start = heated.apply(batch, 0, batch["sample_uniform"])
    np.testing.assert_array_equal(
        falling(start).sampled_ids, constant(batch).sampled_ids
    )
    end = heated.apply(batch, 100, batch["sample_uniform"])
    np.testing.assert_array_equal(falling(end).sampled_ids, falling(batch).sampled_ids)


def test_samples_from_word_frequencies():
    """Of a third at the start: as frequent as in the data, the others as without."""
    model, batch = tiny_model("electra"), tiny_batch(rows=4000)
    uniform = tf.random.stateless_uniform(batch["sample_uniform"].shape, [1, 2])
    given = curriculum(unigram_share=2 / 3).apply(batch, 50, uniform)
    ids = given["given_ids"].numpy()
    used = ids >= 0
    share = used.mean()
    assert abs(share - 1 / 3) < 4 * math.sqrt(2 / 9 / used.size)
    expected = used.sum() * COUNTS / COUNTS.sum()
    assert_like(np.bincount(ids[used], minlength=VOCAB_SIZE), expected)
    sampled = model(given).sampled_ids.numpy()
    np.testing.assert_array_equal(sampled[used], ids[used])
    np.testing.assert_array_equal(sampled[~used], model(batch).sampled_ids[~used])


def test_disallow_correct_holds_for_word_frequencies():
    batch = tiny_batch(rows=1000)
    everything = curriculum(unigram_share=1.0, disallow_correct=True)
    uniform = tf.zeros(batch["sample_uniform"].shape)
    found = everything.apply(batch, 0, uniform)["given_ids"]
    assert (found >= 0).numpy().mean() > 0.9
    assert not (found == batch["masked_lm_ids"]).numpy().any()


@pytest.mark.parametrize(
    "hparams, is_there",
    [
        ({}, False),
        ({"curriculum_decay": "linear"}, False),
        ({"temperature_start": 2.0}, True),
        ({"unigram_share": 1.0}, True),
    ],
)
def test_there_is_a_curriculum_only_where_one_is_set(hparams, is_there):
    found = Curriculum.of(tiny_config(**hparams), 7, lambda: COUNTS)
    assert (found is not None) == is_there
    assert not is_there or (found.first, found.temperature, found.unigram_share) == (
        7,
        (2.0, 1.0) if "temperature_start" in hparams else None,
        hparams.get("unigram_share", 0.0),
    )
