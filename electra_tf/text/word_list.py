# SPDX-License-Identifier: Apache-2.0
"""A list of words, for scripts without spaces between words.

In such scripts tokens can split a word at any place. All ways to spell the words are
kept as an automaton: states are beginnings of words, tokens lead from one to the next.
"""

import functools
import hashlib
import re
from typing import NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.text.tokenization import basic_tokenize
from electra_tf.text.unicode_classes import UNSPACED
from electra_tf.text.vocabulary import Vocabulary, lines_in, read_file, resolve_settings


class WordList(NamedTuple):
    """Words as the V tokens of a vocabulary spell them.

    Attributes:
        keys: int64 [T], rising; state * V + token, the first state being 0.
        targets: int64 [T], the next states.
        is_word: bool [S], the states that are words.
        may_start: bool [V], the "##" tokens that a word may begin with.
        size, found: the numbers of words, and of words of several tokens.
        path, sha256: of the file.
    """

    keys: np.ndarray
    targets: np.ndarray
    is_word: np.ndarray
    may_start: np.ndarray
    size: int
    found: int
    path: str
    sha256: str

    def describe(self) -> str:
        """One line for the log."""
        return f"{self.path}: {self.size:,} words, {self.found:,} of several tokens"


@functools.cache
def load(path: str, vocab: Vocabulary, do_lower_case: bool) -> WordList:
    """Reads a list of words, UTF-8, one a line; blank lines are skipped.

    Words are normalised like text. Raises UserError, naming file and line, for other
    files, and for a list without a word of several tokens.
    """
    lines, sha256 = _read(path)
    config = resolve_settings(vocab, do_lower_case)
    spelled = {
        tuple(parts) for line in lines if (parts := basic_tokenize(line, config))
    }
    states, moves = {"": 0}, {}
    longest = max(map(len, vocab.tokens))
    for parts in spelled:
        _add(parts, vocab.ids, longest, states, moves)
    names = {"".join(parts) for parts in spelled}
    table = np.array(sorted(moves.items()), np.int64).reshape(-1, 2)
    is_word = np.array([name in names for name in states])
    # One token leads from the first state to a word of one token.
    several = np.unique(table[table[:, 0] >= len(vocab), 1])
    found = int(is_word[several].sum())
    if not found:
        raise UserError(
            f"none of the {len(spelled):,} words of {path} has several tokens of\n"
            f"{vocab.path}.\nIs the list of another language or script?"
        )
    starts = [t.startswith("##") and _has_no_spaces(t[2:]) for t in vocab.tokens]
    tables = np.array(table[:, 0]), np.array(table[:, 1]), is_word, np.array(starts)
    return WordList(*tables, len(spelled), found, path, sha256)


def _read(path: str) -> tuple[list[str], str]:
    """The words of a file, at least one, and its sha256."""
    data = read_file("word_list", path)
    words = [line.strip() for line in lines_in(path, data)]
    for number, word in enumerate(words, start=1):
        if len(word.split()) > 1:
            raise UserError(
                f"{path} line {number} ({word[:40]!r}) has white space in it.\nA "
                "word_list has one word a line, without frequencies and tags."
            )
    return list(filter(None, words)), hashlib.sha256(data).hexdigest()


def _add(parts: tuple, ids: dict, longest: int, states: dict, moves: dict) -> None:
    """Adds all ways to spell a word.

    Args:
      parts: the word, split as the tokenizer splits it before wordpieces.
      longest: characters of a token.
      states: beginning -> number; `moves`: number * V + token -> number.
    """
    before = ""
    for part in parts:
        for start in range(len(part)):
            state = states.get(before + part[:start])
            if state is None:
                continue
            # A word at the beginning of a run of characters, and one further on.
            prefixes = ["##"] if start else [""]
            if not before and not start and _has_no_spaces(part):
                prefixes.append("##")
            for end in range(start + 1, min(len(part), start + longest) + 1):
                for prefix in prefixes:
                    token = ids.get(prefix + part[start:end])
                    if token is not None:
                        target = states.setdefault(before + part[:end], len(states))
                        moves[state * len(ids) + token] = target
        before += part


def _has_no_spaces(text: str) -> bool:
    """Whether the script that a text begins with does without spaces."""
    return bool(re.match(UNSPACED, text))
