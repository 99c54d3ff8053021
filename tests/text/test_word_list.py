# SPDX-License-Identifier: Apache-2.0
"""Lists of words, and files that are refused."""

from electra_tf.text import word_list
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL

VOCAB = Vocabulary((*SPECIAL, *"東京大学tか", "##o", "##ワ", "##か", "##"))


def load(tmp_path, data, vocab=VOCAB):
    path = tmp_path / "words.txt"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return word_list.load.__wrapped__(str(path), vocab, True)


def test_words_that_count(tmp_path):
    """Repeated words and blank lines do not, nor words of one token or none."""
    text = "\ufeff東京\r\n\n  大学 \n東京\n東\n京都\n東京大学\nto\nTO\n"
    words = load(tmp_path, text)
    assert (words.size, words.found) == (6, 4)
    assert words.describe() == f"{words.path}: 6 words, 4 of several tokens"
    assert load(tmp_path, text).sha256 == words.sha256
    assert load(tmp_path, "東京\n").sha256 != words.sha256
    starts = [t for t, s in zip(VOCAB.tokens, words.may_start, strict=True) if s]
    assert starts == ["##ワ", "##か"]


def test_words_are_normalised_as_text(tmp_path):
    """が is か without its mark, as in an uncased vocabulary's text."""
    assert load(tmp_path, "かが\n").found == 1
