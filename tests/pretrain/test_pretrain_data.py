# SPDX-License-Identifier: Apache-2.0
"""Shards -> batches: which examples, in which order, and what damaged data do."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data import record_index, tfrecord
from electra_tf.data.permutation import batch_indices
from electra_tf.errors import UserError, as_user_error
from electra_tf.pretrain import pretrain_data
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.numbered_examples import (
    LENGTH,
    NAMES,
    VOCAB,
    batches,
    dataset,
    error_of,
    example_arrays,
    numbers_of,
    same,
    write_shards,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """50 examples in shards of 20, 0, 29 and 1."""
    return write_shards(tmp_path_factory.mktemp("data"), [20, 0, 29, 1])


# Which examples form batch k.


def test_examples_arrive_unchanged_in_the_order_of_files(shards):
    found = batches(shards, 10, batch_size=5, shuffle=False)
    ids, mask, segments = example_arrays(range(50))
    for name, values in zip(NAMES, (ids, mask, segments), strict=True):
        assert np.array_equal(np.concatenate([b[name] for b in found]), values)


def test_elements_are_the_masked_batch(shards):
    element = dataset(shards).element_spec
    shapes = {name: (spec.shape, spec.dtype.name) for name, spec in element.items()}
    assert shapes == {
        **{name: ((6, LENGTH), "int32") for name in (*NAMES, "masked_input_ids")},
        **{
            name: ((6, 3), "int32") for name in ("masked_lm_positions", "masked_lm_ids")
        },
        **{
            name: ((6, 3), "float32")
            for name in ("masked_lm_weights", "sample_uniform")
        },
    }


def test_every_epoch_is_another_permutation(shards):
    found = batches(shards, 25)  # 150 examples: 3 epochs, not divisible by the batch
    numbers = [n for batch in found for n in numbers_of(batch)]
    epochs = [numbers[i : i + 50] for i in (0, 50, 100)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert not any(epoch == sorted(epoch) for epoch in epochs)


def test_steps_of_other_sizes_go_on_where_those_before_ended(shards):
    straight = [n for batch in batches(shards, 20) for n in numbers_of(batch)]
    after = {"start_step": 5, "examples_before": 30, "batch_size": 4}
    whole = batches(shards, 6, **after)
    assert [n for b in whole for n in numbers_of(b)] == straight[30:54]
    parts = [
        batches(shards, 6, num_replicas=2, replica_slice=(i, 2), **after)
        for i in range(2)
    ]
    for batch, *halves in zip(whole, *parts, strict=True):
        for name, values in batch.items():  # masked alike, too
            assert np.array_equal(values, np.concatenate([h[name] for h in halves]))


def test_the_order_is_random():
    """Which example stands where, and beside which, is uniform: chi-square."""
    size, seeds = 10, 4000
    places, pairs = np.zeros((size, size)), np.zeros((size, size))
    for seed in range(seeds):
        order = batch_indices(seed % 7, size, size, seed)
        places[np.arange(size), order] += 1
        pairs[order[3], order[4]] += 1
    pairs = pairs[~np.eye(size, dtype=bool)]
    for counts, freedom in ((places, 81), (pairs, 89)):
        chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert freedom - 4 * (2 * freedom) ** 0.5 < chi2
        assert chi2 < freedom + 4 * (2 * freedom) ** 0.5


def test_orders_are_permutations_that_differ():
    for size in [*range(1, 40), 1000, 10007]:
        order = batch_indices(0, size, size, 42)
        assert sorted(order.tolist()) == list(range(size))
    orders = {
        batch_indices(epoch, 1000, 1000, seed).tobytes()
        for seed in (0, 1, 42, 42 + 2**8, 42 + 2**32)
        for epoch in (0, 1, 2**8, 2**16, 10**6)
    }
    assert len(orders) == 25


def test_batch_k_depends_on_seed_and_k_only(shards):
    straight = batches(shards, 40)
    for start in (1, 7, 39):
        assert same(batches(shards, 1, start_step=start)[0], straight[start])
    again = batches(shards, 2, start_step=20)
    assert same(again[1], straight[21])
    other = batches(shards, 1, seed=2)[0]
    assert numbers_of(other) != numbers_of(straight[0])
    far = batches(shards, 1, start_step=10**6)[0]
    assert same(far, batches(shards, 2, start_step=10**6 - 1)[1])


def test_masking_differs_from_epoch_to_epoch(shards):
    a, b = batches(shards, 20, batch_size=50, shuffle=False)[:2]
    assert numbers_of(a) == numbers_of(b)
    assert not np.array_equal(a["masked_lm_positions"], b["masked_lm_positions"])
    weights = a["masked_lm_weights"] > 0
    taken = np.take_along_axis(a["input_ids"], a["masked_lm_positions"], axis=1)
    assert np.array_equal(taken[weights], a["masked_lm_ids"][weights])


def test_replicas_get_slices_of_the_global_batch(shards):
    whole = batches(shards, 2, start_step=5)
    parts = batches(shards, 2, start_step=5, num_replicas=3)
    assert len(parts) == 6
    for k in range(2):
        joined = {
            name: np.concatenate([part[name] for part in parts[3 * k : 3 * k + 3]])
            for name in whole[k]
        }
        assert same(joined, whole[k])
    six = batches(shards, 2, start_step=5, num_replicas=6)
    second = batches(shards, 2, start_step=5, num_replicas=6, replica_slice=(1, 2))
    assert len(second) == 6
    assert all(same(a, b) for a, b in zip(second, six[3:6] + six[9:12], strict=True))


@pytest.mark.parametrize("repeated_masks", ["original", "fixed"])
def test_a_worker_reads_its_own_rows_only(shards, monkeypatch, repeated_masks):
    options = {"start_step": 5, "repeated_masks": repeated_masks}
    whole = batches(shards, 1, **options, num_replicas=6)
    made = dataset(
        shards, num_batches=1, **options, num_replicas=6, replica_slice=(1, 3)
    )
    read, sizes = pretrain_data.ExampleSource.read, []

    def counted(self, indices):
        sizes.append(len(indices))
        return read(self, indices)

    monkeypatch.setattr(pretrain_data.ExampleSource, "read", counted)
    own = list(made.as_numpy_iterator())
    assert all(same(a, b) for a, b in zip(own, whole[2:4], strict=True))
    assert sum(sizes) == sum(len(part["input_ids"]) for part in own)


def test_batches_that_cannot_be_divided(shards):
    with pytest.raises(UserError, match="cannot be divided evenly over 4"):
        dataset(shards, num_replicas=4)


def test_a_corpus_smaller_than_a_batch(tmp_path):
    pattern = write_shards(tmp_path, [1])
    assert numbers_of(batches(pattern, 1)[0]) == [0] * 6
    pattern = write_shards(tmp_path / "more", [4])
    numbers = numbers_of(batches(pattern, 2)[0])
    assert sorted(numbers[:4]) == [0, 1, 2, 3]


# Files of others.


def write_as_the_original(path, numbers):
    """Records as the original's program writes them, through protobuf."""
    arrays = example_arrays(numbers)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in zip(*arrays, strict=True):
            features = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                for name, values in zip(NAMES, row, strict=True)
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def test_a_thousand_small_shards_of_the_original(tmp_path):
    for shard in range(1000):
        path = tmp_path / f"pretrain_data.tfrecord-{shard}-of-1000"
        write_as_the_original(path, [shard] if shard % 2 else [])
    (tmp_path / "other-file").write_text("not a shard")
    pattern = f"{tmp_path}/pretrain_data.tfrecord*"
    numbers = [n for b in batches(pattern, 50, batch_size=10) for n in numbers_of(b)]
    assert sorted(numbers) == list(range(1, 1000, 2))


def test_patterns_joined_by_commas(tmp_path):
    one, two = write_shards(tmp_path / "1", [3]), write_shards(tmp_path / "2", [5])
    both = batches(f"{one},{two}", 1, batch_size=8, shuffle=False)[0]
    assert numbers_of(both) == [0, 1, 2, 0, 1, 2, 3, 4]


def test_encoded_examples_are_those_of_protobuf():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, tfrecord.MAX_ID, (40, 50)) >> rng.integers(0, 20, (40, 50))
    ids[0] = 0
    ids[1, 1:] = 0
    ids[2] = [0, 127, 128, 16383, 16384] * 10
    flags = rng.integers(0, 2, (2, 40, 50))
    for row, record in enumerate(tfrecord.encode_examples(ids, *flags)):
        example = tf.train.Example.FromString(record)
        assert sorted(example.features.feature) == sorted(NAMES)
        for name, values in zip(NAMES, (ids, *flags), strict=True):
            found = example.features.feature[name].int64_list.value
            assert found == values[row].tolist()
        assert (
            len(record) == example.ByteSize()
        )  # nothing is spelled longer than needed


def test_framing_is_that_of_tensorflow(tmp_path):
    records = [b"", b"a", bytes(range(256)) * 20]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_bytes(b"".join(map(tfrecord.frame, records)))
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in records:
            writer.write(record)
    assert ours.read_bytes() == theirs.read_bytes()
    assert list(tfrecord.read_records(theirs)) == records


# The index.


def test_the_index_is_kept_and_renewed(tmp_path, monkeypatch):
    pattern = write_shards(tmp_path, [5, 5], manifest=False)
    first = batches(pattern, 2)
    scans = []
    scan = tfrecord.scan
    monkeypatch.setattr(tfrecord, "scan", lambda *a: scans.append(a) or scan(*a))
    assert all(same(a, b) for a, b in zip(batches(pattern, 2), first, strict=True))
    assert not scans
    # A shard that changed, or an index that is damaged, is scanned again.
    write_shards(tmp_path, [5, 7], manifest=False)
    assert len(pretrain_data.ExampleSource(pattern, LENGTH, VOCAB)) == 12
    assert len(scans) == 2
    for position in (0, 8, 40, -1):
        (index,) = tmp_path.glob(".records-all-*")
        data = bytearray(index.read_bytes())
        data[position] ^= 1
        index.write_bytes(data)
        scans.clear()
        assert len(pretrain_data.ExampleSource(pattern, LENGTH, VOCAB)) == 12
        assert len(scans) == 2
        index.write_bytes(data[:50])
        assert len(pretrain_data.ExampleSource(pattern, LENGTH, VOCAB)) == 12


def test_a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    pattern = write_shards(tmp_path, [5])

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(record_index.tempfile, "mkstemp", refuse)
    assert len(batches(pattern, 2)) == 2
    assert not list(tmp_path.glob(".records*"))


# Data that do not fit.


def test_no_file(tmp_path):
    text, code = error_of(dataset, f"{tmp_path}/nothing*")
    assert f"no file matches {tmp_path}/nothing*" in text and code == 2
    text, _ = error_of(dataset, write_shards(tmp_path, [0, 0]))
    assert "no examples" in text


def test_an_unfinished_build(tmp_path):
    pattern = write_shards(tmp_path, [3], manifest=False)
    (tmp_path / "build.json").write_text("{}")
    assert "not finished" in error_of(dataset, pattern)[0]


@pytest.mark.parametrize("manifest", [True, False])
def test_another_length(tmp_path, manifest):
    pattern = write_shards(tmp_path, [3], manifest=manifest)
    text, code = error_of(dataset, pattern, max_seq_length=32)
    assert "16" in text and "32" in text and code == 2
    assert f'"max_seq_length": {LENGTH}' in text


def test_one_shard_of_another_length(tmp_path):
    pattern = write_shards(tmp_path, [3, 3], manifest=False)
    arrays = (np.ones((3, 8), int),) * 3
    odd = tmp_path / "pretrain_data.tfrecord-00001-of-00002"
    records = map(tfrecord.frame, tfrecord.encode_examples(*arrays))
    odd.write_bytes(b"".join(records))
    text, _ = error_of(dataset, pattern)
    assert f"{odd}: record 0 at byte 0 has 8 input_ids" in text


def test_another_vocabulary(tmp_path):
    pattern = write_shards(tmp_path, [3])
    other = Vocabulary((*VOCAB.tokens[:-1], "changed"), "other.txt")
    text, code = error_of(dataset, pattern, vocab=other)
    assert VOCAB.sha256[:16] in text and other.sha256[:16] in text and code == 2


def test_ids_beyond_the_vocabulary(tmp_path):
    pattern = write_shards(tmp_path, [800], manifest=False)
    small = Vocabulary(VOCAB.tokens[:500], "small.txt")
    found = dataset(pattern, vocab=small, shuffle=False, batch_size=100)
    with pytest.raises(tf.errors.OpError) as caught:
        list(found.take(8))
    error = as_user_error(caught.value)
    # Example 495 has id 5 + 495 in its third place.
    assert "record 495" in str(error) and "id 500" in str(error)
    assert "small.txt" in str(error) and error.exit_code == 2


def test_other_features(tmp_path):
    path = tmp_path / "pretrain_data.tfrecord-0-of-1"
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0] * LENGTH))
    for features in ({"input_ids": feature}, {"image": feature}, {}):
        example = tf.train.Example(features=tf.train.Features(feature=features))
        path.write_bytes(tfrecord.frame(example.SerializeToString()))
        text, code = error_of(dataset, str(path))
        assert f"{path}: record 0 at byte 0 has no int64 feature input_ids" in text
        assert code == 65
    path.write_bytes(tfrecord.frame(b"\xff\xff\xff"))
    assert "not a tf.train.Example" in error_of(dataset, str(path))[0]


def test_errors_of_others_are_left_alone():
    assert as_user_error(ValueError("something else")) is None
