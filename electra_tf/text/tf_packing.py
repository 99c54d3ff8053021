# SPDX-License-Identifier: Apache-2.0
"""Packed texts in TensorFlow's graph: segments, windows, and networks over them.

Shapes: B texts, L length of packed ids, W windows, N tokens of all texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from electra_tf.text.vocabulary import Vocabulary

# Where a padded row has no token.
NO_OFFSET = -1


class EncoderInputs(NamedTuple):
    """Packed texts, int32 [B, L] each."""

    ids: tf.Tensor
    mask: tf.Tensor  # 1 at tokens, 0 at padding
    type_ids: tf.Tensor


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
) -> EncoderInputs:
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
    return EncoderInputs(
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
    network: Callable[[EncoderInputs], tf.Tensor],
    windows: tf.RaggedTensor,
    vocab: Vocabulary,
    width: int | None = None,
) -> tf.Tensor:
    """The outputs of a network for each token in [CLS] window [SEP]: float32 [N].

    Args:
      network: from EncoderInputs to float32 [windows, L].
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
    network: Callable[[EncoderInputs], tf.Tensor],
    segments: Sequence[tf.RaggedTensor],
    vocab: Vocabulary,
    width: int,
    least_length: int = 1,
) -> tf.Tensor:
    """The outputs of a network for each packed row: float32 [B, width].

    Args:
      network: from EncoderInputs to float32 [rows, width].
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
