# SPDX-License-Identifier: Apache-2.0
"""What becomes of masked positions, and a second set of positions beside them."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import masking
from tests.helpers import masked_sequences
from tests.helpers.masked_sequences import (
    CLS,
    LENGTH,
    MASK,
    MODES,
    SEP,
    SLOTS,
    sequences,
)
from tests.helpers.statistics import assert_like

VOCAB_SIZE = 50


def mask(count=1024, batch=None, mode="fixed", **settings):
    batch = batch or masked_sequences.sequences(count)
    return masked_sequences.mask(batch, mode=mode, vocab_size=VOCAB_SIZE, **settings)


def shares(mask_token, random_token):
    return {"mask_token_share": mask_token, "random_token_share": random_token}


# The table of the masking ablation in BERT's appendix, and ELECTRA's own.
PAIRS = [(0.85, 0), (0.8, 0.1), (1, 0), (0.8, 0.2), (0.8, 0), (0, 0.8), (0, 1)]


def test_batches_of_earlier_versions_are_what_they_were():
    """A digest written down before there were shares."""
    masked = mask(16, mode="original")
    digest = hashlib.sha256()
    for name in sorted(masked):
        digest.update(masked[name].tobytes())
    assert digest.hexdigest()[:16] == "8c062f30c3bb5397"
    assert masked.keys() == mask(16, **shares(0.85, 0)).keys()


@pytest.mark.parametrize("mask_token, random_token", PAIRS)
@pytest.mark.parametrize("mode", MODES)
def test_shares_over_19456_positions(mode, mask_token, random_token):
    """Words are 5 and up in the texts of 1,000 tokens, random ones below 50."""
    masked = mask(mode=mode, **shares(mask_token, random_token))
    ids, positions = masked["input_ids"], masked["masked_lm_positions"]
    times = np.zeros_like(ids)
    np.add.at(times, (np.arange(len(ids))[:, None], positions), 1)
    once = times == 1
    now, before = masked["masked_input_ids"][once], ids[once]
    kept = (now == before) & (now != MASK)
    # A random token may be [MASK], or the token that was there.
    chance, same = random_token / VOCAB_SIZE, (before < VOCAB_SIZE).mean()
    for found, expected in (
        (now == MASK, mask_token + chance),
        (kept, 1 - mask_token - random_token + same * chance),
    ):
        spread = np.sqrt(expected * (1 - expected) / once.sum())
        assert abs(found.mean() - expected) <= 5 * spread + 1e-6
    drawn = now[(now != before) & (now != MASK)]
    assert (drawn < VOCAB_SIZE).all()
    if random_token:
        cells = np.bincount(drawn, minlength=VOCAB_SIZE)
        cells = cells[np.arange(VOCAB_SIZE) != MASK]
        assert_like(cells, np.full(VOCAB_SIZE - 1, cells.mean()))
    else:
        assert not len(drawn)
    # A position drawn twice has one of these too, and what was not masked its token.
    twice = masked["masked_input_ids"][times > 1]
    assert ((twice < VOCAB_SIZE) | (twice == ids[times > 1])).all()
    np.testing.assert_array_equal(
        masked["masked_input_ids"][times == 0], ids[times == 0]
    )


def test_shares_change_nothing_but_the_masked_text():
    usual, random = mask(), mask(**shares(0.8, 0.1))
    for name, value in usual.items():
        same = np.array_equal(value, random[name])
        assert same == (name != "masked_input_ids"), name


def test_random_tokens_are_a_function_of_seed_and_step():
    batch = sequences(8)
    texts = [
        mask(batch=batch, step=step, **shares(0, 1))["masked_input_ids"].tobytes()
        for step in (3, 3, 4)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_parts_of_a_batch_get_their_own_rows():
    batch = sequences(8)
    settings = {**shares(0.5, 0.5), "draw_others": True}
    whole = mask(batch=batch, **settings)
    part = {name: value[2:5] for name, value in batch.items()}
    part = mask(batch=part, first_row=2, **settings)
    for name, value in part.items():
        np.testing.assert_array_equal(value, whole[name][2:5], err_msg=name)


@pytest.mark.parametrize("mode", MODES)
def test_other_positions(mode):
    """As many as are drawn for masking, uniform over all, the masked ones or not."""
    masked = mask(2048, mode=mode, draw_others=True)
    others = masked["other_weights"]
    assert others.dtype == np.float32 and set(np.unique(others)) == {0, 1}
    np.testing.assert_array_equal(others.sum(1), masked["masked_lm_weights"].sum(1))
    special = np.isin(masked["input_ids"], [CLS, SEP, MASK])
    assert not others[special].any()
    free = ~special[0]
    used, share = masked["masked_lm_weights"] > 0, SLOTS / (LENGTH - 3)
    both = np.take_along_axis(others, masked["masked_lm_positions"], 1)[used]
    error = np.sqrt(share * (1 - share) / both.size)
    assert abs(both.mean() - share) < 5 * error, (both.mean(), share)
    spread = 1 - share
    expected = np.full(free.sum(), others.sum() / free.sum())
    assert_like(others.sum(0)[free], expected, spread)
    assert "other_weights" not in mask(16, mode=mode)


def test_other_positions_where_there_are_few():
    ids = [[CLS, 17, 18, 19, SEP, 0, 0, 0], [CLS, SEP, 0, 0, 0, 0, 0, 0]]
    batch = {
        "input_ids": tf.constant(ids),
        "input_mask": tf.cast(tf.constant(ids) > 0, tf.int32),
        "segment_ids": tf.zeros([2, 8], tf.int32),
    }
    masked = masking.mask_batch(
        batch,
        1,
        0,
        mask_prob=0.5,
        max_predictions_per_seq=4,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        repeated_masks="fixed",
        draw_others=True,
    )
    assert masked["masked_lm_weights"].numpy().sum(1).tolist() == [2, 0]
    assert masked["other_weights"].numpy().sum(1).tolist() == [2, 0]


def test_sequences_that_are_left_alone():
    """A share of all, drawn beside the rest, which stays what it was."""
    usual, found = mask(4096), mask(4096, intact_share=0.2)
    intact = found.pop("is_intact")
    assert intact.shape == (4096, 1) and intact.dtype == np.float32
    assert abs(intact.mean() - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 4096)
    assert found.keys() == usual.keys()
    for name, value in usual.items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)
    again, later = (
        mask(4096, step=step, intact_share=0.2)["is_intact"] for step in (0, 1)
    )
    assert np.array_equal(again, intact) and not np.array_equal(later, intact)
    batch = {name: value[2:5] for name, value in sequences(8).items()}
    whole = mask(batch=sequences(8), intact_share=0.5)["is_intact"]
    part = mask(batch=batch, first_row=2, intact_share=0.5)["is_intact"]
    np.testing.assert_array_equal(part, whole[2:5])
