# SPDX-License-Identifier: Apache-2.0
"""Damaged shards: what is found, and where; nothing of one is read silently."""

import random
import shutil
import struct

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data import tfrecord
from electra_tf.errors import as_user_error
from tests.helpers.forked_runs import eagerly, metrics_of, pretrain
from tests.helpers.numbered_examples import (
    dataset,
    error_of,
    numbers_of,
    opened,
    write_shards,
)
from tests.helpers.runs import check_ok, check_refused, tiny, write_tiny_data

RECORDS = 40


@pytest.fixture
def shard(tmp_path):
    """A shard of 40 examples with a manifest, its content, and where records begin."""
    write_shards(tmp_path, [RECORDS])
    path = tmp_path / "pretrain_data.tfrecord-00000-of-00001"
    offsets = tfrecord.scan(path)
    return path, path.read_bytes(), offsets.tolist()


def read_all(path):
    """Reads every record; returns the numbers."""
    for index in path.parent.glob(".records*"):
        index.unlink()
    source = opened(f"{path.parent}/pretrain*").parts[0]
    ids, *_ = source.read(np.arange(len(source)))
    return numbers_of({"input_ids": ids})


def test_flipped_bits(shard):
    path, content, offsets = shard
    rng = random.Random(3)
    for _ in range(150):
        position = rng.randrange(len(content))
        data = bytearray(content)
        data[position] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        record = next(i for i in range(RECORDS) if position < offsets[i + 1])
        text, code = error_of(read_all, path)
        assert f"{path}: record {record} at byte {offsets[record]} is damaged" in text
        assert code == 65


@pytest.mark.parametrize("manifest", [True, False])
def test_truncations(shard, manifest):
    path, content, offsets = shard
    if not manifest:
        (path.parent / "manifest.json").unlink()
    rng = random.Random(4)
    cuts = [rng.randrange(1, len(content)) for _ in range(120)]
    cuts += rng.choices(offsets[1:-1], k=30)
    for size in cuts:
        path.write_bytes(content[:size])
        whole = sum(offset <= size for offset in offsets[1:])
        if manifest or size not in offsets:
            text, code = error_of(read_all, path)
            assert str(path) in text and code == 65
            lost = f"{whole} of {RECORDS} records can be read"
            assert f"record {whole} at" in text or lost in text
        else:
            assert read_all(path) == list(range(whole))


@pytest.mark.parametrize("length", [0, 5, 2**20, 2**40, 2**64 - 1])
def test_forged_lengths(shard, length):
    """A length with a correct checksum, which crashes TensorFlow's reader."""
    path, content, offsets = shard
    forged = struct.pack("<Q", length)
    forged += struct.pack("<I", tfrecord.masked_crc(forged))
    start = offsets[11]
    path.write_bytes(content[:start] + forged + content[start + len(forged) :])
    text, code = error_of(read_all, path)
    # A short one sends the reader to a place where no record begins.
    assert str(path) in text and ("record 11" in text or "record 12" in text)
    assert code == 65


def test_a_shard_that_was_replaced_by_one_of_the_same_size(shard):
    """The stored index has its size and other offsets."""
    path, content, offsets = shard
    assert len(opened(str(path)).parts[0]) == RECORDS
    [index] = path.parent.glob(".records*")
    # Two records in the place of one, and one in the place of two.
    table = np.fromfile(index, np.int64)
    places = np.flatnonzero(table == offsets[8])
    for other, record in ((offsets[7] + 20, 7), (offsets[9], 7)):
        table[places] = other
        table.tofile(index)
        text, code = error_of(opened(str(path)).parts[0].read, np.arange(RECORDS))
        assert f"{path}: record {record} at byte {offsets[record]}" in text
        assert code == 65
    assert "other records than when they were counted" in text


def test_a_missing_shard(tmp_path):
    pattern = write_shards(tmp_path, [4, 4])
    gone = tmp_path / "pretrain_data.tfrecord-00001-of-00002"
    gone.unlink()
    text, code = error_of(dataset, pattern)
    assert f"{gone} is missing" in text and code == 65


def test_a_damaged_manifest(tmp_path):
    pattern = write_shards(tmp_path, [4])
    (tmp_path / "manifest.json").write_text("{")
    message, code = error_of(dataset, pattern)
    assert "manifest.json cannot be read" in message and code == 65


def test_damage_found_while_training(shard):
    """The error passes through tf.data with its message and exit code."""
    path, content, offsets = shard
    found = iter(dataset(str(path), shuffle=False, batch_size=4))
    numbers_of(next(found))
    # In place: the reader is at work ahead of us.
    with open(path, "r+b") as f:
        f.seek(offsets[30] + 20)
        f.write(bytes([content[offsets[30] + 20] ^ 1]))
    with pytest.raises(tf.errors.OpError) as caught:
        for _ in range(10):
            next(found)
    error = as_user_error(caught.value)
    assert f"{path}: record 30 at byte {offsets[30]} is damaged" in str(error)
    assert error.exit_code == 65


def test_a_damaged_record_in_a_whole_run(tmp_path):
    hparams = tiny(num_train_steps=14)  # An epoch has 12.5.
    data = write_tiny_data(tmp_path / "data")
    path = data / "pretrain_tfrecords" / "pretrain_data.tfrecord-1-of-2"
    shutil.copy(path, tmp_path / "whole")
    offsets = tfrecord.scan(path)
    content = bytearray(path.read_bytes())
    content[offsets[3] + 40] ^= 4
    path.write_bytes(content)

    run = pretrain(data, "run", hparams, before=eagerly).wait()
    says = f"{path}: record 3 at byte {offsets[3]} is damaged", "leave this shard out"
    check_refused(run, 65, *says)
    # The other shard alone: it is left out by the pattern.
    others = str(path).replace("1-of-2", "[!1]-of-2")
    hparams["pretrain_tfrecords"] = others
    run = pretrain(data, "run", hparams, before=eagerly).wait()
    check_ok(run, "Data: 50 examples")
    rows = metrics_of(data / "models" / "run")
    assert [row["step"] for row in rows] == list(range(1, 15))
