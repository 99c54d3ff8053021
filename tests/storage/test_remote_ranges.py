# SPDX-License-Identifier: Apache-2.0
"""Ranges of what lies in a bucket, here one in memory."""

import os

import pytest

from electra_tf.errors import UserError
from electra_tf.storage import remote_ranges
from tests.helpers import memory_bucket
from tests.helpers.memory_bucket import place


@pytest.fixture
def memory(tmp_path, monkeypatch):
    return memory_bucket.empty(tmp_path, monkeypatch)


def test_ranges_that_are_close_are_one_request(memory, monkeypatch):
    data = os.urandom(200_000)
    memory.pipe({"bucket/x": data, "bucket/y": data[::-1]})
    asked = []
    read = memory.cat_ranges

    def counted(paths, starts, ends, **options):
        asked.append(len(paths))
        return read(paths, starts, ends, **options)

    monkeypatch.setattr(memory, "cat_ranges", counted)
    files = [place(name) for name in "yxxyx"]
    starts, ends = [5, 190_000, 10, 0, 20], [9, 200_000, 60, 7, 30]
    assert remote_ranges.read_ranges(files, starts, ends) == [
        {"x": data, "y": data[::-1]}[name][start:end]
        for name, start, end in zip("yxxyx", starts, ends, strict=True)
    ]
    assert asked == [3]
    memory.rm_file("bucket/y")
    with pytest.raises(UserError, match="memory://bucket/y cannot be read any more"):
        remote_ranges.read_ranges(files, starts, ends)
