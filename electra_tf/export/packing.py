# SPDX-License-Identifier: Apache-2.0
"""From ragged tokens to padded batches and back, as TensorFlow ops.

Shapes: B batch, W windows, L length; N tokens in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from electra_tf.export.inputs import EncoderInputs
from electra_tf.text.vocabulary import Vocabulary

# Windows that go through the network together: enough for full speed, few enough that
# sorting by length saves padding and a long text needs little memory.
WINDOWS_PER_STEP = 16


def pack(
    segments: Sequence[tf.RaggedTensor],
    vocab: Vocabulary,
    length: tf.Tensor | int | None = None,
) -> EncoderInputs:
    """[CLS] first segment [SEP] (second segment [SEP]), padded.

    As in `text.packing.join`, a second segment without tokens is none.

    Args:
      segments: one or two RaggedTensors int32 [B, (tokens)] that fit.
      length: of the result; None: that of the longest row.
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
    """How many [SEP] follow each segment in each row, [B]: 1, or 0 where it is none."""
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


def map_windows(
    network: Callable[[EncoderInputs], tf.Tensor],
    windows: tf.RaggedTensor,
    vocab: Vocabulary,
    windows_per_step: int = WINDOWS_PER_STEP,
    width: int | None = None,
) -> tf.Tensor:
    """What a network says of each token in [CLS] window [SEP]: float32 [N].

    Windows of like length go through it together, `windows_per_step` at a time.

    Args:
      network: from EncoderInputs to float32 [windows, L].
      windows: int32 [W, (tokens)].
      width: C, of a network that gives [windows, L, C]; the result is [N, C] then.
    """
    lengths = windows.row_lengths()
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    windows = tf.gather(windows, order)
    count = tf.cast(windows.nrows(), tf.int32)
    steps = -(-count // windows_per_step)

    def step(i, results):
        part = windows[i * windows_per_step : (i + 1) * windows_per_step]
        values = network(pack([part], vocab))[:, 1:]
        ragged = tf.RaggedTensor.from_tensor(values, lengths=part.row_lengths())
        return i + 1, results.write(i, ragged.flat_values)

    inner = [] if width is None else [width]
    results = tf.TensorArray(
        tf.float32, size=steps, infer_shape=False, element_shape=[None, *inner]
    )
    _, results = tf.while_loop(
        lambda i, _: i < steps, step, (0, results), parallel_iterations=1
    )
    starts = tf.cumsum(lengths, exclusive=True)
    places = tf.gather(tf.ragged.range(starts, starts + lengths), order).flat_values
    total = tf.concat([tf.reduce_sum(lengths)[None], tf.cast(inner, lengths.dtype)], 0)
    return tf.scatter_nd(places[:, None], results.concat(), total)


def map_rows(
    network: Callable[[EncoderInputs], tf.Tensor],
    segments: Sequence[tf.RaggedTensor],
    vocab: Vocabulary,
    width: int,
    least_length: int = 1,
    rows_per_step: int = WINDOWS_PER_STEP,
) -> tf.Tensor:
    """What a network says of each packed row: float32 [B, width].

    Rows of like length go through it together, `rows_per_step` at a time.

    Args:
      network: from EncoderInputs to float32 [rows, width].
      segments: one or two RaggedTensors int32 [B, (tokens)] that fit.
      least_length: to which shorter rows are padded.
    """
    lengths = [segment.row_lengths() for segment in segments]
    lengths = 1 + tf.add_n([*lengths, *_ends(segments)])
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    lengths = tf.gather(lengths, order)
    count = tf.cast(segments[0].nrows(), tf.int32)
    steps = -(-count // rows_per_step)

    def step(i, results):
        first = i * rows_per_step
        part = order[first : first + rows_per_step]
        length = tf.maximum(tf.cast(lengths[first], tf.int32), least_length)
        inputs = pack([tf.gather(s, part) for s in segments], vocab, length)
        return i + 1, results.write(i, network(inputs))

    results = tf.TensorArray(
        tf.float32, size=steps, infer_shape=False, element_shape=[None, width]
    )
    _, results = tf.while_loop(
        lambda i, _: i < steps, step, (0, results), parallel_iterations=1
    )
    return tf.gather(results.concat(), tf.math.invert_permutation(order))
