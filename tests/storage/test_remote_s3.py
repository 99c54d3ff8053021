# SPDX-License-Identifier: Apache-2.0
"""What a bucket of S3 holds that a file system does not."""

import os
from pathlib import Path

import pytest
import s3fs

from electra_tf import paths
from electra_tf.errors import UserError
from electra_tf.storage import remote, remote_ranges
from electra_tf.storage.lock import RunLock
from electra_tf.storage.new_folder import check_free
from electra_tf.storage.remote_run import RunFolder
from tests.helpers import memory_bucket
from tests.helpers.object_store import object_store


@pytest.fixture(scope="module")
def running():
    with object_store() as store:
        yield store


@pytest.fixture
def store(running, tmp_path, monkeypatch):
    """An empty bucket and an empty cache."""
    memory_bucket.empty(tmp_path, monkeypatch)
    for name, value in running.env.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    if found := running.files.find("bucket"):
        running.files.rm(found)
    yield running
    s3fs.S3FileSystem.clear_instance_cache()


def place(key):
    return paths.local_of(f"s3://bucket/{key}")


def test_folders_that_the_console_made_are_no_files(store):
    for folder in ("data", "data/corpus", "data/corpus/empty", "data/none"):
        store.make_folder(folder)
    store.files.pipe_file("bucket/data/corpus/a.txt", b"a")
    store.files.pipe_file("bucket/data/corpus/below/b.txt", b"b")
    corpus = place("data/corpus")
    assert set(remote.listing(corpus)) == {"a.txt", "below/b.txt"}
    assert remote.names_in(place("data")) == ["corpus"]
    assert remote.expand(f"{corpus}/*") == [f"{corpus}/a.txt"]
    for _ in range(2):  # also onto the copies
        remote.fetch(corpus)
        remote.fetch(place("data"))
        assert Path(corpus, "a.txt").read_bytes() == b"a"
        assert Path(corpus, "below/b.txt").read_bytes() == b"b"
    assert not os.path.exists(remote.fetch(place("data/none")))
    check_free(place("data/none"))  # as an empty directory here


def test_a_run_in_a_folder_that_the_console_made_keeps_its_lock(store):
    store.make_folder("run")
    run = place("run")
    with RunLock(run) as lock, RunFolder(run, writes=True):
        Path(run, "own").mkdir()
        lock.check()


def test_what_no_disk_can_hold_is_named(store):
    """Nothing here is removed for it."""
    store.files.pipe_file("bucket/x/a/b/c", b"1")
    remote.fetch(place("x"))
    store.files.pipe_file("bucket/x/a", b"both")
    with pytest.raises(UserError, match="s3://bucket/x/a is .* and a folder"):
        remote.fetch(place("x"))
    assert Path(place("x"), "a/b/c").read_bytes() == b"1"


def test_a_file_takes_the_place_of_a_folder_that_is_gone(store):
    store.files.pipe({"bucket/x/a/b/c": b"1"})
    remote.fetch(place("x"))
    store.files.rm_file("bucket/x/a/b/c")
    store.files.pipe_file("bucket/x/a", b"2")
    remote.fetch(place("x"))
    assert Path(place("x"), "a").read_bytes() == b"2"
    # But not of one that holds what did not come from there.
    Path(place("y"), "z").mkdir(parents=True)
    Path(place("y"), "z", "own").touch()
    store.files.pipe_file("bucket/y/z", b"2")
    with pytest.raises(UserError, match="the copy of s3://bucket/y/z") as caught:
        remote.fetch(place("y"))
    assert caught.value.exit_code == 73
    assert Path(place("y"), "z", "own").exists()


def test_an_object_that_vanishes_is_named(store, monkeypatch):
    store.files.pipe_file("bucket/x", b"1")
    listing = remote.listing

    def and_then_it_goes(path):
        found = listing(path)
        store.files.rm_file("bucket/x")
        return found

    monkeypatch.setattr(remote, "listing", and_then_it_goes)
    with pytest.raises(UserError, match="^s3://bucket/x is gone") as caught:
        remote.fetch(place("x"))
    assert "cache" not in str(caught.value)


def test_a_shard_that_is_removed_while_it_is_read_is_named(store):
    store.files.pipe({"bucket/a": b"123456", "bucket/b": b"123456"})
    paths = [place("a"), place("b")]
    assert remote_ranges.read_ranges(paths, [0, 1], [2, 3]) == [b"12", b"23"]
    store.files.rm_file("bucket/b")
    with pytest.raises(UserError, match="^s3://bucket/b cannot be read any") as caught:
        remote_ranges.read_ranges(paths, [0, 1], [2, 3])
    assert caught.value.exit_code == 65
