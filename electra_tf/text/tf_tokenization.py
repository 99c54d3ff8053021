# SPDX-License-Identifier: Apache-2.0
"""Texts to packed ids in TensorFlow's graph, as in `text.tokenization`.

`TFTokenizer` is made of regular expressions, ICU's lower-casing and NFD, and
tensorflow_text's wordpiece op. The BertTokenizers of tensorflow_text and KerasHub give
other ids than the original on many strings: they fold case instead of lowering it, turn
controls into spaces and count a word's bytes, not characters. The 41 capitals that are
newer than TensorFlow's ICU (Vithkuqi and rare letters of Unicode 14) keep their case.

Offsets of wordpieces rest on one fact: normalising keeps the order of characters. So
each distinct character of a batch is normalised alone, and running sums of the lengths
lead from a piece's bytes to its characters.

Shapes: B texts, L length of packed ids, W windows, N tokens of all texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from electra_tf import startup
from electra_tf.errors import UserError, reason_of
from electra_tf.text import unicode_classes, vocabulary
from electra_tf.text.tokenization import PackedTexts
from electra_tf.text.vocabulary import UNK, TokenizerConfig, Vocabulary

_NO_TEXTS = "It cannot be in a SavedModel of texts; --what encoder reads ids instead."

# Classes of characters.
_VANISHING = unicode_classes.VANISHING
_WHITE_SPACE = unicode_classes.pattern(unicode_classes.WHITE_SPACE)
_IDEOGRAPHS = unicode_classes.pattern(unicode_classes.IDEOGRAPHS)
_MARKS = unicode_classes.pattern(unicode_classes.NONSPACING_MARKS)
_PUNCTUATION = unicode_classes.pattern(unicode_classes.PUNCTUATION)


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
                max_bytes_per_word=4 * vocabulary.MAX_CHARS_PER_WORD,
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
        too_long = (
            tf.strings.length(flat, unit="UTF8_CHAR") > vocabulary.MAX_CHARS_PER_WORD
        )
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
            texts = tf.strings.lower(texts, encoding="utf-8")
            if self.config.strip_accents:
                texts = self._normalize_utf8(texts, "NFD")
                texts = tf.strings.regex_replace(texts, _MARKS, "")
        return texts


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


# Packed texts: segments, windows, and networks over them.

# Where a padded row has no token.
NO_OFFSET = -1


def require(condition: tf.Tensor, *message) -> tf.Operation:
    """An op that raises InvalidArgument with `message` unless `condition` holds."""
    return tf.debugging.Assert(condition, list(message), summarize=10)


def of_same_rows(names: str, *tensors: tf.Tensor) -> list[tf.Tensor]:
    """The same tensors; reading them raises InvalidArgument for other rows."""
    rows = [tf.shape(x)[0] for x in tensors]
    same = tf.reduce_all(tf.stack(rows) == rows[0])
    with tf.control_dependencies([require(same, f"{names} have rows:", *rows)]):
        return [tf.identity(x) for x in tensors]


# Rows that go through the network together: enough for full speed, few enough that
# sorting by length saves padding and a long text needs little memory.
ROWS_PER_STEP = 16


def pack(
    segments: Sequence[tf.RaggedTensor],
    vocab: Vocabulary,
    length: tf.Tensor | int | None = None,
) -> PackedTexts:
    """[CLS] first segment [SEP] (second segment [SEP]), padded.

    As in `text.tokenization.join`, a second segment without tokens is none.

    Args:
      segments: one or two RaggedTensors int32 [B, (tokens)] that fit.
      length: of the result; None: of the longest row.
    """
    rows = segments[0].nrows()
    parts = [tf.fill([rows, 1], vocab.cls_id)]
    types = [tf.zeros([rows, 1], tf.int32)]
    counts = zip(segments, _ends(segments), strict=True)
    for number, (segment, count) in enumerate(counts):
        ends = tf.fill(tf.reduce_sum(count)[None], vocab.sep_id)
        ends = tf.RaggedTensor.from_row_lengths(ends, count, validate=False)
        part = tf.concat([segment, ends], axis=1)
        parts.append(part)
        types.append(tf.fill(tf.shape(part.flat_values), number))
        types[-1] = part.with_flat_values(types[-1])
    ids, types = tf.concat(parts, axis=1), tf.concat(types, axis=1)
    shape = None if length is None else tf.stack([-1, length])
    mask = ids.with_flat_values(tf.ones_like(ids.flat_values))
    return PackedTexts(
        ids.to_tensor(vocab.pad_id, shape=shape),
        mask.to_tensor(0, shape=shape),
        types.to_tensor(0, shape=shape),
    )


def _ends(segments: Sequence[tf.RaggedTensor]) -> list[tf.Tensor]:
    """The number of [SEP] after each segment in each row, [B]: 1, or 0 for none."""
    lengths = [segment.row_lengths() for segment in segments]
    others = [tf.minimum(one, 1) for one in lengths[1:]]
    return [tf.ones_like(lengths[0]), *others]


def truncate(
    segments: Sequence[tf.RaggedTensor], length: tf.Tensor | int
) -> list[tf.RaggedTensor]:
    """Shortens one or two segments, from the longer one's end.

    Args:
      length: tokens that `pack` may make of them.
    """
    first, *others = (segment.row_lengths() for segment in segments)
    room = tf.cast(length, first.dtype) - 1 - tf.add_n(_ends(segments))
    if not others:
        return [_heads(segments[0], tf.minimum(first, room))]
    keep_second = tf.minimum(others[0], tf.maximum(room // 2, room - first))
    keep_first = tf.minimum(first, room - keep_second)
    return [_heads(segments[0], keep_first), _heads(segments[1], keep_second)]


def _heads(ragged: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """The first `lengths[i]` values of row i."""
    starts = ragged.row_starts()
    places = tf.ragged.range(starts, starts + lengths)
    return places.with_flat_values(tf.gather(ragged.flat_values, places.flat_values))


def windows_of(tokens: tf.RaggedTensor, size: int) -> tf.RaggedTensor:
    """Cuts each row into consecutive windows of `size`: [B, (tokens)] -> [W, (<=size)].

    A row without tokens has no window; the tokens keep their order.
    """
    lengths = tokens.row_lengths()
    counts = -(-lengths // size)
    first = tf.cumsum(counts, exclusive=True)
    number = tf.range(tf.reduce_sum(counts)) - tf.repeat(first, counts)
    left = tf.repeat(lengths, counts) - number * size
    return tf.RaggedTensor.from_row_lengths(
        tokens.flat_values, tf.minimum(left, tf.cast(size, left.dtype))
    )


def _by_length(
    lengths: tf.Tensor, inner: Sequence[int], compute: Callable[[tf.Tensor], tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """The results of `compute` for rows of similar length, ROWS_PER_STEP at a time.

    Args:
      lengths: of the rows.
      inner: the shape of a result.
      compute: of the numbers of some rows, the longest first.

    Returns (all results, the rows' numbers in their order).
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    steps = -(-tf.size(order) // ROWS_PER_STEP)

    def step(i, results):
        rows = order[i * ROWS_PER_STEP : (i + 1) * ROWS_PER_STEP]
        return i + 1, results.write(i, compute(rows))

    results = tf.TensorArray(
        tf.float32, size=steps, infer_shape=False, element_shape=[None, *inner]
    )
    _, results = tf.while_loop(
        lambda i, _: i < steps, step, (0, results), parallel_iterations=1
    )
    return results.concat(), order


def map_windows(
    network: Callable[[PackedTexts], tf.Tensor],
    windows: tf.RaggedTensor,
    vocab: Vocabulary,
    width: int | None = None,
) -> tf.Tensor:
    """The outputs of a network for each token in [CLS] window [SEP]: float32 [N].

    Args:
      network: from PackedTexts to float32 [windows, L].
      windows: int32 [W, (tokens)].
      width: C, of a network that gives [windows, L, C]; the result is [N, C] then.
    """
    inner = [] if width is None else [width]

    def compute(rows):
        part = tf.gather(windows, rows)
        values = network(pack([part], vocab))[:, 1:]
        return tf.RaggedTensor.from_tensor(values, part.row_lengths()).flat_values

    results, order = _by_length(windows.row_lengths(), inner, compute)
    longest_first = tf.gather(windows, order).with_flat_values(results)
    return tf.gather(longest_first, tf.math.invert_permutation(order)).flat_values


def map_rows(
    network: Callable[[PackedTexts], tf.Tensor],
    segments: Sequence[tf.RaggedTensor],
    vocab: Vocabulary,
    width: int,
    least_length: int = 1,
) -> tf.Tensor:
    """The outputs of a network for each packed row: float32 [B, width].

    Args:
      network: from PackedTexts to float32 [rows, width].
      segments: one or two RaggedTensors int32 [B, (tokens)] that fit.
      least_length: to which shorter rows are padded.
    """
    lengths = [segment.row_lengths() for segment in segments]
    lengths = 1 + tf.add_n([*lengths, *_ends(segments)])

    def compute(rows):
        length = tf.maximum(tf.cast(lengths[rows[0]], tf.int32), least_length)
        return network(pack([tf.gather(s, rows) for s in segments], vocab, length))

    results, order = _by_length(lengths, [width], compute)
    return tf.gather(results, tf.math.invert_permutation(order))
