# SPDX-License-Identifier: Apache-2.0
"""Shards -> batches: which examples, in which order, mixtures, and damaged data."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data import record_index, tfrecord
from electra_tf.data.batch_order import batch_indices
from electra_tf.errors import as_user_error
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
    opened,
    same,
    write_shards,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """50 examples in shards of 20, 0, 29 and 1."""
    return write_shards(tmp_path_factory.mktemp("data"), [20, 0, 29, 1])


OTHER = Vocabulary((*VOCAB.tokens[:-1], "changed"), "other.txt")


# Which examples form batch k.


def test_examples_arrive_unchanged_in_the_order_of_files(shards):
    found = batches(shards, 10, batch_size=5, shuffle=False)
    ids, mask, segments = example_arrays(range(50))
    for name, values in zip(NAMES, (ids, mask, segments), strict=True):
        assert np.array_equal(np.concatenate([b[name] for b in found]), values)


def test_steps_of_another_size_continue_at_the_same_example(shards):
    straight = [n for batch in batches(shards, 20) for n in numbers_of(batch)]
    after = {"start_step": 5, "examples_before": 30, "batch_size": 4}
    found = [n for batch in batches(shards, 6, **after) for n in numbers_of(batch)]
    assert found == straight[30:54]


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
    for size in [*range(1, 12), 1000, 10007]:
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
        for name, values in whole[k].items():
            joined = np.concatenate([part[name] for part in parts[3 * k : 3 * k + 3]])
            np.testing.assert_array_equal(joined, values)


def test_a_worker_reads_its_own_rows_only(shards, monkeypatch):
    options = {"start_step": 5, "repeated_masks": "fixed"}
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


def test_a_corpus_smaller_than_a_batch(tmp_path):
    numbers = numbers_of(batches(write_shards(tmp_path, [4]), 2)[0])
    assert sorted(numbers[:4]) == [0, 1, 2, 3]


# Files of others.


def test_shards_of_the_original(tmp_path):
    """Many small ones, with records written through protobuf."""
    for shard in range(100):
        path = tmp_path / f"pretrain_data.tfrecord-{shard}-of-100"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in zip(*example_arrays([shard] * (shard % 2)), strict=True):
                features = {
                    name: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                    for name, values in zip(NAMES, row, strict=True)
                }
                features = tf.train.Features(feature=features)
                writer.write(tf.train.Example(features=features).SerializeToString())
    (tmp_path / "other-file").write_text("not a shard")
    pattern = f"{tmp_path}/pretrain_data.tfrecord*"
    numbers = [n for b in batches(pattern, 5, batch_size=10) for n in numbers_of(b)]
    assert sorted(numbers) == list(range(1, 100, 2))


def test_patterns_joined_by_commas(tmp_path):
    one, two = write_shards(tmp_path / "1", [3]), write_shards(tmp_path / "2", [5])
    both = batches(f"{one},{two}", 1, batch_size=8, shuffle=False)[0]
    assert numbers_of(both) == [0, 1, 2, 0, 1, 2, 3, 4]


def test_encoded_examples_are_those_of_protobuf():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 1 << 21, (40, 50)) >> rng.integers(0, 20, (40, 50))
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
        assert len(record) == example.ByteSize()


# Data that do not fit.


@pytest.mark.parametrize(
    "counts, manifest, options, words",
    [
        ([], False, {}, "no file matches"),
        ([0, 0], True, {}, "no examples"),
        ([3], True, {"max_seq_length": 32}, f'"max_seq_length": {LENGTH}'),
        ([3], False, {"max_seq_length": 32}, f'"max_seq_length": {LENGTH}'),
        ([3], True, {"vocab": OTHER}, OTHER.sha256[:16]),
    ],
)
def test_data_that_do_not_fit(tmp_path, counts, manifest, options, words):
    pattern = write_shards(tmp_path, counts, manifest=manifest)
    text, code = error_of(dataset, pattern, **options)
    assert words in text and code == 2


def test_unfinished_build(tmp_path):
    pattern = write_shards(tmp_path, [3], manifest=False)
    (tmp_path / "job.json").write_text("{}")
    assert "not finished" in error_of(dataset, pattern)[0]


def test_one_shard_of_another_length(tmp_path):
    pattern = write_shards(tmp_path, [3, 3], manifest=False)
    odd = tmp_path / "pretrain_data.tfrecord-00001-of-00002"
    examples = tfrecord.encode_examples(*(np.ones((3, 8), int),) * 3)
    odd.write_bytes(b"".join(map(tfrecord.frame, examples)))
    text, _ = error_of(dataset, pattern)
    assert f"{odd}: record 0 at byte 0 has 8 input_ids" in text


def test_ids_beyond_the_vocabulary(tmp_path):
    pattern = write_shards(tmp_path, [800], manifest=False)
    small = Vocabulary(VOCAB.tokens[:500], "small.txt")
    found = dataset(pattern, vocab=small, shuffle=False, batch_size=100)
    with pytest.raises(tf.errors.OpError) as caught:
        list(found.take(8))
    error = as_user_error(caught.value)
    # Example 495 has id 5 + 495 in its third place.
    assert "record 495" in str(error) and "input_ids of 500" in str(error)
    assert "small.txt" in str(error) and error.exit_code == 2


@pytest.mark.parametrize(("name", "value"), [("segment_ids", 3), ("input_mask", 7)])
def test_impossible_values_are_named(tmp_path, name, value):
    arrays = dict(zip(NAMES, example_arrays(range(40)), strict=True))
    arrays[name][30, 5] = value
    path = tmp_path / "pretrain_data.tfrecord-0-of-1"
    records = tfrecord.encode_examples(*arrays.values())
    path.write_bytes(b"".join(map(tfrecord.frame, records)))
    with pytest.raises(tf.errors.OpError) as caught:
        list(dataset(str(path), shuffle=False, batch_size=10).take(4))
    error = as_user_error(caught.value)
    assert f"{path}: record 30 at byte " in str(error)
    assert f"has {name} of {value}" in str(error) and error.exit_code == 2


@pytest.mark.parametrize(
    ("first_id", "more", "words"),
    [
        (2, "masked_lm_positions", "has masked_lm_positions, as BERT's"),
        (7, None, "begins with id 7 instead of [CLS] (id 2)"),
    ],
)
def test_examples_of_other_programs_are_refused(tmp_path, first_id, more, words):
    """They would be parsed, and trained on, without an error."""
    rows = dict(zip(NAMES, example_arrays([3]), strict=True))
    rows["input_ids"][0, 0] = first_id
    if more:
        rows[more] = [[1, 2]]
    features = {
        name: tf.train.Feature(int64_list=tf.train.Int64List(value=values[0]))
        for name, values in rows.items()
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    path = tmp_path / "tf_examples.tfrecord"
    path.write_bytes(tfrecord.frame(example.SerializeToString()))
    text, code = error_of(dataset, str(path))
    assert f"{path}: record 0 at byte 0 {words}" in text and code == 65
    assert text.count("\n") <= 2


# Data sets that are mixed.


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """The patterns of data sets of 30, 300 and 80 examples."""
    folder = tmp_path_factory.mktemp("data")
    counts = {"a": [30], "b": [100, 0, 200], "c": [80]}
    return [write_shards(folder / name, of) for name, of in counts.items()]


def numbers(data, count, **options):
    return [n for batch in batches(data, count, **options) for n in numbers_of(batch)]


def test_a_mixture_of_one_is_that_data_set(mixed):
    plain = batches(mixed[1], 20)
    assert all(map(same, plain, batches([mixed[1]], 20)))
    assert all(map(same, plain, batches({mixed[1]: 0.5}, 20)))


def shares(data, alpha=1.0):
    return opened(data, sampling_alpha=alpha).shares()


@pytest.mark.parametrize("alpha", [1.0, 0.7, 0.3, 0.0])
def test_shares_by_size(mixed, alpha):
    expected = np.array([30, 300, 80]) ** alpha
    np.testing.assert_allclose(
        shares(mixed, alpha), expected / expected.sum(), atol=2e-5
    )


def test_shares_by_weight(mixed):
    given = dict(zip(mixed, [1, 2.5, 0.5], strict=True))
    np.testing.assert_allclose(shares(given), np.array([1, 2.5, 0.5]) / 4, atol=2e-5)
    # Of the largest alone are numbers of 80 and more.
    found = np.array(numbers(given, 700, batch_size=100))
    assert abs((found >= 80).mean() - 2.5 / 4 * 220 / 300) < 0.01


def test_any_batch_of_a_mixture_and_any_part_of_it(mixed):
    options = {"sampling_alpha": 0.5}
    straight = batches(mixed, 40, **options)
    for start in (1, 39):
        again = batches(mixed, 1, start_step=start, **options)[0]
        assert same(again, straight[start])
    parts = batches(mixed, 2, start_step=5, num_replicas=6, **options)
    own = {"start_step": 5, "num_replicas": 6, "replica_slice": (1, 2), **options}
    for one, other in zip(
        batches(mixed, 2, **own), parts[3:6] + parts[9:], strict=True
    ):
        assert same(one, other)


def test_epochs_of_a_mixture_are_those_of_each_data_set(mixed):
    source = opened({mixed[0]: 1, mixed[1]: 3})
    assert source.epochs() == [30 / 0.25, 300 / 0.75]
    first, second = source.describe(60, 1200)
    assert "25.00% of the batches, 30 examples; 0.50 of 10.00 epochs" in first
    assert "75.00%" in second and "0.15 of 3.00 epochs" in second


def test_a_damaged_part_of_a_mixture_is_named(tmp_path, mixed):
    pattern = write_shards(tmp_path, [50])
    [path] = tmp_path.glob("pretrain_data*")
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    text, code = error_of(dataset, [mixed[0], f"{tmp_path}/nothing*"])
    assert f"{tmp_path}/nothing*" in text and code == 2
    source = opened([mixed[0], pattern])
    text, code = error_of(source.parts[1].read, np.arange(50))
    assert f"{path}: record 49 at byte" in text and code == 65


def test_token_counts_of_a_mixture(tmp_path):
    """What a unigram generator starts from follows the shares."""
    patterns = []
    for name, size in (("a", 10), ("b", 1000)):
        patterns.append(write_shards(tmp_path / name, [size]))
        counts = np.zeros(len(VOCAB), int)
        counts[5 if name == "a" else 6] = 7 * size
        np.savetxt(tmp_path / name / record_index.TOKEN_COUNTS, counts, "%d")

    def counts_of(data, **options):
        return opened(data, **options).token_counts(len(VOCAB))[5:7].tolist()

    assert counts_of(patterns, sampling_alpha=0.0) == [7 * 505, 7 * 505]
    assert counts_of(",".join(patterns)) == [70, 7000]
