# SPDX-License-Identifier: Apache-2.0
"""Masking and sampling: their distributions, and what must never happen."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf import masking

PAD, UNK, CLS, SEP, MASK = range(5)
VOCAB_SIZE = 1000
LENGTH = 128
SLOTS = 19  # int((0.15 + 0.005) * 128)
MODES = ("original", "fixed")
ALMOST_ONE = np.float32(0.99999994)


def sequences(rows, length=LENGTH, seed=0):
    """Unpadded sentence pairs of words: [CLS] a [SEP] b [SEP]."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB_SIZE, (rows, length)).astype(np.int32)
    ids[:, 0], ids[:, length // 2], ids[:, -1] = CLS, SEP, SEP
    return as_batch(ids, np.ones_like(ids))


def as_batch(ids, input_mask):
    ids, input_mask = np.asarray(ids, np.int32), np.asarray(input_mask, np.int32)
    return {
        "input_ids": tf.constant(ids),
        "input_mask": tf.constant(input_mask),
        "segment_ids": tf.zeros_like(ids),
    }


def mask(batch, seed=1, step=0, mode="original", slots=SLOTS, mask_prob=0.15):
    masked = masking.mask_batch(
        batch,
        seed,
        step,
        mask_prob=mask_prob,
        max_predictions_per_seq=slots,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        repeated_masks=mode,
    )
    return {name: value.numpy() for name, value in masked.items()}


def assert_like(counts, expected, spread=1.0):
    """Chi-square of `counts` against `expected` within 5 standard deviations.

    Cells are joined until each expects at least 10.  `spread` is the variance of the
    counts relative to independent draws.
    """
    counts, expected = np.asarray(counts, float), np.asarray(expected, float)
    assert counts[expected == 0].sum() == 0
    joined, c, e = [], 0.0, 0.0
    for count, expectation in zip(counts, expected, strict=True):
        c, e = c + count, e + expectation
        if e >= 10:
            joined.append((c, e))
            c = e = 0.0
    if joined:
        joined[-1] = joined[-1][0] + c, joined[-1][1] + e
    c, e = np.array(joined).T
    freedom = len(c) - 1
    assert freedom >= 3
    chi_square = ((c - e) ** 2 / e).sum() / spread
    assert abs(chi_square - freedom) < 5 * np.sqrt(2 * freedom), (chi_square, freedom)


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

COMPILED_SAMPLER = tf.function(masking.sample_from_softmax, jit_compile=True)


def softmax(logits, temperature=1.0):
    scaled = np.asarray(logits, np.float64) / temperature
    weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def draws(logits, count, temperature=1.0, seed=0, **options):
    """`count` samples from one row of logits."""
    rng = np.random.default_rng(seed)
    uniform = rng.random(count, np.float32)
    sampled = []
    for part in np.array_split(uniform, max(1, count * len(logits) // 20_000_000)):
        rows = tf.broadcast_to(tf.constant(logits), [len(part), len(logits)])
        ids = masking.sample_from_softmax(
            rows, tf.constant(part), temperature=temperature, **options
        )
        sampled.append(ids.numpy())
    return np.concatenate(sampled)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("vocab_size", [12, 256, 257, 1000])
def test_sampler_chi_square(vocab_size, temperature):
    rng = np.random.default_rng(vocab_size)
    logits = rng.normal(0, 1.5, vocab_size).astype(np.float32)
    ids = draws(logits, 40_000, temperature)
    assert ids.dtype == np.int32
    assert_like(
        np.bincount(ids, minlength=vocab_size), softmax(logits, temperature) * 40_000
    )


def test_sampler_chi_square_of_a_full_vocabulary():
    rng = np.random.default_rng(30522)
    logits = rng.normal(0, 2, 30522).astype(np.float32)
    ids = draws(logits, 8000)
    counts = np.bincount(ids, minlength=30522)
    assert len(counts) == 30522
    assert_like(counts, softmax(logits) * 8000)


@pytest.mark.parametrize("vocab_size", [2, 12, 255, 256, 257, 1000, 30522])
@pytest.mark.parametrize("sampler", [masking.sample_from_softmax, COMPILED_SAMPLER])
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


def test_compiled_sampler_gives_the_same_ids():
    rng = np.random.default_rng(11)
    logits = rng.normal(0, 2, (512, 1000)).astype(np.float32)
    uniform = rng.random(512, np.float32)
    plain = masking.sample_from_softmax(tf.constant(logits), tf.constant(uniform))
    compiled = COMPILED_SAMPLER(tf.constant(logits), tf.constant(uniform))
    different = np.flatnonzero(plain.numpy() != compiled.numpy())
    # Only where the uniform lies on a boundary to within rounding.
    cumulative = np.cumsum(softmax(logits), axis=1)
    for row in different:
        assert np.abs(cumulative[row] - uniform[row]).min() < 2e-6
    assert len(different) <= 2


@pytest.mark.parametrize("sampler", [masking.sample_from_softmax, COMPILED_SAMPLER])
@pytest.mark.parametrize("vocab_size", [12, 256, 257, 1000, 30522])
@pytest.mark.parametrize("u", [0.0, 1e-38, 0.5, 1 - 2**-23, ALMOST_ONE])
def test_sampler_never_draws_an_impossible_id(sampler, vocab_size, u):
    """Few ids have weight, anywhere in the vocabulary; the uniform is extreme."""
    rng = np.random.default_rng(vocab_size)
    rows = 64
    possible = rng.random((rows, vocab_size)) < rng.choice(
        [0.002, 0.05, 0.9], (rows, 1)
    )
    possible[np.arange(rows), rng.integers(0, vocab_size, rows)] = True
    possible[0] = False
    possible[0, 0] = True
    possible[1] = False
    possible[1, -1] = True
    logits = np.where(possible, rng.normal(0, 2, possible.shape), -1e4)
    ids = sampler(
        tf.constant(logits, tf.float32), tf.constant(np.full(rows, u, np.float32))
    ).numpy()
    assert (0 <= ids).all() and (ids < vocab_size).all()
    assert possible[np.arange(rows), ids].all()


@pytest.mark.parametrize("sampler", [masking.sample_from_softmax, COMPILED_SAMPLER])
def test_sampler_with_many_impossible_ids_and_any_uniform(sampler):
    """Cumulative sums that rounding makes uneven must not select an empty slot."""
    rng = np.random.default_rng(13)
    possible = rng.random((256, 30522)) < 0.01
    possible[:, 1000:6000] = False
    possible[:, 29000:] = False
    logits = np.where(possible, rng.normal(0, 3, possible.shape), -1e4)
    logits = tf.constant(logits, tf.float32)
    for uniform in rng.random((6, 256), np.float32):
        ids = sampler(logits, tf.constant(uniform)).numpy()
        assert possible[np.arange(256), ids].all()


@pytest.mark.parametrize(
    "sampler",
    [
        masking.sample_from_softmax,
        pytest.param(
            COMPILED_SAMPLER,
            marks=pytest.mark.xfail(
                strict=True, reason="XLA's cumulative sum decreases here and there"
            ),
        ),
    ],
)
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


def test_sampler_with_peaked_logits():
    for scale in (50, 1e4, 1e30):
        logits = np.zeros(300, np.float32)
        logits[270] = scale
        assert set(draws(logits, 1000)) == {270}


def test_sampler_stays_in_the_vocabulary_on_numbers_that_are_none():
    logits = np.zeros([4, 300], np.float32)
    logits[0, 5], logits[1, 5], logits[2, 5] = np.nan, np.inf, -np.inf
    logits[3] = -np.inf
    ids = masking.sample_from_softmax(
        tf.constant(logits), tf.constant([0.3, 0.6, 0.9, 0.999], tf.float32)
    ).numpy()
    assert (0 <= ids).all() and (ids < 300).all()


def test_sampler_shapes_and_types():
    logits = tf.random.stateless_normal([2, 3, 50], [0, 1])
    uniform = tf.random.stateless_uniform([2, 3], [2, 3])
    together = masking.sample_from_softmax(logits, uniform).numpy()
    assert together.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = masking.sample_from_softmax(logits[i, j][None], uniform[i, j][None])
            assert alone.shape == (1,)
            assert alone.numpy()[0] == together[i, j]
    # bfloat16 logits are drawn from in float32.
    low = tf.cast(logits, tf.bfloat16)
    np.testing.assert_array_equal(
        masking.sample_from_softmax(low, uniform),
        masking.sample_from_softmax(tf.cast(low, tf.float32), uniform),
    )
    # No positions at all.
    none = masking.sample_from_softmax(tf.zeros([0, 50]), tf.zeros([0]))
    assert none.shape == (0,)


@pytest.mark.parametrize("sampler", [masking.sample_from_softmax, COMPILED_SAMPLER])
@pytest.mark.parametrize("margin", [0.0, 10.0, 300.0])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
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


@pytest.mark.parametrize("disallowed", [0, 7, 11])
def test_the_others_keep_their_proportions(disallowed):
    rng = np.random.default_rng(19)
    logits = rng.normal(0, 1.5, 12).astype(np.float32)
    ids = draws(
        logits,
        40_000,
        temperature=0.7,
        disallowed_ids=tf.fill([40_000], disallowed),
    )
    expected = softmax(logits, 0.7)
    expected[disallowed] = 0
    assert_like(np.bincount(ids, minlength=12), expected / expected.sum() * 40_000)


@pytest.mark.parametrize("disallowed", [None, 0, 100, 999])
def test_uniform_sampler(disallowed):
    rng = np.random.default_rng(23)
    uniform = rng.random(60_000, np.float32)
    uniform[:2] = 0.0, ALMOST_ONE
    fill = None if disallowed is None else tf.fill([60_000], disallowed)
    ids = masking.sample_uniformly(
        tf.constant(uniform), 1000, disallowed_ids=fill
    ).numpy()
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
        ids = masking.sample_uniformly(
            uniform, vocab_size, disallowed_ids=tf.constant([[0, vocab_size - 1]])
        )
        assert ids.numpy().tolist() == [[1, vocab_size - 2]]
