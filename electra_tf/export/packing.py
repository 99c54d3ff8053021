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

    Args:
      segments: one or two RaggedTensors int32 [B, (tokens)] that fit.
      length: of the result; None: that of the longest row.
    """
    rows = segments[0].nrows()
    parts = [tf.fill([rows, 1], vocab.cls_id)]
    types = [tf.zeros([rows, 1], tf.int32)]
    for number, segment in enumerate(segments):
        part = tf.concat([segment, tf.fill([rows, 1], vocab.sep_id)], axis=1)
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


def truncate(
    segments: Sequence[tf.RaggedTensor], budget: tf.Tensor
) -> list[tf.RaggedTensor]:
    """Shortens one or two segments to `budget` tokens: from the longer one's end."""
    if len(segments) == 1:
        return [segments[0][:, :budget]]
    first, second = (segment.row_lengths() for segment in segments)
    budget = tf.cast(budget, first.dtype)
    keep_second = tf.minimum(second, tf.maximum(budget // 2, budget - first))
    keep_first = tf.minimum(first, budget - keep_second)
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
    lengths = tf.add_n([segment.row_lengths() for segment in segments])
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)
    lengths = tf.gather(lengths, order) + 1 + len(segments)
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
