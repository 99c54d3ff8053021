# SPDX-License-Identifier: Apache-2.0
"""`tokenization.Tokenizer` as TensorFlow ops.

Made of regular expressions, ICU's lower-casing and NFD, and tensorflow_text's wordpiece
op. The BertTokenizers of tensorflow_text and KerasHub give other ids than the original
on many strings: they fold case instead of lowering it, turn controls into spaces and
count a word's bytes, not characters.

Offsets of wordpieces rest on one fact: normalising keeps the order of characters. So
each distinct character of a batch is normalised alone, and running sums of the lengths
lead from a piece's bytes to its characters.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf import startup
from electra_tf.errors import UserError, reason_of
from electra_tf.text import unicode_classes
from electra_tf.text.vocabulary import (
    MAX_CHARS_PER_WORD,
    UNK,
    TokenizerConfig,
    Vocabulary,
)

_NO_TEXTS = "It cannot be in a SavedModel of texts; --what encoder reads ids instead."
_CAPITAL_SIGMA, _SMALL_SIGMA, _FINAL_SIGMA = "\u03a3", "\u03c3", "\u03c2"


# Classes of characters.
_VANISHING = unicode_classes.VANISHING
_WHITE_SPACE = unicode_classes.pattern(unicode_classes.WHITE_SPACE)
_IDEOGRAPHS = unicode_classes.pattern(unicode_classes.IDEOGRAPHS)
_MARKS = unicode_classes.pattern(unicode_classes.NONSPACING_MARKS)
_PUNCTUATION = unicode_classes.pattern(unicode_classes.PUNCTUATION)
_CASED = unicode_classes.pattern(unicode_classes.CASED)
_CASE_IGNORABLE = unicode_classes.pattern(unicode_classes.CASE_IGNORABLE)
_NEW_CAPITALS = unicode_classes.pattern(
    *((pair,) for pair, _ in unicode_classes.CAPITALS_OF_UNICODE_14)
)


class TFTokenizer:
    """WordPiece as TensorFlow ops, for tf.data, tf.function and SavedModels.

    Takes the arguments of `Tokenizer` and gives its ids. A SavedModel that holds it
    needs `import tensorflow_text` where it is loaded.

    Raises UserError for a vocabulary that tensorflow_text cannot read: with a token of
    more than 256 bytes, or very many long ones.
    """

    def __init__(
        self, vocab: Vocabulary, do_lower_case: bool = True, strip_accents: bool = True
    ):
        if vocab.too_long:
            raise UserError(f"{vocab.too_long}.\n{_NO_TEXTS}")
        with startup.optional("tensorflow-text", "A tokenizer in a graph"):
            import tensorflow_text

        self.vocab = vocab
        self.config = TokenizerConfig(do_lower_case, strip_accents)
        self._normalize_utf8 = tensorflow_text.normalize_utf8
        try:
            self._wordpiece = tensorflow_text.FastWordpieceTokenizer(
                list(vocab.distinct),
                token_out_type=tf.int32,
                unknown_token=UNK,
                no_pretokenization=True,
                max_bytes_per_word=4 * MAX_CHARS_PER_WORD,
                support_detokenization=False,
            )
        except RuntimeError as e:
            message = f"{vocab.path}: tensorflow_text cannot read it ({reason_of(e)})."
            raise UserError(f"{message}\n{_NO_TEXTS}") from None

    def tokenize(self, texts):
        """Returns the ids of a batch of texts.

        Args:
            texts: string tensor [n]; bytes that are not UTF-8 are dropped.

        Returns:
            RaggedTensor int32 [n, (wordpieces)], without [CLS] and [SEP].
        """
        words = self.split_words(tf.convert_to_tensor(texts, tf.string))
        ids, _, _ = self.wordpieces(words)
        return ids.merge_dims(-2, -1)

    __call__ = tokenize

    def tokenize_with_offsets(self, texts: tf.Tensor) -> TokensInText:
        """The ids and offsets of `Tokenizer.encode_with_offsets`, of a batch of texts.

        Args:
          texts: string [n]; bytes that are not UTF-8 are not counted.
        """
        words = self.split_words(texts)
        ids, first, end = self.wordpieces(words)
        first, end = (tf.cast(b.flat_values, tf.int32) for b in (first, end))
        length = tf.strings.length(words.flat_values)
        word = ids.values.value_rowids()
        # An unknown word is one piece; one beyond the limit was replaced before.
        is_unknown = ids.flat_values == self.vocab.unk_id
        before = tf.gather(tf.cumsum(length, exclusive=True), word)
        first_byte = before + tf.where(is_unknown, 0, first)
        end_byte = before + tf.where(is_unknown, tf.gather(length, word), end)
        texts = tf.strings.unicode_decode(
            texts, "UTF-8", errors="ignore"
        )  # [n, (chars)]
        chars = _distinct(self, texts.flat_values)
        start, end = _spans(chars, first_byte, end_byte, texts)
        pieces = ids.merge_dims(-2, -1)
        row_start = tf.cast(
            tf.gather(texts.row_starts(), pieces.value_rowids()), tf.int32
        )
        inside = tf.gather(chars.code_points, tf.ragged.range(start, end))
        return TokensInText(
            pieces,
            pieces.with_flat_values(start - row_start),
            pieces.with_flat_values(end - row_start),
            pieces.with_flat_values(tf.strings.unicode_encode(inside, "UTF-8")),
        )

    def wordpieces(self, words):
        """Returns the ids of normalised words, and their offsets in bytes of the word.

        Args:
            words: RaggedTensor string [n, (words)], from `split_words`.

        Returns:
            ids, starts, ends: RaggedTensors [n, (words), (wordpieces)]; ids int32.
        """
        flat = words.flat_values
        too_long = tf.strings.length(flat, unit="UTF8_CHAR") > MAX_CHARS_PER_WORD
        words = words.with_flat_values(tf.where(too_long, UNK, flat))
        return self._wordpiece.tokenize_with_offsets(words)

    def split_words(self, texts):
        """Returns the normalised words: string [n] -> RaggedTensor [n, (words)]."""
        replace = tf.strings.regex_replace
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        texts = replace(texts, _VANISHING, "")
        texts = replace(texts, _WHITE_SPACE, " ")
        texts = replace(texts, _IDEOGRAPHS, r" \0 ")
        texts = replace(self.normalize(texts), _PUNCTUATION, r" \0 ")
        return tf.strings.split(texts)

    def normalize(self, texts):
        """Lower-cases strings and strips their accents, by the settings."""
        if self.config.do_lower_case:
            texts = _lower(texts)
            if self.config.strip_accents:
                texts = self._normalize_utf8(texts, "NFD")
                texts = tf.strings.regex_replace(texts, _MARKS, "")
        return texts


def _lower(texts):
    """Lower-cases as Python does, whatever the version of ICU in TensorFlow."""
    # Such characters are rare: most batches have none.
    special = f"(?s).*[{_CAPITAL_SIGMA}{_NEW_CAPITALS[1:-1]}].*"
    texts = tf.cond(
        tf.reduce_any(tf.strings.regex_full_match(texts, special)),
        lambda: _lower_new_capitals(texts),
        lambda: texts,
    )
    return tf.strings.lower(texts, encoding="utf-8")


def _lower_new_capitals(texts):
    """Lower-cases capitals that are newer than TensorFlow's ICU."""
    # A capital sigma becomes a final one at the end of a word. ICU does this too, but
    # with the cased letters of its own version of Unicode.
    replace = tf.strings.regex_replace
    before_a_letter = f"{_CAPITAL_SIGMA}({_CASE_IGNORABLE}*{_CASED})"
    # Matches do not overlap: each pass replaces every other sigma of a row.
    for _ in range(2):
        texts = replace(texts, before_a_letter, rf"{_SMALL_SIGMA}\1")
    after_a_letter = f"({_CASED}{_CASE_IGNORABLE}*){_CAPITAL_SIGMA}"
    texts = replace(texts, after_a_letter, rf"\1{_FINAL_SIGMA}")
    texts = replace(texts, _CAPITAL_SIGMA, _SMALL_SIGMA)
    chars = tf.strings.unicode_decode(texts, "UTF-8")
    flat = lower = chars.flat_values
    for (first, last), step in unicode_classes.CAPITALS_OF_UNICODE_14:
        lower = tf.where((flat >= first) & (flat <= last), flat + step, lower)
    return tf.strings.unicode_encode(chars.with_flat_values(lower), "UTF-8")


# Offsets.


class TokensInText(NamedTuple):
    """The wordpieces of a batch of texts, all RaggedTensors [n, (wordpieces)]."""

    ids: tf.RaggedTensor  # int32
    starts: tf.RaggedTensor  # int32, characters of the text
    ends: tf.RaggedTensor  # int32
    surfaces: tf.RaggedTensor | None  # string, text[start:end]


class _Characters(NamedTuple):
    """The characters of a batch, one after the other; [C] each."""

    code_points: tf.Tensor  # int32
    width: tf.Tensor  # int32, its bytes in a word
    is_white: tf.Tensor  # bool
    is_ideograph: tf.Tensor  # bool, a word by itself
    is_mark: tf.Tensor  # bool, belongs to the character before it


def _distinct(tokenizer: TFTokenizer, code_points: tf.Tensor) -> _Characters:
    """Normalises each distinct character once."""
    distinct, index = tf.unique(code_points)
    chars = tf.strings.unicode_encode(distinct[:, None], "UTF-8")
    vanishes = tf.strings.regex_full_match(chars, _VANISHING)
    is_white = tf.strings.regex_full_match(chars, _WHITE_SPACE)
    width = tf.strings.length(tokenizer.normalize(chars))
    width = tf.where(vanishes | is_white, 0, width)
    is_mark = (width == 0) & ~vanishes & ~is_white
    is_ideograph = tf.strings.regex_full_match(chars, _IDEOGRAPHS)
    facts = (width, is_white, is_ideograph, is_mark)
    return _Characters(code_points, *(tf.gather(fact, index) for fact in facts))


def _spans(chars: _Characters, first_byte, end_byte, texts: tf.RaggedTensor):
    """Maps bytes of words to characters of the batch: start and end, int32."""
    place = tf.range(tf.size(chars.width))
    kept = tf.boolean_mask(place, chars.width > 0)
    last_byte_of = tf.cumsum(tf.gather(chars.width, kept))
    start = tf.searchsorted(last_byte_of, first_byte, side="right")
    last = tf.searchsorted(last_byte_of, end_byte - 1, side="right")

    # A mark lengthens the character before it, unless that is in another word.
    before = tf.cumsum(tf.cast(chars.width > 0, tf.int32)) - 1
    mark = tf.boolean_mask(place, chars.is_mark & (before >= 0))
    base = tf.gather(kept, tf.gather(before, mark))
    breaks = tf.cumsum(tf.cast(chars.is_white, tf.int32))
    row = texts.value_rowids()
    together = (
        (tf.gather(breaks, base) == tf.gather(breaks, mark))
        & (tf.gather(row, base) == tf.gather(row, mark))
        & ~tf.gather(chars.is_ideograph, base)
    )
    mark = tf.boolean_mask(mark, together)
    end_of = tf.tensor_scatter_nd_max(
        kept + 1, tf.gather(before, mark)[:, None], mark + 1
    )
    is_whole = tf.gather(last_byte_of, last) == end_byte
    end = tf.where(is_whole, tf.gather(end_of, last), tf.gather(kept, last) + 1)
    return tf.gather(kept, start), end


def characters(texts, row, start, end) -> tf.Tensor:
    """texts[row][start:end] of each, string."""
    chars = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")
    first = tf.cast(tf.gather(chars.row_starts(), row), tf.int32)
    places = tf.ragged.range(first + start, first + end)
    return tf.strings.unicode_encode(tf.gather(chars.flat_values, places), "UTF-8")
