# SPDX-License-Identifier: Apache-2.0
"""Vocabulary files, those that are refused, and the settings beside them."""

import hashlib
import json

import pytest

from electra_tf.errors import UserError
from electra_tf.text import vocabulary
from electra_tf.text.tf_tokenization import TFTokenizer
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import (
    TokenizerConfig,
    Vocabulary,
    read_settings,
    resolve_settings,
)
from tests.helpers.building import VOCAB

SPECIAL = list(vocabulary.SPECIAL_TOKENS)


class TestVocabulary:
    GOOD = "\n".join([*SPECIAL, "the", "##s"])

    def test_line_ends_white_space_and_a_byte_order_mark_are_ignored(self, tmp_path):
        found = []
        for i, text in enumerate(
            (
                "\ufeff" + self.GOOD,
                self.GOOD + "\n",
                self.GOOD.replace("\n", "\r\n") + "\r\n",
                self.GOOD.replace("the", " the\t") + "\n\n",
            )
        ):
            path = tmp_path / f"{i}.txt"
            path.write_bytes(text.encode())
            found.append(Vocabulary.load(path))
        assert {v.tokens for v in found} == {(*SPECIAL, "the", "##s")}
        assert len({v.sha256 for v in found}) == 1

    def test_blank_lines_are_tokens_that_no_text_has(self, tmp_path):
        """Every Chinese vocabulary of BERT has U+2028 on a line of its own."""
        data = "\n".join([*SPECIAL, "a", "\u2028", "\u3000", "", "\t", "b", "##c\n"])
        path, again = tmp_path / "vocab.txt", tmp_path / "again.txt"
        path.write_bytes(data.encode())
        vocab = Vocabulary.load(path)
        assert vocab.sha256 == hashlib.sha256(data.encode()).hexdigest()
        vocabulary.write_tokens(again, vocab.tokens)
        assert again.read_bytes() == data.encode()
        text, ids = "a bc\u2028\u3000b \t\n\nbc", [5, 10, 11, 10, 10, 11]
        tokenizer = vocabulary.fast_tokenizer(vocab.distinct, TokenizerConfig())
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        assert Vocabulary.load(tmp_path / "tokenizer.json").tokens == vocab.tokens
        assert Tokenizer(vocab).encode(text) == ids
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        assert TFTokenizer(vocab).tokenize([text]).to_list() == [ids]
        path.write_bytes(data.replace("\n", "\r\n").encode())
        assert Vocabulary.load(path).sha256 == vocab.sha256

    def test_the_last_of_equal_lines_has_the_token(self, tmp_path):
        """As in the original and in transformers; later ids stay as they are."""
        data = "\n".join([*SPECIAL, "the", "", "##x", "the", "", "a\n"])
        path = tmp_path / "vocab.txt"
        path.write_text(data)
        vocab = Vocabulary.load(path)
        assert vocab.sha256 == hashlib.sha256(data.encode()).hexdigest()
        text, ids = "the a thex", [8, 10, 8, 7]
        fast = vocabulary.fast_tokenizer(vocab.distinct, TokenizerConfig())
        fast.save(str(tmp_path / "tokenizer.json"))
        assert fast.encode(text, add_special_tokens=False).ids == ids
        again = Vocabulary.load(tmp_path / "tokenizer.json")
        for tokenizer in (Tokenizer(vocab), Tokenizer(again)):
            assert tokenizer.encode(text) == ids
        assert TFTokenizer(vocab).tokenize([text]).to_list() == [ids]


class TestSettings:
    @pytest.fixture
    def vocab(self, tmp_path):
        return vocabulary.write_tokens(tmp_path / "v.txt", [*SPECIAL, "a"])

    def test_are_read_from_beside_the_vocabulary(self, vocab):
        assert vocabulary.read_settings(vocab.path) is None
        assert vocabulary.resolve_settings(vocab) == TokenizerConfig(True, True)
        vocabulary.write_settings(vocab, TokenizerConfig(False, True), corpus="x")
        assert vocabulary.read_settings(vocab.path) == TokenizerConfig(False, True)
        assert vocabulary.read_settings(vocab) == TokenizerConfig(False, True)
        assert vocabulary.resolve_settings(vocab).do_lower_case is False
        with open(vocab.path + ".json", encoding="utf-8") as f:
            assert json.load(f)["corpus"] == "x"

    @pytest.mark.parametrize(
        ("tokens", "is_clear"),
        [
            (["में", "##दिल्ली"], False),
            (["がくせい", "##がく"], False),
            (["أحمد", "##أحمد"], False),
            (["việt", "güneş"], False),
            (["학교", "##학교"], False),
            (["Paris", "##ST"], False),
            ("म ##स か ##い 本 احمد ##\u1100 ß ı \u0e01".split(), True),
            ([*"ABÉが", "##\u0301", "[É]", *(f"w{i}" for i in range(99)), "é0"], True),
        ],
    )
    def test_are_needed_for_capitals_and_accents_of_any_script(
        self, tmp_path, tokens, is_clear
    ):
        vocab = vocabulary.write_tokens(tmp_path / "v.txt", [*SPECIAL, *tokens])
        if not is_clear:
            with pytest.raises(UserError, match="lower-cases text and strips accents"):
                vocabulary.resolve_settings(vocab)
            assert not vocab.unused(TokenizerConfig(False))
            note = vocab.unused(TokenizerConfig())
            assert note.startswith(f"{len(tokens)} tokens of {vocab.path}, ")
            assert f"{tokens[0]!r} first, are in no text that is uncased" in note
            # An explicit casing counts.
            assert vocabulary.resolve_settings(vocab, True) == TokenizerConfig()
            vocabulary.write_settings(vocab, TokenizerConfig())
        assert vocabulary.resolve_settings(vocab) == TokenizerConfig()

    def test_contradictions_are_refused(self, vocab):
        vocabulary.write_settings(vocab, TokenizerConfig(True, False))
        assert vocabulary.resolve_settings(vocab, True, False) == (True, False)
        for lower, strip in ((False, None), (None, True)):
            with pytest.raises(UserError, match="accents kept"):
                vocabulary.resolve_settings(vocab, lower, strip)
        # Cased tokenizers keep accents in any case.
        vocabulary.write_settings(vocab, TokenizerConfig(False, False))
        assert vocabulary.resolve_settings(vocab, False, True).do_lower_case is False
        with pytest.raises(UserError, match="Give do_lower_case false"):
            vocabulary.resolve_settings(vocab, True)

    def test_of_another_vocabulary(self, vocab):
        vocabulary.write_settings(vocab, TokenizerConfig())
        other = vocabulary.write_tokens(vocab.path, [*SPECIAL, "b"])
        with pytest.raises(UserError) as e:
            vocabulary.read_settings(other.path)
        for sha256 in (vocab.sha256, other.sha256):
            assert sha256[:16] in str(e.value)


CONFIGS = (TokenizerConfig(), TokenizerConfig(True, False), TokenizerConfig(False))
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
TEXT = "The Café of ΣΟΦΟΣ, 中文; unaffable 123!"


def write(path, config, **changes):
    """The tiny vocabulary as the package tokenizers has it, with BERT's normalizer."""
    text = vocabulary.fast_tokenizer(Vocabulary.load(VOCAB).distinct, config).to_str()
    lower, strip = config.do_lower_case, vocabulary.strips_accents(config)
    content = json.loads(text) | {"pre_tokenizer": {"type": "BertPreTokenizer"}}
    content["normalizer"] = BERT | {"lowercase": lower, "strip_accents": strip}
    for name, value in changes.items():
        content[name] = value(content[name])
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_settings_are_those_of_the_file(tmp_path, config):
    tokenizers = pytest.importorskip("tokenizers")
    path = write(tmp_path / "tokenizer.json", config)
    vocab = Vocabulary.load(path)
    assert vocab.tokens == Vocabulary.load(VOCAB).tokens
    assert read_settings(path).equivalent(config)
    unset = write(
        tmp_path / "unset.json",
        config,
        normalizer=lambda n: n | {"strip_accents": None},
    )
    strips = config._replace(strip_accents=config.do_lower_case)
    assert read_settings(unset).equivalent(strips)
    found = resolve_settings(vocab)
    theirs = tokenizers.Tokenizer.from_file(str(path))
    ids = theirs.encode(TEXT, add_special_tokens=False).ids
    assert Tokenizer(vocab, *found).encode(TEXT) == ids
    other = not config.do_lower_case
    with pytest.raises(UserError, match=f"built {config}"):
        resolve_settings(vocab, do_lower_case=other)


@pytest.mark.parametrize("token", ["a\nb", "\ud800", " a", ""])
def test_tokens_that_do_not_fit_a_line_are_refused(tmp_path, token):
    """In vocab.txt, which every export writes, they would shift the ids after them."""

    def with_token(model):
        return model | {"vocab": model["vocab"] | {token: len(model["vocab"])}}

    path = write(tmp_path / "tokenizer.json", TokenizerConfig(), model=with_token)
    with pytest.raises(UserError, match="not a tokenizer.json with a WordPiece"):
        Vocabulary.load(path)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"normalizer": lambda n: None}, "normalizer is None"),
        ({"normalizer": lambda n: n | {"clean_text": False}}, "clean_text is false"),
        ({"normalizer": lambda n: n | {"lowercase": False}}, "strip_accents is true"),
        (
            {"normalizer": lambda n: n | {"handle_chinese_chars": False}},
            "tokenize_chinese_chars is False",
        ),
        ({"normalizer": lambda n: n | {"type": "NFKC"}}, "normalizer is NFKC"),
        ({"pre_tokenizer": lambda p: {"type": "Whitespace"}}, "is Whitespace"),
        (
            {"model": lambda m: m | {"max_input_chars_per_word": 10}},
            "max_input_chars_per_word is 10",
        ),
        (
            {"added_tokens": lambda a: [*a, {"content": "<url>", "id": 1000}]},
            "its added token '<url>'",
        ),
    ],
)
def test_other_tokenizers_are_refused(tmp_path, changes, problem):
    path = write(tmp_path / "tokenizer.json", TokenizerConfig(), **changes)
    with pytest.raises(UserError, match=problem):
        resolve_settings(Vocabulary.load(path))


def test_files_of_earlier_exports_are_read():
    path = "examples/novels_model/discriminator/tokenizer.json"
    assert vocabulary.settings_in_file(path) == TokenizerConfig()
