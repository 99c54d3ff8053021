# SPDX-License-Identifier: Apache-2.0
"""Masking and sampling: their distributions, and what must never happen."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import masking
from tests.helpers.masked_sequences import (
    CLS,
    LENGTH,
    MASK,
    MODES,
    PAD,
    SEP,
    SLOTS,
    UNK,
    as_batch,
    mask,
    mask_tensors,
    sequences,
)
from tests.helpers.statistics import assert_like


@pytest.mark.parametrize("mode", MODES)
def test_positions_are_uniform_over_candidates(mode):
    batch = sequences(2048)
    masked = mask(batch, mode=mode)
    candidates = masking.candidates_mask(
        batch["input_ids"], batch["input_mask"], (CLS, SEP, MASK)
    ).numpy()
    assert candidates.sum(axis=1).tolist() == [LENGTH - 3] * 2048
    expected = candidates[0] / (LENGTH - 3)
    for slot in (0, 1, SLOTS - 1):
        counts = np.bincount(masked["masked_lm_positions"][:, slot], minlength=LENGTH)
        assert_like(counts, expected * 2048)
    counts = np.bincount(masked["masked_lm_positions"].reshape(-1), minlength=LENGTH)
    # Distinct positions within a row: their counts vary less.
    spread = 1.0 if mode == "original" else 1 - (SLOTS - 1) / (LENGTH - 4)
    assert_like(counts, expected * counts.sum(), spread)


@pytest.mark.parametrize("mode", MODES)
def test_three_kinds_of_draws_are_independent(mode):
    """One number decides the position, another [MASK] or not, a third the sample."""
    batch = sequences(2048)
    masked = mask(batch, mode=mode)
    uniform = masked["sample_uniform"]
    assert uniform.dtype == np.float32
    assert 0 <= uniform.min() and uniform.max() < 1
    assert_like(np.histogram(uniform, 50, (0, 1))[0], np.full(50, uniform.size / 50))
    positions = masked["masked_lm_positions"]
    became_mask = np.take_along_axis(masked["masked_input_ids"], positions, 1) == MASK
    neighbours = (np.roll(uniform, 1, axis=axis) for axis in (0, 1))
    draws = positions, became_mask, uniform, *neighbours
    flat = np.stack([np.ravel(value) for value in draws]).astype(float)
    correlation = np.corrcoef(flat) - np.eye(len(flat))
    assert np.abs(correlation).max() < 5 / np.sqrt(uniform.size)


def test_share_of_repeated_positions():
    found = {}
    for mode in MODES:
        ordered = np.sort(mask(sequences(2048), mode=mode)["masked_lm_positions"])
        found[mode] = (ordered[:, 1:] == ordered[:, :-1]).sum() / ordered.size
    distinct = (LENGTH - 3) * (1 - (1 - 1 / (LENGTH - 3)) ** SLOTS)
    assert found["original"] == pytest.approx(1 - distinct / SLOTS, abs=0.005)
    assert found["original"] == pytest.approx(0.07, abs=0.005)
    assert found["fixed"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_special_tokens_and_padding_are_never_masked(mode):
    rng = np.random.default_rng(3)
    ids = rng.integers(0, 8, (2000, 40)).astype(np.int32)  # mostly special tokens
    input_mask = (np.arange(40) < rng.integers(3, 41, (2000, 1))).astype(np.int32)
    # Padding that looks like words must not be masked either.
    batch = as_batch(ids, input_mask)
    masked = mask(batch, mode=mode, slots=6)
    used = masked["masked_lm_weights"] > 0
    chosen = np.take_along_axis(ids, masked["masked_lm_positions"], 1)[used]
    assert not np.isin(chosen, [CLS, SEP, MASK]).any()
    # [UNK] and id 0 may be masked.
    assert {UNK, PAD} <= set(chosen.tolist())
    real = np.take_along_axis(input_mask, masked["masked_lm_positions"], 1)[used]
    assert real.all()
    changed = masked["masked_input_ids"] != ids
    assert not changed[input_mask == 0].any()
    assert not changed[np.isin(ids, [CLS, SEP, MASK])].any()


@pytest.mark.parametrize("mode", MODES)
def test_outputs_fit_together(mode):
    """Ids belong to positions; unused slots are zero; inputs pass through."""
    rng = np.random.default_rng(4)
    batch = sequences(64)
    lengths = rng.integers(5, LENGTH + 1, (64, 1))
    batch["input_mask"] = tf.constant((np.arange(LENGTH) < lengths).astype(np.int32))
    masked = mask(batch, mode=mode)
    for name in ("input_ids", "input_mask", "segment_ids"):
        np.testing.assert_array_equal(masked[name], batch[name])
    ids, weights = masked["input_ids"], masked["masked_lm_weights"]
    positions = masked["masked_lm_positions"]
    used = weights > 0
    np.testing.assert_array_equal(
        masked["masked_lm_ids"], np.take_along_axis(ids, positions, 1) * used
    )
    assert not positions[~used].any()
    assert set(np.unique(weights)) == {0.0, 1.0}
    # float32 as in the original; halves round to even.
    wanted = np.round(np.float32(lengths[:, 0]) * np.float32(0.15))
    np.testing.assert_array_equal(weights.sum(1), np.clip(wanted, 1, SLOTS))
    for name in ("masked_input_ids", "masked_lm_positions", "masked_lm_ids"):
        assert masked[name].dtype == np.int32
        assert masked[name].shape == (64, LENGTH if "input" in name else SLOTS)


@pytest.mark.parametrize("mode", MODES)
def test_a_function_of_seed_and_step(mode):
    batch = sequences(8)
    first = mask(batch, seed=7, step=12, mode=mode)
    again = mask(batch, seed=7, step=12, mode=mode)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    others = [(7, 13), (8, 12), (12, 7), (7, 12 + 2**32), (7, 10**6), (2**31 - 1, 12)]
    results = [first] + [mask(batch, *key, mode=mode) for key in others]
    for name in ("masked_lm_positions", "sample_uniform", "masked_input_ids"):
        values = {result[name].tobytes() for result in results}
        assert len(values) == len(results), name


@pytest.mark.parametrize("mode", MODES)
def test_same_draws_inside_a_pipeline(mode):
    """Steps and shapes that are only known when it runs give the same masking."""
    batch = sequences(6)
    dataset = tf.data.Dataset.from_tensor_slices(batch).batch(3)  # [None, 128]
    dataset = tf.data.Dataset.zip(tf.data.Dataset.counter(40), dataset).map(
        lambda step, part: mask_tensors(part, 9, step, mode),
        num_parallel_calls=2,
        deterministic=True,
    )
    for index, found in enumerate(dataset.as_numpy_iterator()):
        part = {name: value[3 * index : 3 * index + 3] for name, value in batch.items()}
        expected = mask(part, seed=9, step=40 + index, mode=mode)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("mode", MODES)
def test_rows_without_candidates_are_left_alone(mode):
    ids = [[CLS, SEP, 0, 0, 0, 0, 0, 0], [CLS, MASK, MASK, MASK, SEP, SEP, 0, 0]]
    ids += [[CLS, 17, 18, 19, 20, 21, 22, SEP], [0] * 8]
    lengths = np.array([2, 6, 8, 0])[:, None]
    batch = as_batch(ids, np.arange(8) < lengths)
    masked = mask(batch, mode=mode, slots=4, mask_prob=0.5)
    assert masked["masked_lm_weights"].sum(axis=1).tolist() == [0, 0, 4, 0]
    for row in (0, 1, 3):
        assert not masked["masked_lm_positions"][row].any()
        assert not masked["masked_lm_ids"][row].any()
        np.testing.assert_array_equal(masked["masked_input_ids"][row], ids[row])


def test_more_predictions_than_candidates():
    """Without replacement there are at most as many as candidates."""
    ids = np.full([200, 16], MASK)
    ids[:, 0], ids[:, 3], ids[:, 11] = CLS, 100, 200
    batch = as_batch(ids, np.ones_like(ids))
    masked = mask(batch, mode="fixed", slots=8, mask_prob=0.5)
    assert masked["masked_lm_weights"].sum(axis=1).tolist() == [2] * 200
    first = masked["masked_lm_positions"][:, :2]
    assert np.sort(first, axis=1).tolist() == [[3, 11]] * 200
    assert set(first[:, 0]) == {3, 11}  # in random order
    assert not masked["masked_lm_positions"][:, 2:].any()
    # With replacement all draws fall on the two.
    masked = mask(batch, slots=8, mask_prob=0.5)
    assert masked["masked_lm_weights"].sum(axis=1).tolist() == [8] * 200
    assert set(masked["masked_lm_positions"].reshape(-1)) == {3, 11}


# What becomes of masked positions, and a second set of positions beside them.

SMALL = 50


def mask_some(count=1024, batch=None, mode="fixed", **settings):
    batch = batch or sequences(count)
    return mask(batch, mode=mode, vocab_size=SMALL, **settings)


def shares(mask_token, random_token):
    return {"mask_token_share": mask_token, "random_token_share": random_token}


# The table of the masking ablation in BERT's appendix, and ELECTRA's own.
PAIRS = [(0.85, 0), (0.8, 0.1), (1, 0), (0, 0.8), (0, 1)]


def test_batches_of_earlier_versions_are_what_they_were():
    """A digest written down before there were shares."""
    masked = mask_some(16, mode="original")
    digest = hashlib.sha256()
    for name in sorted(masked):
        digest.update(masked[name].tobytes())
    assert digest.hexdigest()[:16] == "8c062f30c3bb5397"
    assert masked.keys() == mask_some(16, **shares(0.85, 0)).keys()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask_token, random_token", PAIRS)
def test_shares_over_19456_positions(mode, mask_token, random_token):
    """Words are 5 and up in the texts of 1,000 tokens, random ones below 50."""
    masked = mask_some(mode=mode, **shares(mask_token, random_token))
    ids, positions = masked["input_ids"], masked["masked_lm_positions"]
    times = np.zeros_like(ids)
    np.add.at(times, (np.arange(len(ids))[:, None], positions), 1)
    once = times == 1
    now, before = masked["masked_input_ids"][once], ids[once]
    kept = (now == before) & (now != MASK)
    # A random token may be [MASK], or the token that was there.
    chance, same = random_token / SMALL, (before < SMALL).mean()
    for found, expected in (
        (now == MASK, mask_token + chance),
        (kept, 1 - mask_token - random_token + same * chance),
    ):
        spread = np.sqrt(expected * (1 - expected) / once.sum())
        assert abs(found.mean() - expected) <= 5 * spread + 1e-6
    drawn = now[(now != before) & (now != MASK)]
    assert (drawn < SMALL).all()
    if random_token:
        cells = np.bincount(drawn, minlength=SMALL)
        cells = cells[np.arange(SMALL) != MASK]
        assert_like(cells, np.full(SMALL - 1, cells.mean()))
    else:
        assert not len(drawn)
    if mode == "original" and not random_token:
        # A position drawn twice keeps its token only if both draws say so.
        twice = masked["masked_input_ids"][times == 2] == MASK
        kept = (1 - mask_token) ** 2
        assert abs(twice.mean() - (1 - kept)) <= 5 * np.sqrt(kept / twice.size)
    # A position drawn twice has one of these too, and what was not masked its token.
    twice = masked["masked_input_ids"][times > 1]
    assert ((twice < SMALL) | (twice == ids[times > 1])).all()
    np.testing.assert_array_equal(
        masked["masked_input_ids"][times == 0], ids[times == 0]
    )


def test_shares_change_nothing_but_the_masked_text():
    usual, random = mask_some(), mask_some(**shares(0.8, 0.1))
    for name, value in usual.items():
        same = np.array_equal(value, random[name])
        assert same == (name != "masked_input_ids"), name


def test_random_tokens_are_a_function_of_seed_step_and_row():
    batch = sequences(8)
    settings = shares(0, 1)
    whole, later = (mask_some(batch=batch, step=step, **settings) for step in (3, 4))
    part = {name: value[2:5] for name, value in batch.items()}
    part = mask_some(batch=part, step=3, first_row=2, **settings)
    for name, value in part.items():
        np.testing.assert_array_equal(value, whole[name][2:5], err_msg=name)
    assert not np.array_equal(whole["masked_input_ids"], later["masked_input_ids"])
