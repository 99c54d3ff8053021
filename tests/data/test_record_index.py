# SPDX-License-Identifier: Apache-2.0
"""Random access to records: the index that lies beside the shards."""

import os
import shutil

import numpy as np
import pytest

from electra_tf.data import record_index, tfrecord
from electra_tf.data.record_index import RecordIndex
from electra_tf.errors import UserError
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers import memory_bucket
from tests.helpers.building import VOCAB, examples_in, succeed, write_corpus
from tests.helpers.runs import refused


@pytest.fixture
def shards(tmp_path):
    """Two shards with 5 and 3 records of various lengths."""
    made = []
    for shard, count in enumerate((5, 3)):
        path = tmp_path / "original" / f"data-{shard}"
        path.parent.mkdir(exist_ok=True)
        records = [bytes([shard, i]) * (7 * i) for i in range(count)]
        path.write_bytes(b"".join(map(tfrecord.frame, records)))
        made.append(str(path))
    return made


EXPECTED = [
    bytes([shard, i]) * (7 * i) for shard, n in ((0, 5), (1, 3)) for i in range(n)
]


@pytest.fixture
def no_scan(monkeypatch):
    """Call it to make scans for offsets fail."""

    def refuse(*_):
        raise AssertionError("the shards were scanned")

    return lambda: monkeypatch.setattr(tfrecord, "scan", refuse)


def test_stored_index_is_valid_for_copies(shards, tmp_path, no_scan):
    """Its bytes do not depend on the time."""
    place = record_index.write(shards)
    first = open(place, "rb").read()
    os.utime(shards[0], (1, 1))
    assert open(record_index.write(shards), "rb").read() == first
    shutil.copytree(tmp_path / "original", tmp_path / "copied")
    no_scan()
    index = RecordIndex([p.replace("/original/", "/copied/") for p in shards])
    assert index.read(np.arange(8)) == EXPECTED


def test_changed_shards(shards):
    record_index.write(shards)
    whole = open(shards[1], "rb").read()
    with open(shards[1], "wb") as f:
        f.write(whole + tfrecord.frame(b"new"))
    assert RecordIndex(shards).read(np.arange(9)) == [*EXPECTED, b"new"]
    # The same size, other records: an error.
    record_index.write(shards)
    other = tfrecord.frame(b"another length") + whole
    with open(shards[1], "r+b") as f:
        f.write(other[: os.path.getsize(shards[1])])
    with pytest.raises(UserError, match="damaged"):
        RecordIndex(shards).read(np.arange(9))


@pytest.mark.parametrize("has_index", [True, False])
def test_shards_in_a_bucket_are_copied(
    shards, tmp_path, monkeypatch, no_scan, has_index
):
    memory = memory_bucket.empty(tmp_path, monkeypatch)
    for path in (*shards, *([record_index.write(shards)] if has_index else [])):
        memory.put_file(path, f"bucket/{os.path.basename(path)}")
    in_bucket = [memory_bucket.place(f"data-{i}") for i in range(2)]
    for is_first in (True, False):
        if has_index or not is_first:
            no_scan()
        assert RecordIndex(in_bucket).read(np.arange(8)) == EXPECTED


def test_a_shard_that_is_gone(shards):
    index = RecordIndex(shards)
    os.unlink(shards[1])
    refused(lambda: index.read(np.arange(8)), "Do not move or remove", code=65)


def test_counts_are_those_of_the_examples(tmp_path):
    text, one = write_corpus(tmp_path / "text"), tmp_path / "one"
    flags = ["--num-out-files=3", "--max-seq-length=64", "--num-processes=2"]
    succeed(text, one, *flags)
    vocab = Vocabulary.load(str(VOCAB))
    ids, mask, _ = examples_in(one)
    expected = np.bincount(ids[mask > 0], minlength=len(vocab))
    expected[[vocab.pad_id, vocab.cls_id, vocab.sep_id, vocab.mask_id]] = 0
    pattern = f"{one}/pretrain_data.tfrecord*"
    found = record_index.token_counts_of(pattern, len(vocab))
    np.testing.assert_array_equal(found, expected)
    assert found.sum() > 1000
    # Two data sets together.
    two = shutil.copytree(one, tmp_path / "two")
    both = record_index.token_counts_of(f"{pattern},{two}/pretrain*", len(vocab))
    np.testing.assert_array_equal(both, 2 * expected)
    hidden = [path.name for path in one.glob(".*")]
    assert all(name.startswith(".records-") for name in hidden), hidden  # the index


@pytest.mark.parametrize("text", ["", "1\n2\n", "1\n2\nx\n"])
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "data").touch()
    (tmp_path / record_index.TOKEN_COUNTS).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="is not the counts of 3 tokens") as caught:
        record_index.token_counts_of(f"{tmp_path}/data", 3)
    assert caught.value.exit_code == 65
