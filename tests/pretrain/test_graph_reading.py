# SPDX-License-Identifier: Apache-2.0
"""Batches read by operations alone are those that Python reads, elsewhere too."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data.permutation import batch_indices, keys_of_epochs
from electra_tf.errors import EXIT_CONFIG, EXIT_DAMAGED, as_user_error
from electra_tf.pretrain import graph_reading
from tests.helpers.numbered_examples import (
    VOCAB,
    batches,
    numbers_of,
    same,
    write_shards,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """50 examples in shards of 20, 0, 29 and 1."""
    return write_shards(tmp_path_factory.mktemp("data"), [20, 0, 29, 1])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"start_step": 10**6},
        {"start_step": 3, "num_replicas": 6, "replica_slice": (1, 3)},
        {"start_step": 70, "examples_before": 13},
        {"random_token_share": 0.1, "repeated_masks": "fixed", "seed": 2**31 - 1},
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


@pytest.mark.parametrize("size", [1, 2, 3, 37, 1000, 64_123_457, 2**40 + 1])
def test_the_orders_are_the_same(size):
    for step, seed in ((0, 0), (1, 42), (10**6 + 1, 2**31 - 1)):
        expected = batch_indices(step, 100, size, seed)
        place = step * 100 + np.arange(100)
        first = place[0] // size
        keys = keys_of_epochs(seed, first, 101)[place // size - first]
        permute = tf.function(graph_reading._permuted, reduce_retracing=False)
        found = permute(tf.constant(place % size), size, tf.constant(keys))
        assert found.numpy().tolist() == expected.tolist()


ELSEWHERE = """
import os, subprocess, sys, tensorflow as tf
from tests.helpers.numbered_examples import dataset, numbers_of

serve = '''
import sys, tensorflow as tf
server = tf.distribute.Server({"worker": ["localhost:0"]}, start=True)
print(server.target, flush=True)
sys.stdin.read()
'''
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
server = subprocess.Popen([sys.executable, "-c", serve], **pipes)
target = server.stdout.readline().strip().removeprefix("grpc://")
tf.config.experimental_connect_to_host(target)
with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
    made = iter(dataset(sys.argv[1], num_batches=13, in_graph=True))
    print([numbers_of(next(made)) for _ in range(12)], flush=True)
server.kill()
os._exit(0)  # Nobody is there to say goodbye to.
"""


def test_a_host_of_another_process_reads(shards):
    """Where Python cannot be called, the graph is all that there is."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, shards],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    expected = [numbers_of(batch) for batch in batches(shards, 12)]
    assert done.stdout.splitlines() == [str(expected)], done.stderr


def error_of(pattern, **options):
    with pytest.raises(tf.errors.OpError) as caught:
        batches(pattern, 20, in_graph=True, **options)
    error = as_user_error(caught.value)
    assert error, caught.value
    return str(error), error.exit_code


@pytest.mark.parametrize("damaged", [-30, -4, -1])
def test_what_is_damaged_is_named(tmp_path, damaged):
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


def test_the_epochs_that_it_has(shards, monkeypatch):
    monkeypatch.setattr(graph_reading, "_MAX_EPOCHS", 2)
    text, code = error_of(shards)  # 120 examples of 50
    assert code == EXIT_CONFIG and "Run the same command again" in text
