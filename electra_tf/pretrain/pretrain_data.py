# SPDX-License-Identifier: Apache-2.0
"""TFRecord shards -> batches for pre-training.

Which examples form batch k, and which of their tokens are masked, is a function of
(seed, k): the shards are read by random access through an index of record offsets, and
each epoch is a keyed permutation. Starting at step 1,000,000 costs what starting at
step 0 costs, and a resumed run reads what the interrupted one would have read.

The shards are this project's or the original's: Examples with the int64 features
input_ids, input_mask and segment_ids, without masking.
"""

from __future__ import annotations

import fnmatch
import functools
import os

import numpy as np
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.data import batch_order, record_index, tfrecord
from electra_tf.data.batch_order import Rows, batch_indices
from electra_tf.errors import EXIT_CONFIG, EXIT_DAMAGED, UserError, as_text
from electra_tf.jobs.job import STATE
from electra_tf.paths import escape, globs_in
from electra_tf.pretrain import masking
from electra_tf.pretrain.masking import Masking
from electra_tf.text.vocabulary import Vocabulary

_ENDLESS = 1 << 62
# A curriculum's temperature has fallen to exp(-10) of its excess at the end.
_DECAY_RATE = 10.0


def make_dataset(
    source: DataSets,
    how: Masking,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    examples_before: int | None = None,
    shuffle: bool = True,
    num_replicas: int = 1,
    replica_slice: tuple[int, int] = (0, 1),
    num_batches: int | None = None,
) -> tf.data.Dataset:
    """Makes the data set of masked batches; batch k is a function of (seed, k).

    Args:
      batch_size: of the global batch, over all replicas of all workers.
      start_step: number of the first batch.
      examples_before: how many examples the batches before it had; None: as many as it.
      shuffle: read each epoch in its own random order; else in the order of the files.
      num_replicas: the global batch is cut into this many elements, in replica order.
      replica_slice: (i, n): worker i of n reads and gets the i-th n-th of each step.
      num_batches: number of steps after which the data set ends; None: endless.

    Returns: elements with input_ids, input_mask, segment_ids and masked_input_ids
      int32 [b, L], masked_lm_positions, masked_lm_ids int32 [b, N], masked_lm_weights,
      sample_uniform float32 [b, N], where b = batch_size / num_replicas; what else
      `masking.mask_batch` is asked for.

    While reading, errors of data are a tf.errors.OpError that `errors.as_user_error`
    translates.
    """
    worker, num_workers = replica_slice
    first_row, count = batch_size // num_workers * worker, batch_size // num_workers
    first = first_row
    if examples_before is not None:
        first += examples_before - start_step * batch_size
    order = batch_size, seed, shuffle, Rows(first, count)

    def masked(step: tf.Tensor, batch: dict) -> dict[str, tf.Tensor]:
        batch = masking.mask_batch(batch, seed, step, how, first_row)
        if num_replicas == 1:
            return batch
        parts = num_replicas // num_workers  # [B, ...] -> [parts, B / parts, ...]
        return {n: tf.reshape(v, [parts, -1, v.shape[1]]) for n, v in batch.items()}

    dataset = tf.data.Dataset.range(start_step, start_step + (num_batches or _ENDLESS))
    # AutoGraph would take a second to convert what needs no conversion.
    load = tf.autograph.experimental.do_not_convert(
        lambda step: masked(step, source.batch(step, *order))
    )
    calls = tf.data.AUTOTUNE
    dataset = dataset.map(load, num_parallel_calls=calls, deterministic=True)
    dataset = dataset.unbatch() if num_replicas > 1 else dataset
    if not num_batches:
        # Else several workers ask each other at every step whether it ended.
        infinite = tf.data.INFINITE_CARDINALITY
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(infinite))
    return dataset.prefetch(tf.data.AUTOTUNE)


class ExampleSource:
    """The examples that a pattern names, by number, checked against model and manifest.

    Attributes:
        pattern: as it was given.
        index: their records.
        length: of all examples.
    """

    def __init__(self, pattern: str, config: PretrainingConfig, vocab: Vocabulary):
        self.pattern, self.length = pattern, config.max_seq_length
        # Of each feature, one more than the largest value it may have.
        num_segments = config.model_config().type_vocab_size
        self._limits = np.array([len(vocab), 2, num_segments])
        self._vocab = vocab
        paths = find_shards(pattern)
        manifests = check_manifests(paths, pattern, vocab)
        self.index = record_index.RecordIndex(paths)
        check_counts(self.index, manifests)
        if not len(self.index):
            raise UserError(
                f"the {len(paths)} shards of {pattern} hold no examples.\n"
                "Build the data again, from a corpus with text in it."
            )
        # One record of each shard shows whether it has another length or kind: examples
        # of other programs may parse.
        counts = self.index.counts
        firsts = (np.cumsum(counts) - counts)[counts > 0]
        starts, records = self.read(firsts)[0, :, 0].tolist(), self.index.read(firsts)
        for place, start, record in zip(firsts, starts, records, strict=True):
            if b"masked_lm_positions" in record:
                problem = "has masked_lm_positions, as BERT's masked examples do"
            elif start != vocab.cls_id:
                problem = f"begins with id {start} instead of [CLS] (id {vocab.cls_id})"
            else:
                continue
            problem += ".\nBuild the data with build_pretraining_dataset.py."
            raise self._error(place, problem, EXIT_DAMAGED)

    def _error(self, index: int, problem: str, code: int = EXIT_CONFIG) -> UserError:
        """The error that names a record by its place."""
        place = self.index.locate(int(index))
        where = f"{place.path}: record {place.record} at byte {place.offset}"
        return UserError(f"{where} {problem}", code)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Returns examples as int32 [3, n, L]: input_ids, input_mask, segment_ids."""
        records, count = self.index.read(indices), len(tfrecord.FEATURES)
        try:
            with tf.device("/cpu:0"):
                # tf.io.parse_example spends half of its time in Python.
                parsed = tf.raw_ops.ParseExampleV2(
                    serialized=records,
                    names=(),
                    sparse_keys=[],
                    dense_keys=list(tfrecord.FEATURES),
                    ragged_keys=[],
                    dense_defaults=[np.zeros(0, np.int64)] * count,
                    num_sparse=0,
                    sparse_types=[],
                    ragged_value_types=[],
                    ragged_split_types=[],
                    dense_shapes=[[self.length]] * count,
                ).dense_values
        except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
            raise self._misfit(indices, records) from None
        features = np.stack([feature.numpy() for feature in parsed])
        wrong = (features < 0) | (features >= self._limits[:, None, None])
        if wrong.any():
            which, row, column = np.argwhere(wrong)[0]
            name = tfrecord.FEATURES[which]
            raise self._error(
                indices[row],
                f"has {name} of {features[which, row, column]}; this model's are "
                f"0 to {self._limits[which] - 1}.\nThe data were built with another "
                f"vocabulary than {self._vocab.path}, or for another type_vocab_size.",
            )
        return features.astype(np.int32)

    def _misfit(self, indices: np.ndarray, records: list[bytes]) -> UserError:
        """The error of the first record that does not parse."""
        for index, record in zip(indices, records, strict=True):
            try:
                values = tf.train.Example.FromString(record).features.feature
            except Exception:  # protobuf's DecodeError has no stable home
                values = {}
            for name in tfrecord.FEATURES:
                length = len(values[name].int64_list.value) if name in values else 0
                if not length:
                    problem = f"has no int64 feature {name}: no pre-training example."
                    return self._error(index, problem, EXIT_DAMAGED)
                if length != self.length:
                    return self._error(
                        index,
                        f"has {length} {name}, but max_seq_length is {self.length}.\n"
                        f'Set "max_seq_length": {length}, or build the data again with '
                        f"--max-seq-length {self.length}.",
                    )
        return UserError("a record cannot be parsed", EXIT_DAMAGED)


def find_shards(pattern: str) -> list[str]:
    """The files that a comma-separated list of globs names, sorted; at least one."""
    # One file may be named in several ways.
    paths = {os.path.abspath(path): path for path in record_index.expand(pattern)}
    if paths:
        return sorted(paths.values())
    raise UserError(
        f"no file matches {pattern}.\nBuild the data (build_pretraining_dataset.py; an "
        'interrupted build continues), or\nset "pretrain_tfrecords" (of evaluation: '
        '"eval_tfrecords").'
    )


def check_manifests(
    paths: list[str], pattern: str, vocab: Vocabulary
) -> dict[str, dict]:
    """Compares the vocabulary with the manifests; returns entries of listed shards."""
    entries, there = {}, {os.path.abspath(path) for path in paths}
    here = escape(os.getcwd())
    patterns = [os.path.normpath(os.path.join(here, p)) for p in globs_in(pattern)]
    for folder in sorted({os.path.dirname(os.path.abspath(path)) for path in paths}):
        manifest = record_index.read_manifest(folder)
        if manifest is None:
            if record_index.file_beside(folder, STATE):
                raise UserError(
                    f"the data set in {folder} is not finished: its build was "
                    "interrupted.\nRun the same build_pretraining_dataset.py command "
                    "again; it continues."
                )
            continue
        vocab.check_same(
            manifest["vocab"]["sha256"],
            f"the data in {folder} were built",
            "Use the vocabulary of the data, or build the data again.",
        )
        files = {os.path.join(folder, file["name"]): file for file in manifest["files"]}
        entries |= files
        stray = sorted(p for p in there - files.keys() if os.path.dirname(p) == folder)
        if stray:
            raise UserError(
                f"{stray[0]} is not among the shards that {folder}/manifest.json lists."
                f"\nMove it to another folder, or narrow {pattern}."
            )
        for path in sorted(files.keys() - there):
            if any(fnmatch.fnmatch(path, part) for part in patterns):
                raise UserError(
                    f"{path} is missing, of {files[path]['examples']} examples by "
                    f"{folder}/manifest.json.\nRestore it, or build the data again.",
                    EXIT_DAMAGED,
                )
    return entries


def check_counts(index: record_index.RecordIndex, entries: dict[str, dict]) -> None:
    """Refuses shards that lost whole records, which no checksum detects."""
    for path, count in zip(index.paths, index.counts.tolist(), strict=True):
        entry = entries.get(os.path.abspath(path))
        if entry and entry["examples"] != count:
            raise UserError(
                f"{path}: {count} of {entry['examples']} records can be read.\n"
                "Restore the file, or build the data again.",
                EXIT_DAMAGED,
            )


class DataSets:
    """One data set or several, each of which has a share of the batches.

    Args:
      data: glob of the shards (several are joined by commas, as in the original) of one
        data set; a list of several, whose shares are in proportion to their numbers of
        examples to the power of `sampling_alpha`; or an object: data set -> its weight.
      config: of the phase.
    """

    def __init__(
        self, data: str | list | dict, config: PretrainingConfig, vocab: Vocabulary
    ):
        patterns = [data] if isinstance(data, str) else data
        self.parts = [ExampleSource(pattern, config, vocab) for pattern in patterns]
        weights = [len(part) ** config.sampling_alpha for part in self.parts]
        if isinstance(data, dict):
            weights = list(data.values())
        self._places = batch_order.shares_of(weights)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def shares(self) -> list[float]:
        """Each part's share of the batches."""
        return (self._places / batch_order.BLOCK).tolist()

    def epochs(self) -> list[float]:
        """The examples of batches in an epoch of each part."""
        sizes = map(len, self.parts)
        return [size / share for size, share in zip(sizes, self.shares(), strict=True)]

    def describe(self, done: int, total: int) -> list[str]:
        """A line for each data set: its size, and the epochs of `done` and `total`."""
        lines = []
        numbers = self.parts, self.shares(), self.epochs()
        for part, share, epoch in zip(*numbers, strict=True):
            which = f"{part.pattern}: {share:.2%} of the batches, " if share < 1 else ""
            epochs = f"{done / epoch:.2f} of {total / epoch:.2f} epochs done"
            lines.append(f"{which}{len(part):,} examples; {epochs}")
        return lines

    def token_counts(self, vocab_size: int) -> np.ndarray:
        """How often each token is in the parts, by their shares: float64 [V]."""
        counts = np.zeros(vocab_size)
        for part, epoch in zip(self.parts, self.epochs(), strict=True):
            own = record_index.token_counts_of(part.pattern, vocab_size)
            counts += own * (len(self) / epoch)
        return counts

    def batch(
        self, step: tf.Tensor, batch_size: int, seed: int, shuffle: bool, rows: Rows
    ) -> dict[str, tf.Tensor]:
        """The features of rows of batch `step`, int32 [B, L], in a graph of tf.data.

        Errors carry text for `as_user_error`.
        """

        def read(step: np.ndarray) -> np.ndarray:
            try:
                return self._read(step, batch_size, seed, shuffle, rows)
            except UserError as e:
                raise ValueError(as_text(e)) from None

        features = tf.numpy_function(read, [step], tf.int32, stateful=False)
        features.set_shape([len(tfrecord.FEATURES), rows.count, self.parts[0].length])
        return dict(zip(tfrecord.FEATURES, tf.unstack(features), strict=True))

    def _read(self, step, batch_size, seed, shuffle, rows) -> np.ndarray:
        """As `ExampleSource.read` returns them."""
        sizes = [len(part) for part in self.parts]
        if len(sizes) == 1:
            numbers = batch_indices(step, batch_size, *sizes, seed, shuffle, rows)
            return self.parts[0].read(numbers)
        which, numbers = batch_order.batch_examples(
            step, batch_size, self._places, sizes, seed, shuffle, rows
        )
        shape = len(tfrecord.FEATURES), rows.count, self.parts[0].length
        features = np.empty(shape, np.int32)
        for i in np.unique(which).tolist():
            features[:, which == i] = self.parts[i].read(numbers[which == i])
        return features


class RunData:
    """The data of a run's phases; opens each data set once."""

    def __init__(self, vocab: Vocabulary):
        self.vocab = vocab
        self._opened: dict[tuple, DataSets] = {}

    def open(self, part: PretrainingConfig, training: bool = True) -> DataSets:
        """The data of a phase to train on, or to evaluate on, checked."""
        place = part.pretrain_tfrecords if training else part.eval_tfrecords
        key = str(place), part.max_seq_length, part.sampling_alpha
        if key not in self._opened:
            self._opened[key] = DataSets(place, part, self.vocab)
        return self._opened[key]

    def token_counts(self, config: PretrainingConfig) -> np.ndarray:
        """How often each token is in what a run reads: whole numbers, float64 [V]."""
        parts: dict[str, PretrainingConfig] = {}
        for phase in config.run_phases():
            parts.setdefault(str(phase.config.pretrain_tfrecords), phase.config)
        counts = (self.open(p).token_counts(len(self.vocab)) for p in parts.values())
        return np.rint(sum(counts))

    def dataset(
        self, part: PretrainingConfig, training: bool, first_step: int = 0, **options
    ) -> tf.data.Dataset:
        """The masked batches of a phase; `options` as `make_dataset`.

        Args:
          first_step: of the phase, where its schedules begin.
        """
        temperature = None
        if training and part.temperature_start is not None:
            temperature = functools.partial(temperature_at, part, first_step)
        return make_dataset(
            self.open(part, training),
            Masking.of(part, self.vocab, temperature),
            seed=part.seed,
            shuffle=training,
            **options,
        )


def temperature_at(
    config: PretrainingConfig, first: int, step: int | tf.Tensor
) -> tf.Tensor:
    """The temperature of a step in a phase that begins at step `first`, a scalar.

    From easy to hard replacements (Fast-ELECTRA, Dong et al., ICLR 2024).
    """
    progress = tf.cast(step - first, tf.float32) / config.num_train_steps
    progress = tf.clip_by_value(progress, 0.0, 1.0)
    start, end = config.temperature_start, config.temperature
    return end + (start - end) * tf.exp(-_DECAY_RATE * progress)
