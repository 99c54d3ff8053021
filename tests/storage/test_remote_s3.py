# SPDX-License-Identifier: Apache-2.0
"""What a bucket of S3 holds that a file system does not."""

import os
from pathlib import Path

import pytest
import s3fs

from electra_tf import paths
from electra_tf.errors import UserError
from electra_tf.storage import remote
from electra_tf.storage.atomic_folder import check_free
from electra_tf.storage.mirror import Mirror
from tests.helpers import memory_bucket
from tests.helpers.object_store import object_store

pytestmark = pytest.mark.thorough


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


def test_folders_made_in_the_console_are_not_files(store):
    for folder in ("data", "data/corpus", "data/corpus/empty", "data/none", "run"):
        store.make_folder(folder)
    store.files.pipe_file("bucket/data/corpus/a.txt", b"a")
    store.files.pipe_file("bucket/data/corpus/below/b.txt", b"b")
    corpus = place("data/corpus")
    assert set(remote.listing(corpus)) == {"a.txt", "below/b.txt"}
    assert remote.names_in(place("data")) == ["corpus"]
    assert remote.expand(f"{corpus}/*") == [f"{corpus}/a.txt"]
    for _ in range(2):  # the second time onto the copies
        memory_bucket.forget_answers()
        remote.fetch(place("data"))
        assert Path(corpus, "a.txt").read_bytes() == b"a"
        assert Path(corpus, "below/b.txt").read_bytes() == b"b"
    assert not os.path.exists(remote.fetch(place("data/none")))
    check_free(place("data/none"))  # as an empty directory here
    with Mirror(place("run")) as folder:
        folder.check()


def test_objects_removed_while_they_are_read_are_named(store, monkeypatch):
    store.files.pipe_file("bucket/a", b"123456")
    listing = remote.listing

    def remove_after_listing(path):
        found = listing(path)
        store.files.rm_file("bucket/a")
        return found

    monkeypatch.setattr(remote, "listing", remove_after_listing)
    with pytest.raises(UserError, match="^s3://bucket/a is gone"):
        remote.fetch(place("a"))
