# SPDX-License-Identifier: Apache-2.0
"""Whole-word masking: what is drawn, how much of it, and what stays as it was."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.pretrain import masking
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.building import VOCAB
from tests.helpers.forked_runs import ROOT
from tests.helpers.runs import pretrain, tiny
from tests.helpers.statistics import assert_like
from tests.pretrain.test_masking import CLS, LENGTH, MASK, PAD, SEP, SLOTS, as_batch

# Of 1,000 tokens the last 400 continue words.
CONTINUATIONS = np.arange(1000) >= 600


def draw(batch, *, continuations=CONTINUATIONS, compiled=False, **settings):
    options = {
        "mask_prob": 0.15,
        "max_predictions_per_seq": SLOTS,
        "cls_id": CLS,
        "sep_id": SEP,
        "mask_id": MASK,
        "repeated_masks": "fixed",
        "mask_unit": "word",
        "continuations": continuations,
        "vocab_size": 1000,
        **settings,
    }
    step = options.pop("step", 0)
    if not compiled:
        masked = masking.mask_batch(batch, 1, step, **options)
        return {name: value.numpy() for name, value in masked.items()}
    shape = batch["input_ids"].shape
    columns = masking.draws_per_row(shape[1], SLOTS, "fixed")
    draws = masking.uniforms(1, step, (0, shape[0]), columns)
    del options["vocab_size"]
    function = tf.function(
        lambda batch, draws: masking.mask_by_draws(batch, draws, **options),
        jit_compile=True,
    )
    return {name: value.numpy() for name, value in function(batch, draws).items()}


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
    """bool [B, L]; what stands at 0 is no position."""
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


@pytest.fixture(scope="module")
def real_text():
    """This project's pages, in rows of 128 tokens of a small vocabulary."""
    vocab = Vocabulary.load(VOCAB)
    tokenizer = Tokenizer(vocab, True, True)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    ids = [i for page in pages for i in tokenizer.encode(page.read_text())]
    count = len(ids) // (LENGTH - 2)
    rows = np.full((count, LENGTH), vocab.sep_id)
    rows[:, 0] = vocab.cls_id
    rows[:, 1:-1] = np.reshape(ids[: count * (LENGTH - 2)], (count, -1))
    ends = np.random.default_rng(3).integers(16, LENGTH + 1, count)
    mask = np.arange(LENGTH) < ends[:, None]
    return as_batch(np.where(mask, rows, vocab.pad_id), mask), vocab


@pytest.mark.parametrize("prob, slots", [(0.15, 19), (0.25, 32), (0.4, 51)])
def test_the_share_of_masked_tokens_in_real_text(real_text, prob, slots):
    batch, vocab = real_text
    settings = {
        "continuations": vocab.continuations,
        "mask_prob": prob,
        "max_predictions_per_seq": slots,
        "cls_id": vocab.cls_id,
        "sep_id": vocab.sep_id,
        "mask_id": vocab.mask_id,
    }
    words = draw(batch, **settings)
    tokens = draw(batch, mask_unit="token", **settings)
    assert len(words["input_ids"]) > 200
    # Most tokens of a page are not words by themselves in so small a vocabulary.
    real = words["input_mask"] > 0
    assert np.asarray(vocab.continuations)[words["input_ids"][real]].mean() > 0.3
    found, expected = (x["masked_lm_weights"].sum() for x in (words, tokens))
    assert 0.99 * expected < found <= expected
    assert abs(found / real.sum() - prob) < 0.01 * prob


def test_every_word_of_a_size_is_as_likely():
    """4,000 rows of the same words, of one, two and three tokens."""
    sizes = np.tile([1, 2, 1, 3, 1], 6)
    words = [[10 + i] + [700 + i] * (n - 1) for i, n in enumerate(sizes)]
    row = [CLS, *(token for word in words for token in word), SEP]
    firsts = 1 + np.cumsum(sizes) - sizes
    batch = as_batch([row] * 4000, np.ones((4000, len(row))))
    masked = masked_at(draw(batch, mask_prob=0.2, max_predictions_per_seq=12))
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


def test_words_of_one_token_are_tokens():
    """Where nothing continues a word, each position is as likely."""
    nothing = np.zeros(1000, bool)
    batch = texts(4096, length=40)
    batch = {name: tf.repeat(value[:1], 4096, 0) for name, value in batch.items()}
    masked = masked_at(draw(batch, continuations=nothing, max_predictions_per_seq=6))
    assert (masked.sum(1) == 6).all()
    free = ~np.isin(batch["input_ids"][0], [CLS, SEP])
    counts = masked.sum(0)[free]
    spread = 1 - 6 / free.sum()
    assert_like(counts, np.full(free.sum(), counts.mean()), spread)


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


def test_fewer_slots_than_tokens_to_mask():
    masked = draw(texts(64), max_predictions_per_seq=3)
    assert masked["masked_lm_positions"].shape == (64, 3)
    assert masked_at(masked).sum(1).max() == 3


def test_tokens_are_drawn_as_ever():
    batch = texts(64)
    for mode in ("original", "fixed"):
        settings = {"repeated_masks": mode, "mask_unit": "token"}
        one = draw(batch, **settings)
        other = draw(batch, continuations=None, **settings)
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_what_becomes_of_masked_words():
    """Each token's own draw decides, as in BERT; as many are of another draw."""
    masked = draw(
        texts(512), mask_token_share=0.8, random_token_share=0.1, draw_others=True
    )
    at, ids, now = masked_at(masked), masked["input_ids"], masked["masked_input_ids"]
    np.testing.assert_array_equal(now[~at], ids[~at])
    assert abs((now[at] == MASK).mean() - 0.8) < 0.03
    assert abs((now[at] == ids[at]).mean() - 0.1) < 0.03
    others = masked["other_weights"] > 0
    assert 0.5 < (others & at).sum() / (others.mean() * at.sum()) < 2
    np.testing.assert_array_equal(others.sum(1), at.sum(1))


def test_a_function_of_seed_step_and_row():
    batch = texts(24)
    whole, later = draw(batch), draw(batch, step=1)
    assert not np.array_equal(masked_at(whole), masked_at(later))
    part = {name: value[5:11] for name, value in batch.items()}
    part = draw(part, first_row=5)
    for name, value in part.items():
        np.testing.assert_array_equal(value, whole[name][5:11], err_msg=name)


def test_it_compiles():
    batch = texts(32)
    plain, compiled = draw(batch), draw(batch, compiled=True)
    for name, value in plain.items():
        np.testing.assert_array_equal(compiled[name], value, err_msg=name)


# The hparam.


def make(**hparams):
    return PretrainingConfig.from_hparams("/nowhere", "m", hparams)


def test_words_are_distinct_by_themselves():
    assert make(mask_unit="word").repeated_masks == "fixed"
    assert make().masking_settings()["mask_unit"] == "token"
    assert make(mask_unit="word", electra_objective=False).objective == "mlm"


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"mask_unit": "words"}, ["mask_unit", '"token" or "word"']),
        (
            {"mask_unit": "word", "repeated_masks": "original"},
            ["mask_unit", 'repeated_masks "original"'],
        ),
        ({"mask_unit": "word", "electric_objective": True}, ["mask_unit", "two_tower"]),
        ({"mask_unit": "word", "generator": "unigram"}, ["mask_unit", "unigram"]),
        ({"mask_unit": "word", "uniform_generator": True}, ["mask_unit", "uniform"]),
    ],
)
def test_what_excludes_each_other(hparams, words):
    with pytest.raises(UserError) as caught:
        make(**hparams)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_script(tiny_data, tmp_path):
    hparams = tiny(mask_unit="word", num_train_steps=2)
    bad = pretrain(tiny_data, "words", hparams)
    assert bad.returncode == 2 and "has no ## tokens" in bad.stderr
    tokens = (tiny_data / "vocab.txt").read_text().split()
    tokens[30:] = [f"##{token}" for token in tokens[30:]]
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("".join(f"{token}\n" for token in tokens))
    hparams["vocab_file"] = str(vocab_file)
    done = pretrain(tiny_data, "words", hparams)
    assert done.returncode == 0, done.stderr
