# SPDX-License-Identifier: Apache-2.0
"""Batches read by graph operations alone are those that Python reads."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data.batch_order import batch_indices, keys_of_epochs
from electra_tf.errors import EXIT_CONFIG, EXIT_DAMAGED, as_user_error
from electra_tf.pretrain import pretrain_data
from tests.helpers.numbered_examples import VOCAB, batches, dataset, same, write_shards


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """50 examples in shards of 20, 0, 29 and 1."""
    return write_shards(tmp_path_factory.mktemp("data"), [20, 0, 29, 1])


@pytest.mark.parametrize(
    "options",
    [
        {"start_step": 3, "num_replicas": 6, "replica_slice": (1, 3)},
        *(
            pytest.param(options, marks=pytest.mark.thorough)
            for options in (
                {"start_step": 10**6},
                {"start_step": 70, "examples_before": 13},
                {"random_token_share": 0.1, "repeated_masks": "fixed", "seed": 7},
            )
        ),
    ],
    ids=str,
)
def test_the_batches_are_the_same(shards, options):
    ours = batches(shards, 20, in_graph=True, **options)
    theirs = batches(shards, 20, **options)
    assert len(ours) == len(theirs) == 20 * (2 if "num_replicas" in options else 1)
    for a, b in zip(ours, theirs, strict=True):
        assert same(a, b)
        assert {k: v.dtype for k, v in a.items()} == {k: v.dtype for k, v in b.items()}


@pytest.mark.parametrize("size", [1, 37, 64_123_457, 2**40 + 1])
def test_the_orders_are_the_same(size):
    for step, seed in ((0, 0), (1, 42), (10**6 + 1, 2**31 - 1)):
        expected = batch_indices(step, 100, size, seed)
        place = step * 100 + np.arange(100)
        first = place[0] // size
        keys = keys_of_epochs(seed, first, 101)[place // size - first]
        permute = tf.function(pretrain_data._permuted, reduce_retracing=False)
        found = permute(tf.constant(place % size), size, tf.constant(keys))
        assert found.numpy().tolist() == expected.tolist()


def test_no_operation_calls_python(shards):
    """So a host of another process can read."""
    for in_graph in (True, False):
        made = dataset(shards, num_batches=3, in_graph=in_graph)
        graph = tf.raw_ops.DatasetToGraphV2(input_dataset=made._variant_tensor)
        assert (b"PyFunc" in graph.numpy()) != in_graph


def error_of(pattern, **options):
    with pytest.raises(tf.errors.OpError) as caught:
        batches(pattern, 20, in_graph=True, **options)
    error = as_user_error(caught.value)
    assert error, caught.value
    return str(error), error.exit_code


@pytest.mark.parametrize("damaged", [-30, -1])
def test_damaged_record_is_named(tmp_path, damaged):
    pattern = write_shards(tmp_path, [10, 10], manifest=False)
    shard = sorted(tmp_path.glob("pretrain_data*"))[1]
    whole = shard.read_bytes()
    batches(pattern, 1)  # the index is made
    shard.write_bytes(whole[:damaged] + b"\0" * -damaged)
    text, code = error_of(pattern)
    assert code == EXIT_DAMAGED and "cannot be read as an example" in text
    assert f"{shard}: the record at byte" in text


def test_ids_beyond_the_vocabulary(tmp_path):
    pattern = write_shards(tmp_path, [10], manifest=False)
    tokens = VOCAB.tokens[:8]
    text, code = error_of(pattern, vocab=type(VOCAB)(tokens))
    assert code == EXIT_CONFIG and "input_ids that are not 0 to 7" in text
    assert "tfrecord-00000-of-00001: the record at byte" in text


def test_more_epochs_than_it_has_keys_of(shards, monkeypatch):
    monkeypatch.setattr(pretrain_data, "_MAX_EPOCHS", 2)
    text, code = error_of(shards)  # 120 examples of 50
    assert code == EXIT_CONFIG and "Run the same command again" in text
