# SPDX-License-Identifier: Apache-2.0
"""Text to WordPiece ids, token for token as the original's FullTokenizer.

`Tokenizer` is the definition in plain Python; with its cache of words it is also the
fastest for a corpus. `TFTokenizer` is the same function as TensorFlow ops, for served
graphs. Tests compare the two on every kind of string.

The steps (BERT's basic tokenizer, then greedy longest match):
  1. U+0000, U+FFFD and categories C* are removed, joining their neighbours; white space
     becomes " "; each ideograph becomes a word. Special tokens in the text ("[MASK]")
     are ordinary text.
  2. The text is split at white space; each word is lower-cased, decomposed (NFD, not
     recomposed) and loses its nonspacing marks, by the settings.
  3. Each punctuation character becomes a word.
  4. A word of more than 200 characters, or one that wordpieces cannot spell, is [UNK].
"""

import array
import bisect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.text import unicode_classes, vocabulary
from electra_tf.text.vocabulary import UNK, TokenizerConfig, Vocabulary

_PUNCTUATION = unicode_classes.code_points(unicode_classes.PUNCTUATION)

_SURROGATES = re.compile("[\ud800-\udfff]")

# Characters at which str.split() would split, but which step 1 removes.
_CONTROLS_THAT_SPLIT = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"

# Limits of a tokenizer's cache: about 100 MB when full.
_MAX_CACHED_WORDS = 500_000
_MAX_CACHED_LENGTH = 64


class _CleanTable(dict):
    """Table of step 1 for str.translate, filled on demand."""

    def __missing__(self, code_point: int) -> str:
        char = chr(code_point)
        if _contains(unicode_classes.WHITE_SPACE, code_point):
            cleaned = " "
        elif code_point == 0xFFFD or _contains(unicode_classes.OTHER, code_point):
            cleaned = ""
        elif _contains(unicode_classes.IDEOGRAPHS, code_point):
            cleaned = f" {char} "
        else:
            cleaned = char
        self[code_point] = cleaned
        return cleaned


def _contains(ranges: unicode_classes.Ranges, code_point: int) -> bool:
    index = bisect.bisect_right(ranges, (code_point, 0x110000)) - 1
    return index >= 0 and code_point <= ranges[index][1]


_CLEAN = _CleanTable()


class Tokenizer:
    """WordPiece in plain Python.

    Args:
        vocab: the wordpieces.
        do_lower_case: lower-case the text.
        strip_accents: drop accents; has no effect without `do_lower_case`.
    """

    def __init__(
        self, vocab: Vocabulary, do_lower_case: bool = True, strip_accents: bool = True
    ):
        self.vocab = vocab
        self.config = TokenizerConfig(do_lower_case, strip_accents)
        self._max_piece = max(map(len, vocab.tokens))
        self._cache = _WordCache(self)

    def __call__(
        self, texts: Any, max_seq_length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Ids of texts with [CLS] and [SEP], padded to the longest, for an encoder.

        Args:
            texts: one or several, str or bytes, or tensors of them.
            max_seq_length: longer texts are truncated; None: no limit.

        Returns:
            input_ids, input_mask and segment_ids, int32 [n, L].
        """
        end = None if max_seq_length is None else room(max_seq_length)
        ids = [self.encode(text)[:end] for text in each_text(texts)]
        return pack(self.vocab, ids)._asdict()

    def tokenize(self, text: str | bytes) -> list[str]:
        """Returns the wordpieces of a text; bytes that are not UTF-8 are dropped."""
        return self.convert_ids_to_tokens(self.encode(text))

    def encode(self, text: str | bytes) -> list[int]:
        """Returns the ids of the wordpieces of a text, without [CLS] and [SEP]."""
        ids, _ = self.tokenize_lines([text])
        return ids.tolist()

    def tokenize_lines(
        self, lines: Sequence[str | bytes]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ids of many lines, one after the other.

        Cached words make this the fast path for corpora. The result does not depend on
        how lines are grouped into calls.

        Returns:
            ids: int32 [number of wordpieces], of all lines; read-only.
            row_splits: int64 [number of lines + 1]; line i has
                `ids[row_splits[i]:row_splits[i + 1]]`.
        """
        lookup = self._cache.__getitem__
        rows = [b"".join(map(lookup, raw_words(_to_text(line)))) for line in lines]
        row_splits = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=row_splits[1:])
        return np.frombuffer(b"".join(rows), np.int32), row_splits // 4

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of wordpieces; KeyError for one not in the vocabulary."""
        return [self.vocab.ids[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the wordpieces of the ids."""
        return [self.vocab.tokens[i] for i in ids]

    def basic_tokenize(self, text: str | bytes) -> list[str]:
        """Returns the normalised words of a text: steps 1 to 3."""
        return basic_tokenize(_to_text(text), self.config)

    def wordpieces(self, word: str) -> list[str]:
        """Returns the pieces of one normalised word: step 4."""
        if len(word) > vocabulary.MAX_CHARS_PER_WORD:
            return [UNK]
        pieces = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            longest = min(len(word), start + self._max_piece)
            for end in range(longest, start, -1):
                piece = prefix + word[start:end]
                if piece in self.vocab.ids:
                    break
            else:
                return [UNK]
            pieces.append(piece)
            start = end
        return pieces

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Returns the ids of `encode` and the offsets of the pieces in the text.

        Returns:
            ids: those of `encode`.
            offsets: (start, end) of each piece in characters of `text`. Stripped
                accents belong to the piece before them. Pieces that share a character
                (such as a Hangul syllable) overlap.
        """
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        spans, first = self._spans(text), 0
        for word in self.basic_tokenize(text):
            pieces = self.wordpieces(word)
            ids += self.convert_tokens_to_ids(pieces)
            lengths = [len(piece) - 2 for piece in pieces]
            lengths[0] += 2  # the first piece has no ##
            if pieces == [UNK]:
                lengths = [len(word)]
            for length in lengths:
                offsets.append((spans[first][0], spans[first + length - 1][1]))
                first += length
        return ids, offsets

    def words(self, text: str) -> list[str]:
        """Returns the words of a text as they stand in it; punctuation is a word."""
        spans, words, first = self._spans(text), [], 0
        for word in self.basic_tokenize(text):
            last = first + len(word) - 1
            words.append(text[spans[first][0] : spans[last][1]])
            first = last + 1
        return words

    def _spans(self, text: str) -> list[list[int]]:
        """Start and end in the text of each character of its normalised words.

        Normalising keeps the order of characters, so each one can be normalised alone.
        """
        kept = {char: len("".join(self.basic_tokenize(char))) for char in set(text)}
        spans: list[list[int]] = []
        is_open = False  # whether an accent belongs to the character before
        for position, char in enumerate(text):
            spans += ([position, position + 1] for _ in range(kept[char]))
            cleaned = _CLEAN[ord(char)]
            if kept[char] or cleaned == " ":
                is_open = kept[char] > 0 and cleaned == char  # not after an ideograph
            elif cleaned and is_open:
                spans[-1][1] = position + 1
        return spans


def each_text(texts: Any) -> Iterator[str]:
    """Yields texts as str, whether one or several, str or bytes, or tensors of them.

    Raises UserError, with its number, for anything else.
    """
    refuse_table(texts)
    texts = texts.numpy() if hasattr(texts, "numpy") else texts
    if isinstance(texts, np.ndarray) and texts.ndim == 0:
        texts = [texts.item()]
    for number, text in enumerate([texts] if isinstance(texts, str | bytes) else texts):
        text = text.numpy() if hasattr(text, "numpy") else text
        if not isinstance(text, str | bytes):
            raise UserError(f"text {number} is {text!r:.40}, which is not a str.")
        yield _to_text(text)


def refuse_table(values: Any) -> None:
    """Raises UserError for a dict or a DataFrame, which yield the names of columns."""
    if isinstance(values, Mapping) or hasattr(values, "columns"):
        raise UserError(
            f"a {type(values).__name__} is a table, not a list: give one column."
        )


def basic_tokenize(text: str, config: TokenizerConfig) -> list[str]:
    """Returns the normalised words of a text, before wordpieces: steps 1 to 3."""
    cleaned = text.translate(_CLEAN).split()
    return [part for word in cleaned for part in _split_word(word, config)]


def raw_words(text: str) -> list[str]:
    """Splits a text, uncleaned, into parts that can be tokenised one by one.

    The tokens of the text are those of its parts, which repeat and can be cached.
    """
    for char in _CONTROLS_THAT_SPLIT:
        if char in text:
            text = text.replace(char, "")
    return text.split()


def _split_word(word: str, config: TokenizerConfig) -> list[str]:
    """Steps 2 and 3 for one word of cleaned text."""
    word = config.normalize(word)
    spaced = "".join(f" {c} " if c in _PUNCTUATION else c for c in word)
    return spaced.split()


def encoded(text: str) -> bytes:
    """A text as UTF-8 for a graph, with the same character offsets.

    Lone surrogates, which JSON may hold, cannot be encoded. They become U+FFFD, which
    step 1 removes as well.
    """
    return _SURROGATES.sub("\ufffd", text).encode()


def _to_text(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    if not isinstance(text, bytes):  # a scalar of TensorFlow
        text = text.numpy()
    return text.decode("utf-8", "ignore")


class _WordCache(dict):
    """White-space delimited word of raw text -> its ids as int32 bytes.

    Joining bytes is the fastest way from words to one array of ids.
    """

    def __init__(self, tokenizer: Tokenizer):
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, raw: str) -> bytes:
        words = raw.translate(_CLEAN).split()
        if words == [raw]:
            tokenizer = self._tokenizer
            parts = _split_word(raw, tokenizer.config)
            pieces = [piece for part in parts for piece in tokenizer.wordpieces(part)]
            ids = tokenizer.convert_tokens_to_ids(pieces)
            ids = array.array("i", ids).tobytes()
        else:
            ids = b"".join([self[word] for word in words])
        # A run of ideographs is a raw word that rarely repeats; its characters are
        # cached one by one.
        if len(words) <= 1 and len(raw) <= _MAX_CACHED_LENGTH:
            if len(self) >= _MAX_CACHED_WORDS:
                self.clear()
            self[raw] = ids
        return ids


# Inputs of a network.


class Row(NamedTuple):
    """One text or pair of texts with its special tokens."""

    input_ids: list[int]
    segment_ids: list[int]


class PackedTexts(NamedTuple):
    """Rows of one length, arrays or tensors int32 [B, L]."""

    input_ids: Any
    input_mask: Any  # 1 at tokens, 0 at padding
    segment_ids: Any


def room(length: int, second: Sequence[int] = ()) -> int:
    """The number of tokens of texts that `join` can put into `length` tokens."""
    return length - (3 if second else 2)


def join(vocab: Vocabulary, first: Sequence[int], second: Sequence[int] = ()) -> Row:
    """[CLS] first [SEP] in segment 0, then second [SEP] in segment 1.

    As in the original, an empty second text counts as none.
    """
    ids = [vocab.cls_id, *first, vocab.sep_id]
    segments = [0] * len(ids)
    if second:
        ids += [*second, vocab.sep_id]
        segments += [1] * (len(second) + 1)
    return Row(ids, segments)


def pad(rows: Sequence[Row], pad_id: int, length: int | None = None) -> PackedTexts:
    """Rows as arrays.

    Args:
      length: L; None: of the longest row.
    """
    if length is None:
        length = max(len(row.input_ids) for row in rows)
    packed = PackedTexts(*np.zeros([3, len(rows), length], np.int32))
    packed.input_ids[:] = pad_id
    for number, row in enumerate(rows):
        real = len(row.input_ids)
        packed.input_ids[number, :real] = row.input_ids
        packed.input_mask[number, :real] = 1
        packed.segment_ids[number, :real] = row.segment_ids
    return packed


def pack(
    vocab: Vocabulary, texts: Sequence[Sequence[int]], length: int | None = None
) -> PackedTexts:
    """[CLS] text [SEP] for each text, given as ids; otherwise as `pad`."""
    return pad([join(vocab, ids) for ids in texts], vocab.pad_id, length)
