# SPDX-License-Identifier: Apache-2.0
"""The tokenizer's fast paths against the slow one; offsets, packing.

tests/parity replays what the original recorded, of every rule.
"""

import itertools
import random
import unicodedata

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.text import tf_tokenization, tokenization, vocabulary
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary
from tests.helpers.runs import GOLDEN, by_default

TINY = str(GOLDEN / "vocab_tiny.txt")
SETTINGS = list(itertools.product([True, False], repeat=2))
SPECIAL = list(vocabulary.SPECIAL_TOKENS)
# TensorFlow's ICU is older and does not lower them.
NEW_CAPITALS = {*"\u2c2f\ua7c0\ua7d0\ua7d6\ua7d8", *map(chr, range(0x10570, 0x10596))}


@pytest.fixture(scope="module")
def tiny():
    return Vocabulary.load(TINY)


def spelling_vocabulary(texts):
    """Spells every word of the texts, so that none is [UNK]."""
    chars = set()
    for settings in SETTINGS:
        config = TokenizerConfig(*settings)
        for text in texts:
            chars.update(*tokenization.basic_tokenize(text, config))
    pieces = itertools.chain.from_iterable((c, "##" + c) for c in sorted(chars))
    return Vocabulary((*SPECIAL, *pieces))


def random_texts(count, seed=0):
    """Strings from all over Unicode, and from the corners where tokenizers differ."""
    rng = random.Random(seed)
    everything = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    assigned = [c for c in everything if unicodedata.category(c)[0] != "C"]
    pools = [
        everything,
        assigned,
        [chr(c) for c in range(0x250)],
        [*"aeiouyAEOß", *map(chr, range(0x300, 0x370))],  # combining marks
        list(map(chr, range(0x370, 0x600))),
        list(map(chr, range(0x1E00, 0x3100))),
        list("ΣσςΑα.ʼ'İıIi \u0345\u0301\u1cf32"),  # sigma in all its places
        list(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2028\u2029\u3000\u200bab\x00\ufffd"),
        list("中文㐀豈𠀀한국ガか゚ab"),
        list("👩🏽‍🚀🇩🇪❤️ #1a"),
        list("[]MASKUNCLSEP#unused019 "),
    ]
    pools = [[c for c in pool if c not in NEW_CAPITALS] for pool in pools]
    texts = []
    for _ in range(count):
        mixed = rng.random() < 0.5
        pool = rng.choice(pools)
        length = rng.choice((1, 3, 10, 30))
        chars = (
            rng.choice(rng.choice(pools) if mixed else pool) for _ in range(length)
        )
        texts.append("".join(chars))
        if rng.random() < 0.02:  # around the limit of 200 characters
            texts[-1] += rng.choice("aéЖ𐐷") * rng.randint(195, 205)
    return texts


class TestFastPaths:
    @pytest.fixture(scope="class")
    def texts(self):
        return random_texts(4000)

    @pytest.fixture(scope="class")
    def spelling(self, texts):
        return spelling_vocabulary(texts)

    @pytest.mark.parametrize("settings", by_default(SETTINGS, SETTINGS[:2]), ids=str)
    def test_random_strings(self, texts, spelling, settings):
        tokenizer = Tokenizer(spelling, *settings)
        expected = [
            [
                spelling.ids[piece]
                for word in tokenizer.basic_tokenize(text)
                for piece in tokenizer.wordpieces(word)
            ]
            for text in texts
        ]
        assert sum(map(len, expected)) > 20_000
        ids, splits = tokenizer.tokenize_lines(texts)
        ops = tf_tokenization.TFTokenizer(spelling, *settings).tokenize(texts).to_list()
        for i, text in enumerate(texts):
            assert ids[splits[i] : splits[i + 1]].tolist() == expected[i], ascii(text)
            assert ops[i] == expected[i], ascii(text)
            if i % 3 == 0:
                ids_of_text, offsets = tokenizer.encode_with_offsets(text)
                assert ids_of_text == expected[i], ascii(text)
                assert len(ids_of_text) == len(offsets)
                assert all(0 <= a < b <= len(text) for a, b in offsets)
                starts = [start for start, _ in offsets]
                assert starts == sorted(starts), ascii(text)

    def test_rare_characters_are_in_the_texts(self, texts):
        assert sum("Σ" in text for text in texts) > 40

    def test_bytes(self):
        rng = random.Random(1)
        pool = [*range(256), *b"\xed\xa0\x80\xc0\xaf\xf4\x90\xe2\x80\xa8aB "]
        texts = [
            bytes(rng.choice(pool) for _ in range(rng.choice((2, 8, 30))))
            for _ in range(3000)
        ]
        vocab = spelling_vocabulary([t.decode("utf-8", "ignore") for t in texts])
        ops = tf_tokenization.TFTokenizer(vocab).tokenize(texts).to_list()
        tokenizer = Tokenizer(vocab)
        assert ops == [tokenizer.encode(text) for text in texts]
        assert tokenizer.encode(b"a\xffB \xe4\xb8") == tokenizer.encode("aB ")

    def test_lines_are_independent_of_grouping_and_memory(
        self, texts, spelling, monkeypatch
    ):
        whole, splits = Tokenizer(spelling).tokenize_lines(texts[:2000])
        assert whole.dtype == np.int32
        assert splits.tolist()[0] == 0 and splits[-1] == len(whole)
        monkeypatch.setattr(tokenization, "_MAX_CACHED_WORDS", 3)
        forgetful = Tokenizer(spelling)
        parts = [forgetful.tokenize_lines([t])[0] for t in texts[:2000]]
        assert np.concatenate(parts).tolist() == whole.tolist()
        assert len(forgetful._cache) <= 3

    def test_tokens_too_long_for_tensorflow_are_refused(self, tiny):
        for token in ("##" + "ก" * 85, "q" * 256):
            assert tf_tokenization.TFTokenizer(Vocabulary((*tiny.tokens, token)))
            longer = Vocabulary((*tiny.tokens, token, token + token[-1]), "v.txt")
            says = r"v.txt: tensorflow_text .* exceeds the max supported \(256\)"
            with pytest.raises(UserError, match=f"{says}.*\n.*--what encoder"):
                tf_tokenization.TFTokenizer(longer)


@pytest.mark.parametrize(
    "text,expected",
    [
        ("Das Öl, bitte!", ["Das", "Öl", ",", "bitte", "!"]),
        ("cafe\u0301s x", ["c", "a", "f", "e\u0301", "s", "x"]),
        ("  a\x00b\u200b c", ["a\x00b", "c"]),
        ("中x 文", ["中", "x", "文"]),
        ("İs \U0001f600b", ["İ", "s", "\U0001f600b"]),
        ("한국", ["한", "한", "한", "국", "국", "국"]),
    ],
)
def test_offsets_point_into_the_text(text, expected):
    tokens = "das ol , bitte ! c ##a ##f ##e ##s x ab 中 文 i b ᄒ ##ᅡ ##ᆫ ##ᄀ ##ᅮ ##ᆨ"
    tokenizer = Tokenizer(Vocabulary((*SPECIAL, *tokens.split())))
    _, offsets = tokenizer.encode_with_offsets(text)
    assert [text[start:end] for start, end in offsets] == expected


# [PAD] is not the first token, so that a 0 in its place would be seen.
VOCAB = Vocabulary(("[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "a", "b"))
PAD, CLS, SEP = 4, 1, 2


def test_words_stand_as_in_the_text(tiny):
    words = Tokenizer(tiny).words(" Hello, Wörld's  e\u0301tude 東京!")
    assert words == ["Hello", ",", "Wörld", "'", "s", "e\u0301tude", "東", "京", "!"]


def test_a_text_and_a_pair():
    one = tokenization.join(VOCAB, [5, 6])
    assert one == ([CLS, 5, 6, SEP], [0, 0, 0, 0])
    assert tokenization.join(VOCAB, [5], []) == ([CLS, 5, SEP], [0, 0, 0])
    pair = tokenization.join(VOCAB, [5], [6, 6])
    assert pair == ([CLS, 5, SEP, 6, 6, SEP], [0, 0, 0, 1, 1, 1])
    ids, mask, segments = tokenization.pad([one, pair], PAD, 7)
    expected = [[CLS, 5, 6, SEP, PAD, PAD, PAD], [CLS, 5, SEP, 6, 6, SEP, PAD]]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(mask.sum(axis=1), [4, 6])
    np.testing.assert_array_equal(mask, ids != PAD)
    np.testing.assert_array_equal(segments, [[0] * 7, [0, 0, 0, 1, 1, 1, 0]])
    assert {ids.dtype, mask.dtype, segments.dtype} == {np.dtype(np.int32)}


def test_without_a_length_the_longest_text_decides():
    packed = tokenization.pack(VOCAB, [[5], [], [6, 5, 6]])
    expected = [[CLS, 5, SEP, PAD, PAD], [CLS, SEP, PAD, PAD, PAD]]
    np.testing.assert_array_equal(packed.input_ids, [*expected, [CLS, 6, 5, 6, SEP]])
    assert not packed.segment_ids.any()


def test_each_text_reads_arrays_but_no_matrices():
    assert [*tokenization.each_text(np.array("w1"))] == ["w1"]
    assert [*tokenization.each_text(np.array(["w1", b"w2"], object))] == ["w1", "w2"]
    with pytest.raises(UserError, match="text 0 is .*, which is not a str"):
        [*tokenization.each_text(np.array([["w1", "w2"]]))]
