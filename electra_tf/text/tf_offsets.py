# SPDX-License-Identifier: Apache-2.0
"""Where the wordpieces of `TFTokenizer` stand in the text, as TensorFlow ops.

What `Tokenizer.encode_with_offsets` does in Python, for graphs that are served.

Normalising never moves what it keeps: the bytes of a text's words, one after the other,
are what its characters become one by one.  So each distinct character of a batch is
normalised by itself, and running sums of the lengths lead from a piece's bytes to its
characters.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from electra_tf.text.tf_tokenization import (
    IDEOGRAPHS,
    VANISHING,
    WHITE_SPACE,
    TFTokenizer,
)


class TokensInText(NamedTuple):
    """The wordpieces of a batch of texts, all RaggedTensors [n, (wordpieces)]."""

    ids: tf.RaggedTensor  # int32
    starts: tf.RaggedTensor  # int32, characters of the text
    ends: tf.RaggedTensor  # int32
    surfaces: tf.RaggedTensor  # string, text[start:end]


class _Characters(NamedTuple):
    """The characters of a batch, one after the other; [C] each."""

    code_points: tf.Tensor  # int32
    width: tf.Tensor  # int32, bytes that it has in a word
    is_white: tf.Tensor  # bool
    is_ideograph: tf.Tensor  # bool, a word by itself
    is_mark: tf.Tensor  # bool: only the character before it would show it


def tokenize_with_offsets(tokenizer: TFTokenizer, texts: tf.Tensor) -> TokensInText:
    """Tokenises a batch of texts; tells where each wordpiece stands.

    Args:
      texts: string [n]; bytes that are not UTF-8 count as no characters.

    Accents that were stripped belong to the piece before them.  Pieces that share a
    character (a Hangul syllable falls into several) overlap.
    """
    words = tokenizer.split_words(texts)
    ids, first_byte, end_byte = _pieces(tokenizer, words)
    texts = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")  # [n, (chars)]
    chars = _characters(tokenizer, texts.flat_values)
    start, end = _spans(chars, first_byte, end_byte, texts)
    pieces = ids.merge_dims(-2, -1)
    row_start = tf.cast(tf.gather(texts.row_starts(), pieces.value_rowids()), tf.int32)
    inside = tf.gather(chars.code_points, tf.ragged.range(start, end))
    return TokensInText(
        pieces,
        pieces.with_flat_values(start - row_start),
        pieces.with_flat_values(end - row_start),
        pieces.with_flat_values(tf.strings.unicode_encode(inside, "UTF-8")),
    )


def _pieces(tokenizer: TFTokenizer, words: tf.RaggedTensor):
    """Ids, and the bytes of each piece in the words of the batch put together."""
    ids, first, end = tokenizer.wordpieces(words)
    length = tf.strings.length(words.flat_values)
    word = ids.values.value_rowids()
    # An unknown word is one piece; one beyond the limit was replaced before.
    is_unknown = ids.flat_values == tokenizer.vocab.unk_id
    before = tf.gather(tf.cumsum(length, exclusive=True), word)
    first = tf.where(is_unknown, 0, tf.cast(first.flat_values, tf.int32))
    end = tf.where(
        is_unknown, tf.gather(length, word), tf.cast(end.flat_values, tf.int32)
    )
    return ids, before + first, before + end


def _characters(tokenizer: TFTokenizer, code_points: tf.Tensor) -> _Characters:
    """What becomes of each character; the strings are made once for each distinct."""
    distinct, index = tf.unique(code_points)
    chars = tf.strings.unicode_encode(distinct[:, None], "UTF-8")
    vanishes = tf.strings.regex_full_match(chars, VANISHING)
    is_white = tf.strings.regex_full_match(chars, WHITE_SPACE)
    width = tf.strings.length(tokenizer.normalize(chars))
    width = tf.where(vanishes | is_white, 0, width)
    is_mark = (width == 0) & ~vanishes & ~is_white
    is_ideograph = tf.strings.regex_full_match(chars, IDEOGRAPHS)
    facts = (width, is_white, is_ideograph, is_mark)
    return _Characters(code_points, *(tf.gather(fact, index) for fact in facts))


def _spans(chars: _Characters, first_byte, end_byte, texts: tf.RaggedTensor):
    """From bytes of words to characters of the batch: start and end, int32 each."""
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
