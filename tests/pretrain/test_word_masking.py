# SPDX-License-Identifier: Apache-2.0
"""Whole-word masking: what is drawn, how much of it, and what stays as it was."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import masking
from tests.helpers.masked_sequences import (
    CLS,
    LENGTH,
    MASK,
    PAD,
    SEP,
    SLOTS,
    as_batch,
    mask,
    settings_of,
)
from tests.helpers.runs import pretrain, tiny
from tests.helpers.statistics import assert_like

# Of 1,000 tokens the last 400 continue words.
CONTINUATIONS = np.arange(1000) >= 600


def draw(batch, step=0, mode="fixed", **settings):
    usual = {"mask_unit": "word", "continuations": CONTINUATIONS, "vocab_size": 1000}
    return mask(batch, step=step, mode=mode, **usual | settings)


def texts(rows, seed=0, length=LENGTH):
    """Padded sentence pairs of words of one to five tokens."""
    rng = np.random.default_rng(seed)
    ids = np.where(
        rng.random((rows, length)) < 0.3,
        rng.integers(600, 1000, (rows, length)),
        rng.integers(5, 600, (rows, length)),
    )
    sizes = rng.integers(20, length + 1, rows)
    sizes[0] = length
    place = np.arange(length)
    ids = np.where(place == sizes[:, None] // 2, SEP, ids)
    ids = np.where(place == sizes[:, None] - 1, SEP, ids)
    mask = place < sizes[:, None]
    ids = np.where(mask, ids, PAD)
    ids[:, 0] = CLS
    return as_batch(ids, mask)


def masked_at(masked):
    """bool [B, L]; 0 marks an unused place."""
    at = np.zeros(masked["input_ids"].shape, bool)
    positions = masked["masked_lm_positions"]
    np.put_along_axis(at, positions, masked["masked_lm_weights"] > 0, axis=1)
    return at


def words_of(ids, mask, continuations=CONTINUATIONS):
    """The words of one row, as lists of positions; one at a time, as a reader would."""
    words, open_word = [], False
    for place, (token, real) in enumerate(zip(ids, mask, strict=True)):
        if not real or token in (CLS, SEP, MASK):
            open_word = False
        elif open_word and continuations[token]:
            words[-1].append(place)
        else:
            words.append([place])
            open_word = True
    return words


def wanted_of(mask, prob=0.15, slots=SLOTS):
    return max(1, min(slots, round(prob * int(mask.sum()))))


def test_words_are_masked_whole():
    masked = draw(texts(256))
    at, ids, mask = masked_at(masked), masked["input_ids"], masked["input_mask"]
    assert not at[~mask.astype(bool) | np.isin(ids, [CLS, SEP, MASK])].any()
    long_ones = 0
    for row in range(len(ids)):
        wanted = wanted_of(mask[row])
        assert at[row].sum() <= wanted
        for word in words_of(ids[row], mask[row]):
            if len(word) <= wanted:
                assert at[row, word].all() or not at[row, word].any()
            long_ones += len(word) > wanted
    assert long_ones < 20
    # Distinct, in the order of the text; slots that are not in use hold nothing.
    positions, used = masked["masked_lm_positions"], masked["masked_lm_weights"] > 0
    np.testing.assert_array_equal(used.sum(1), at.sum(1))
    assert not positions[~used].any() and not masked["masked_lm_ids"][~used].any()
    steps = np.diff(positions, axis=1)[used[:, 1:]]
    assert (steps > 0).all()
    taken = np.take_along_axis(ids, positions, axis=1)
    np.testing.assert_array_equal(masked["masked_lm_ids"][used], taken[used])


@pytest.mark.parametrize("prob, slots", [(0.15, 19), (0.4, 51)])
def test_share_of_masked_tokens(prob, slots):
    settings = {"mask_prob": prob, "slots": slots}
    words = draw(texts(512), **settings)
    tokens = draw(texts(512), mask_unit="token", **settings)
    found, expected = (x["masked_lm_weights"].sum() for x in (words, tokens))
    assert 0.99 * expected < found <= expected
    assert abs(found / words["input_mask"].sum() - prob) < 0.01 * prob


def test_every_word_of_a_size_is_as_likely():
    """4,000 rows of the same words, of one, two and three tokens."""
    sizes = np.tile([1, 2, 1, 3, 1], 6)
    words = [[10 + i] + [700 + i] * (n - 1) for i, n in enumerate(sizes)]
    row = [CLS, *itertools.chain(*words), SEP]
    firsts = 1 + np.cumsum(sizes) - sizes
    batch = as_batch([row] * 4000, np.ones((4000, len(row))))
    masked = masked_at(draw(batch, mask_prob=0.2, slots=12))
    times = masked[:, firsts].sum(0)
    for size in (1, 2, 3):
        counts = times[sizes == size]
        share = counts.mean() / len(masked)
        assert_like(counts, np.full(len(counts), counts.mean()), 1 - share)
        # Large ones fit less often.
        assert abs(share - 10 / 48) < 0.05
    assert masked.sum() == 10 * len(masked)
    # Draws of two words next to each other do not depend on each other much.
    both = (masked[:, firsts[4]] & masked[:, firsts[5]]).mean()
    assert abs(both - 0.2 * 0.2) < 0.02


def test_a_word_that_could_never_fit():
    """As of scripts without spaces; and where nothing can be masked."""
    ids = np.full((2000, 24), 700)
    ids[:, 0], ids[:, 23] = CLS, SEP
    ids[:, 1] = 10
    ids[1000:, 1:23] = MASK
    masked = masked_at(draw(as_batch(ids, np.ones_like(ids))))
    assert (masked[:1000].sum(1) == round(0.15 * 24)).all()
    assert not masked[1000:].any()
    counts = masked[:1000, 1:23].sum(0)
    assert_like(counts, np.full(22, counts.mean()), 1 - 4 / 22)
    # Fewer slots than tokens to mask.
    assert masked_at(draw(texts(64), slots=3)).sum(1).max() == 3


def test_what_becomes_of_masked_words():
    """Each token's own draw decides, as in BERT."""
    masked = draw(texts(512), mask_token_share=0.8, random_token_share=0.1)
    at, ids, now = masked_at(masked), masked["input_ids"], masked["masked_input_ids"]
    np.testing.assert_array_equal(now[~at], ids[~at])
    assert abs((now[at] == MASK).mean() - 0.8) < 0.03
    assert abs((now[at] == ids[at]).mean() - 0.1) < 0.03


def test_a_function_of_seed_step_and_row():
    batch = texts(24)
    whole, later = draw(batch), draw(batch, step=1)
    assert not np.array_equal(masked_at(whole), masked_at(later))
    part = {name: value[5:11] for name, value in batch.items()}
    part = draw(part, first_row=5)
    words = {"mask_unit": "word", "continuations": CONTINUATIONS}
    settings = settings_of("fixed", **words)
    draws = masking.uniforms(1, 0, (0, 24), settings.draws_per_row(LENGTH))
    function = functools.partial(masking.mask_by_draws, how=settings)
    compiled = tf.function(function, jit_compile=True)(batch, draws)
    for name, value in whole.items():
        np.testing.assert_array_equal(part[name], value[5:11], err_msg=name)
        np.testing.assert_array_equal(compiled[name], value, err_msg=name)


def test_vocabulary_without_continuations_is_refused(tiny_data):
    bad = pretrain(tiny_data, "words", tiny(mask_unit="word"))
    assert bad.returncode == 2 and "has no ## tokens" in bad.stderr
