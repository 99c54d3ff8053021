# SPDX-License-Identifier: Apache-2.0
"""Examples read by TensorFlow's own operations, for hosts that cannot call Python.

`ExampleSource.batch` calls this process from within a graph. Hosts of a TPU that is not
this machine's have only the graph: there the same examples are chosen, found and read
by operations, bit for bit the same. Each record costs an iterator, so that it takes
several times as long.
"""

from __future__ import annotations

import tensorflow as tf

from electra_tf.data import batch_order, tfrecord
from electra_tf.data.batch_order import Rows
from electra_tf.errors import EXIT_CONFIG, EXIT_DAMAGED, UserError, as_text

_READERS = 32  # records that are being read at a time
_BUFFER_BYTES = 1 << 14  # most examples are shorter
# The keys of their orders are SHA-512, which no operation computes: they are a table.
_MAX_EPOCHS = 1 << 16


def examples(
    steps: tf.data.Dataset,
    source,
    start_step: int,
    batch_size: int,
    seed: int,
    shuffle: bool,
    rows: Rows,
) -> tf.data.Dataset:
    """`source.batch` of each of `steps`, the first of which is `start_step`.

    Args:
      source: `pretrain_data.ExampleSource`; its shards must be where the host that
        reads finds them under the same names.

    Elements are int32 [rows.count, L] by name. Errors carry text that
    `errors.as_user_error` knows.
    """
    index, count = source.index, len(source)
    offsets, firsts = (tf.constant(table) for table in index.tables())
    paths = tf.constant(source.paths)
    start = (start_step * batch_size + rows.first) // count
    keys = batch_order.keys_of_epochs(seed, start, _MAX_EPOCHS) if shuffle else None
    table = None if keys is None else tf.constant(keys)

    def places(step: tf.Tensor):
        row = tf.range(rows.first, rows.first + rows.count, dtype=tf.int64)
        place = step * batch_size + row
        epochs, indices = place // count, place % count
        if shuffle:
            indices = _permuted(indices, count, _keys_at(table, epochs - start))
        files = tf.searchsorted(firsts, indices, side="right") - 1
        found = tf.gather(offsets, indices + tf.cast(files, tf.int64))
        return tf.data.Dataset.from_tensor_slices((tf.gather(paths, files), found))

    def record(path: tf.Tensor, offset: tf.Tensor) -> tf.data.Dataset:
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[path],
            compression_type="",
            buffer_size=_BUFFER_BYTES,
            byte_offsets=[offset],
        )
        text = tf.TensorSpec([], tf.string)
        found = tf.data.experimental.from_variant(variant, text)
        # A damaged or missing record gives "", which `parse` refuses by its place;
        # else nothing would come, and all others move up.
        found = found.ignore_errors(log_warning=True)
        found = found.concatenate(tf.data.Dataset.from_tensors("")).take(1)
        return found.map(lambda data: (data, path, offset))

    def parse(records: tf.Tensor, paths: tf.Tensor, offsets: tf.Tensor):
        what = f"cannot be read as an example of {source.length} tokens"
        found = source.parse(records, _errors(what, EXIT_DAMAGED, paths, offsets))
        checks = []
        for (name, limit), values in zip(source.limits.items(), found, strict=True):
            wrong = tf.reduce_any((values < 0) | (values >= limit), axis=1)
            what = f"has {name} that are not 0 to {limit - 1}, as this model's"
            text = tf.boolean_mask(_errors(what, EXIT_CONFIG, paths, offsets), wrong)
            checks.append(tf.Assert(~tf.reduce_any(wrong), [text[:1]]))
        with tf.control_dependencies(checks):
            found = [tf.cast(values, tf.int32) for values in found]
        return dict(zip(tfrecord.FEATURES, found, strict=True))

    records = steps.flat_map(places).interleave(
        record,
        cycle_length=_READERS,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    return records.batch(rows.count, drop_remainder=True).map(parse)


def _errors(what: str, code: int, paths: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """For each record, the text of a UserError that names it."""
    text = as_text(UserError(f"PATH: the record at byte OFFSET {what}.", code))
    before, rest = text.split("PATH")
    between, after = rest.split("OFFSET")
    return tf.strings.join([before, paths, between, tf.as_string(offsets), after])


def _keys_at(table: tf.Tensor, epochs: tf.Tensor) -> tf.Tensor:
    """uint64 [n, rounds, 2]: the keys of each epoch, counted from the table's first."""
    text = as_text(
        UserError(
            f"{_MAX_EPOCHS:,} epochs are all that a run has in one go where the hosts "
            "of its TPU read.\nRun the same command again; it continues."
        )
    )
    enough = tf.Assert(tf.reduce_all(epochs < _MAX_EPOCHS), [text])
    with tf.control_dependencies([enough]):
        return tf.gather(table, epochs)


def _permuted(index: tf.Tensor, size: int, keys: tf.Tensor) -> tf.Tensor:
    """`batch_order.permute` of each int64 index by its own keys."""
    a, b = batch_order.digits(size)

    def network(values: tf.Tensor) -> tf.Tensor:
        left, right = values // b, values % b
        for number in range(keys.shape[1]):
            first, second = keys[:, number, 0], keys[:, number, 1]
            left = (left + _hash(right, first)) % a
            right = (right + _hash(left, second)) % b
        return left * b + right

    [result] = tf.while_loop(
        lambda values: tf.reduce_any(values >= size),
        lambda values: [tf.where(values >= size, network(values), values)],
        [network(index)],
    )
    return result


def _hash(x: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """`batch_order._hash` of int64 `x` plus uint64 `key`: int64."""
    x = tf.bitcast(x, tf.uint64) + key
    for shift, factor in batch_order.MIXING:
        x ^= tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))
        x *= tf.constant(factor, tf.uint64)
    x = tf.bitwise.right_shift(x, tf.constant(32, tf.uint64))
    return tf.bitcast(x, tf.int64)
