# SPDX-License-Identifier: Apache-2.0
"""Records are dealt to the shards of a group in turn."""

import tracemalloc

from electra_tf.data import shard_writing, tfrecord


def test_memory_is_independent_of_the_size_of_a_part(tmp_path, monkeypatch):
    """A compressed file is a single part, however large it is."""
    monkeypatch.setattr(shard_writing, "_HELD_BYTES", 100_000, raising=False)
    records = [str(i).encode() * 100 for i in range(20_000)]
    parts = [str(tmp_path / name) for name in "ab"]
    for path, own in zip(parts, (records[:19_000], records[19_000:]), strict=True):
        with open(path, "wb") as f:
            f.writelines(map(tfrecord.frame, own))
    shards = [str(tmp_path / f"shard-{i}") for i in range(3)]
    tracemalloc.start()
    files = shard_writing._deal(parts, shards)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sum(map(len, records)) / 4
    for i, (path, file) in enumerate(zip(shards, files, strict=True)):
        assert list(tfrecord.read_records(path)) == records[i::3]
        assert file["examples"] == len(records[i::3])
