# SPDX-License-Identifier: Apache-2.0
"""A bucket in this process's memory, and an empty cache of what is in buckets."""

import fsspec

from electra_tf import paths
from electra_tf.storage import mirror, remote


def empty(tmp_path, monkeypatch):
    """fsspec's file system in memory, with nothing but the bucket."""
    monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "cache"))
    forget_answers()
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe_file("bucket/there", b"")
    return memory


def forget_answers():
    """As a new process, which asks the store again."""
    remote.fetch.cache_clear()
    mirror._bring_model.cache_clear()


def place(key):
    """Where the cache has what is in the bucket under a key."""
    return paths.local_of(f"memory://bucket/{key}")
