# SPDX-License-Identifier: Apache-2.0
"""Copies of files in a bucket, here one in memory."""

import os
from pathlib import Path

import pytest

from electra_tf import paths
from electra_tf.errors import UserError
from electra_tf.storage import remote
from tests.helpers import memory_bucket
from tests.helpers.memory_bucket import place
from tests.helpers.runs import refused


@pytest.fixture
def memory(tmp_path, monkeypatch):
    return memory_bucket.empty(tmp_path, monkeypatch)


def test_every_name_can_be_escaped(tmp_path):
    names = ["plain", "a[1]", "b,c", "d*?", "[,]", ",]", "[!x]"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    for name in names:
        pattern = paths.escape(str(tmp_path / name)) + "/*"
        assert remote.expand(pattern) == [str(tmp_path / name / "file")]
        both = remote.expand(f"{pattern},{paths.escape(str(tmp_path / 'plain'))}/f*,")
        assert len(both) == (1 if name == "plain" else 2)


def test_globs_in_a_bucket(memory, tmp_path):
    for name in ("a-0", "a-1", "b-0", "below/a-2"):
        memory.pipe_file(f"bucket/data/{name}", b"xyz")
    found = remote.expand(f"{place('data/a*')},{tmp_path}/*,{place('none/*')}")
    assert found == [place("data/a-0"), place("data/a-1")]
    assert not os.path.exists(found[0])
    assert remote.sizes_of(found) == [3, 3]


def fetch(path):
    """As another process does."""
    memory_bucket.forget_answers()
    return remote.fetch(path)


def test_a_copy_follows_the_bucket(memory):
    path = place("folder")
    assert not os.path.exists(fetch(path))
    memory.pipe({"bucket/folder/a": b"1", "bucket/folder/below/b": b"2"})
    assert fetch(path) == path
    assert Path(path, "a").read_bytes() == b"1"
    assert Path(path, "below/b").read_bytes() == b"2"
    before = os.stat(f"{path}/below/b").st_mtime_ns
    memory.pipe_file("bucket/folder/a", b"3")  # of the same size
    Path(path, "own").touch()
    fetch(path)
    assert Path(path, "a").read_bytes() == b"3"
    assert os.stat(f"{path}/below/b").st_mtime_ns == before  # not fetched again
    assert not Path(path, "own").exists()
    Path(path, "below/b").write_bytes(b"x")  # changed by mistake
    memory.rm_file("bucket/folder/a")
    fetch(path)
    assert Path(path, "below/b").read_bytes() == b"2"
    assert not Path(path, "a").exists()
    assert Path(fetch(f"{path}/below/b")).read_bytes() == b"2"  # a file alone


@pytest.mark.parametrize("key", ["folder/../../../escaped", "folder/a/../b", ".."])
def test_keys_that_lead_out_of_the_cache_are_refused(memory, monkeypatch, key):
    """Stores take any key."""
    facts = {"name": f"/bucket/{key}", "size": 1, "type": "file"}
    found = lambda *args, **kwargs: {facts["name"]: facts}  # noqa: E731
    monkeypatch.setattr(memory, "find", found)
    monkeypatch.setattr(memory, "glob", found)
    for read in (remote.fetch, remote.names_in, remote.expand):
        with pytest.raises(UserError, match=r"has the key .*\.\. leads out"):
            read(place("folder" if key != ".." else ""))


def test_changed_files_are_uploaded(memory):
    path = Path(place("run"))
    path.mkdir(parents=True)
    (path / "a").write_text("1")
    (path / "b").write_text("2")
    remote.put(path, ["a", "b"])
    assert memory.cat_file("bucket/run/a") == b"1"
    made = memory.created("bucket/run/a")
    (path / "b").write_text("22")
    remote.put(path, ["a", "b"])
    assert memory.cat_file("bucket/run/b") == b"22"
    assert memory.created("bucket/run/a") == made
    remote.remove(path, ["a", "never there"])
    assert not memory.exists("bucket/run/a")


def test_a_cache_that_cannot_be_written(memory, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="ELECTRA_TF_CACHE"):
        remote.fetch(place("there"))


def test_an_object_removed_while_it_is_fetched_is_named(memory, monkeypatch):
    memory.pipe_file("bucket/a", b"1")
    listing = remote.listing

    def remove_after_listing(path):
        found = listing(path)
        memory.rm_file("bucket/a")
        return found

    monkeypatch.setattr(remote, "listing", remove_after_listing)
    refused(lambda: remote.fetch(place("a")), "memory://bucket/a is gone", code=2)
