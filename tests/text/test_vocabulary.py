# SPDX-License-Identifier: Apache-2.0
"""Vocabulary files, those that are refused, and the settings beside them."""

import hashlib
import json

import pytest

from electra_tf.errors import UserError
from electra_tf.text import tokenizer_config, vocabulary
from electra_tf.text.tf_tokenization import TFTokenizer
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary
from tests.helpers.runs import GOLDEN

TINY = str(GOLDEN / "vocab_tiny.txt")
SPECIAL = list(vocabulary.SPECIAL_TOKENS)


@pytest.fixture(scope="module")
def tiny():
    return Vocabulary.load(TINY)


class TestVocabulary:
    GOOD = "\n".join([*SPECIAL, "the", "##s"])

    def test_tiny(self, tiny):
        assert len(tiny) == 1000
        special = (tiny.pad_id, tiny.unk_id, tiny.cls_id, tiny.sep_id, tiny.mask_id)
        assert special == (0, 1, 2, 3, 4)
        assert [tiny.ids[token] for token in tiny.tokens] == list(range(1000))
        tiny.check_size(1000)
        with open(TINY, "rb") as f:
            assert tiny.sha256 == hashlib.sha256(f.read()).hexdigest()

    def test_line_ends_and_white_space_are_ignored(self, tmp_path):
        found = []
        for i, text in enumerate(
            (
                self.GOOD,
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

    @pytest.mark.parametrize(
        "data,text",
        [
            (b"", "is empty"),
            (b"\n \r\n", "is empty"),
            (GOOD.encode("utf-16"), "byte 0xff at position 0 is not UTF-8"),
            (GOOD.encode() + b"\ncaf\xe9\n", "line 8: byte 0xe9 at position 3"),
            (GOOD.replace("[UNK]", "oov").encode(), "[UNK] not among its 7"),
            (
                GOOD.replace("[MASK]", "a").replace("[PAD]", "b").encode(),
                "[PAD], [MASK]",
            ),
            (b"<unk>\t0\n<s>\t0\n\xe2\x96\x81the\t-3.5\n", "build_vocab.py makes one"),
            (b'{"version": "1.0", "model": {}}', "JSON"),
        ],
    )
    def test_other_files_are_refused(self, tmp_path, data, text):
        path = tmp_path / "vocab.txt"
        path.write_bytes(data)
        with pytest.raises(UserError) as e:
            Vocabulary.load(path)
        assert text in str(e.value)
        assert str(path) in str(e.value)
        assert len(str(e.value).splitlines()) <= 3
        assert e.value.exit_code == 2

    def test_a_byte_order_mark_is_no_part_of_a_token(self, tmp_path):
        path = tmp_path / "vocab.txt"
        path.write_bytes(b"\xef\xbb\xbf" + self.GOOD.encode())
        assert Vocabulary.load(path).tokens == tuple(self.GOOD.split())

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
        tokenizer = tokenizer_config.fast(vocab.distinct, TokenizerConfig())
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
        fast = tokenizer_config.fast(vocab.distinct, TokenizerConfig())
        fast.save(str(tmp_path / "tokenizer.json"))
        assert fast.encode(text, add_special_tokens=False).ids == ids
        again = Vocabulary.load(tmp_path / "tokenizer.json")
        for tokenizer in (Tokenizer(vocab), Tokenizer(again)):
            assert tokenizer.encode(text) == ids
        assert TFTokenizer(vocab).tokenize([text]).to_list() == [ids]
        [note] = vocab.notes()
        assert "repeats 2 tokens, 'the' first" in note

    def test_size(self, tiny):
        with pytest.raises(UserError) as e:
            tiny.check_size(30522)
        for part in (TINY, "1000", "30522", "vocab_size"):
            assert part in str(e.value)


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

    def test_contradictions_are_refused(self, vocab):
        vocabulary.write_settings(vocab, TokenizerConfig(True, False))
        assert vocabulary.resolve_settings(vocab, True, False) == (True, False)
        for lower, strip in ((False, None), (None, True)):
            with pytest.raises(UserError, match="accents kept"):
                vocabulary.resolve_settings(vocab, lower, strip)
        # Cased tokenizers keep accents in any case.
        vocabulary.write_settings(vocab, TokenizerConfig(False, False))
        assert vocabulary.resolve_settings(vocab, False, True).do_lower_case is False
        with pytest.raises(UserError, match="fits it: do_lower_case false"):
            vocabulary.resolve_settings(vocab, True)

    def test_of_another_vocabulary(self, vocab):
        vocabulary.write_settings(vocab, TokenizerConfig())
        other = vocabulary.write_tokens(vocab.path, [*SPECIAL, "b"])
        with pytest.raises(UserError) as e:
            vocabulary.read_settings(other.path)
        for sha256 in (vocab.sha256, other.sha256):
            assert sha256[:16] in str(e.value)

    @pytest.mark.parametrize(
        "text, lower, strip",
        [
            ('{"do_lower_case": false}', False, False),
            ('{"strip_accents": false}', True, False),
            ('{"do_lower_case": true, "strip_accents": true}', True, True),
        ],
    )
    def test_written_by_hand(self, vocab, text, lower, strip):
        with open(vocab.path + ".json", "w", encoding="utf-8") as f:
            f.write(text)
        read = vocabulary.read_settings(vocab)
        assert read.equivalent(TokenizerConfig(lower, strip))

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"do_lower_case": "no"}'])
    def test_damaged(self, vocab, text):
        with open(vocab.path + ".json", "w", encoding="utf-8") as f:
            f.write(text)
        with pytest.raises(UserError, match="v.txt.json"):
            vocabulary.read_settings(vocab)
