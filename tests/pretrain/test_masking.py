# SPDX-License-Identifier: Apache-2.0
"""Masking and sampling: their distributions, and what must never happen."""

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
    sequences,
)
from tests.helpers.statistics import assert_like

ALMOST_ONE = np.float32(0.99999994)


# Masking.


@pytest.mark.parametrize("mode", MODES)
def test_rates_over_131072_tokens(mode):
    batch = sequences(1024)
    ids = batch["input_ids"].numpy()
    masked = mask(batch, mode=mode)
    positions, weights = masked["masked_lm_positions"], masked["masked_lm_weights"]
    # round(0.15 * 128) = 19 of 128 tokens.
    np.testing.assert_array_equal(weights, np.ones([1024, SLOTS]))
    # The share of positions whose input became [MASK], among those drawn once.
    times = np.zeros_like(ids)
    np.add.at(times, (np.arange(1024)[:, None], positions), 1)
    once = times == 1
    became_mask = masked["masked_input_ids"] == MASK
    replaced = became_mask[once].mean()
    assert abs(replaced - 0.85) < 5 * np.sqrt(0.85 * 0.15 / once.sum())
    # A position drawn twice keeps its token only if both draws say so.
    if mode == "original":
        twice = times == 2
        replaced = became_mask[twice].mean()
        assert abs(replaced - (1 - 0.15**2)) < 5 * np.sqrt(0.0225 / twice.sum())
    # Everything else is as it was: never a random token.
    np.testing.assert_array_equal(
        masked["masked_input_ids"][~became_mask], ids[~became_mask]
    )
    assert not became_mask[times == 0].any()


@pytest.mark.parametrize("mode", MODES)
def test_positions_are_uniform_over_candidates(mode):
    batch = sequences(2048)
    masked = mask(batch, mode=mode)
    candidates = masking.candidates_mask(
        batch["input_ids"], batch["input_mask"], cls_id=CLS, sep_id=SEP, mask_id=MASK
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
def test_the_three_kinds_of_draws_are_independent(mode):
    """One number decides the position, another [MASK] or not, a third the sample."""
    batch = sequences(2048)
    masked = mask(batch, mode=mode)
    uniform = masked["sample_uniform"]
    assert uniform.dtype == np.float32
    assert 0 <= uniform.min() and uniform.max() < 1
    assert_like(np.histogram(uniform, 50, (0, 1))[0], np.full(50, uniform.size / 50))
    positions = masked["masked_lm_positions"]
    became_mask = (
        np.take_along_axis(masked["masked_input_ids"], positions, axis=1) == MASK
    )
    draws = {
        "position": positions,
        "became_mask": became_mask,
        "uniform": uniform,
        "neighbour": np.roll(uniform, 1, axis=1),
        "row_above": np.roll(uniform, 1, axis=0),
    }
    flat = np.stack([np.ravel(value) for value in draws.values()]).astype(float)
    correlation = np.corrcoef(flat) - np.eye(len(flat))
    assert np.abs(correlation).max() < 5 / np.sqrt(uniform.size)


def repeated_share(positions):
    ordered = np.sort(positions, axis=1)
    return (ordered[:, 1:] == ordered[:, :-1]).sum() / positions.size


def test_share_of_repeated_positions():
    batch = sequences(2048)
    original = repeated_share(mask(batch)["masked_lm_positions"])
    distinct = (LENGTH - 3) * (1 - (1 - 1 / (LENGTH - 3)) ** SLOTS)
    assert original == pytest.approx(1 - distinct / SLOTS, abs=0.005)
    assert original == pytest.approx(0.07, abs=0.005)
    assert repeated_share(mask(batch, mode="fixed")["masked_lm_positions"]) == 0


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
    for name, dtype in {
        "masked_input_ids": np.int32,
        "masked_lm_positions": np.int32,
        "masked_lm_ids": np.int32,
        "masked_lm_weights": np.float32,
        "sample_uniform": np.float32,
    }.items():
        assert masked[name].dtype == dtype
        assert masked[name].shape == (64, LENGTH if "input" in name else SLOTS)


@pytest.mark.parametrize("mode", MODES)
def test_a_function_of_seed_and_step(mode):
    batch = sequences(8)
    first = mask(batch, seed=7, step=12, mode=mode)
    again = mask(batch, seed=7, step=12, mode=mode)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name])
    others = [
        (7, 13),
        (8, 12),
        (12, 7),
        (7, 12 + 2**32),
        (7, 1_000_000),
        (2**31 - 1, 12),
    ]
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
        lambda step, part: masking.mask_batch(
            part,
            9,
            step,
            mask_prob=0.15,
            max_predictions_per_seq=SLOTS,
            cls_id=CLS,
            sep_id=SEP,
            mask_id=MASK,
            repeated_masks=mode,
        ),
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


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [1, 50])
def test_a_row_with_one_candidate(mode, rows):
    batch = as_batch([[CLS, 17, SEP]] * rows, [[1, 1, 1]] * rows)
    masked = mask(batch, mode=mode, slots=1)
    assert masked["masked_lm_positions"].tolist() == [[1]] * rows
    assert masked["masked_lm_ids"].tolist() == [[17]] * rows
    assert set(masked["masked_input_ids"][:, 1].tolist()) <= {17, MASK}


def test_more_predictions_than_candidates():
    """Without replacement there are no more of them than candidates."""
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


# Corruption.


def test_scatter_update():
    sequence = tf.constant([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]])
    updates = tf.constant([[7, 4, 9, 99], [1, 2, 3, 5]])
    positions = tf.constant([[2, 2, 4, 0], [0, 0, 0, 1]])
    updated, written = masking.scatter_update(sequence, updates, positions)
    # 2 receives floor((7 + 4) / 2); an update at 0 is none.
    assert updated.numpy().tolist() == [[10, 11, 5, 13, 9], [20, 5, 22, 23, 24]]
    assert written.numpy().tolist() == [[0, 0, 1, 0, 1], [0, 1, 0, 0, 0]]
    assert updated.dtype == tf.int32


def test_scatter_update_agrees_with_xla():
    rng = np.random.default_rng(5)
    sequence = tf.constant(rng.integers(0, 30522, (32, 64)), tf.int32)
    updates = tf.constant(rng.integers(0, 30522, (32, 9)), tf.int32)
    positions = tf.constant(rng.integers(0, 64, (32, 9)), tf.int32)
    eager = masking.scatter_update(sequence, updates, positions)
    compiled = tf.function(masking.scatter_update, jit_compile=True)(
        sequence, updates, positions
    )
    for one, other in zip(eager, compiled, strict=True):
        np.testing.assert_array_equal(one, other)


# Sampling.
