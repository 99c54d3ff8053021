# SPDX-License-Identifier: Apache-2.0
"""A run's directory in a bucket, here one in memory."""

import contextlib
import functools
import json
import os
import shutil
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest

from electra_tf import paths
from electra_tf.errors import UserError
from electra_tf.storage import lock as lock_module
from electra_tf.storage import mirror
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.lock import Lock
from electra_tf.storage.mirror import Mirror, Outputs, bring_model
from tests.helpers import memory_bucket
from tests.helpers.runs import refused


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The place of memory://bucket/run in an empty cache."""
    memory_bucket.empty(tmp_path, monkeypatch)
    return memory_bucket.place("run")


def there():
    """The names in the bucket's run, without the lock."""
    found = fsspec.filesystem("memory").find("bucket/run")
    names = (name.removeprefix("/bucket/run/") for name in found)
    return {name for name in names if not name.startswith("run.lock")}


def files_of(*steps):
    suffixes = ("data-00000-of-00001", "index", "json")
    return {f"model.ckpt-{step}.{suffix}" for step in steps for suffix in suffixes}


def train(run, *steps, keep=2):
    """Saves steps; returns the step it started from."""
    with Mirror(run, keep=keep, log=lambda _: None) as folder:
        checkpoints = Checkpoints(run, keep=keep, mirror=folder, log=lambda _: None)
        found = checkpoints.newest_intact()
        for step in steps:
            checkpoints.save(step, {"w": np.full(3, step, np.float32)})
    return found and found.step


def forget(run):
    """Another machine: its cache is empty."""
    shutil.rmtree(run)
    shutil.rmtree(Path(paths.cache_root()).with_name("versions"))


def test_saves_go_up_and_come_down(run):
    assert train(run, 1, 2, 3) is None
    assert there() == files_of(2, 3) | {"checkpoint"}
    assert train(run, 4) == 3
    forget(run)
    assert train(run) == 4
    # Only the newest came down; the older one stays in the bucket all the same.
    assert files_of(3).isdisjoint(os.listdir(run))
    assert there() == files_of(3, 4) | {"checkpoint"}
    forget(run)
    bring_model(run)
    assert set(os.listdir(run)) == files_of(4) | {"checkpoint"}
    forget(run)
    mirror._bring_model.cache_clear()
    bring_model(f"{run}/model.ckpt-3")
    assert set(os.listdir(run)) == files_of(3) | {"checkpoint"}


def test_a_checkpoint_deleted_from_the_bucket_is_uploaded_again(run):
    with Mirror(run, keep=2) as folder:
        Checkpoints(run, keep=2, mirror=folder).save(1, {"w": np.zeros(3, np.float32)})
        folder.upload()
        before = there()
        memory = fsspec.filesystem("memory")
        for name in memory.find("bucket/run"):
            if "ckpt" in name:
                memory.rm_file(name)
        folder.upload()
        assert there() == before


def test_a_checkpoint_that_was_not_uploaded_is_dropped(run):
    """The bucket counts, even on the machine that was ahead of it."""
    train(run, 1)
    mirror._bring_model.cache_clear()
    Checkpoints(run).save(2, {"w": np.zeros(3, np.float32)})
    Path(run, "run.lock").write_text('{"pid": 1}')  # left by a kill
    bring_model(run)
    assert files_of(2).isdisjoint(os.listdir(run))
    Checkpoints(run).save(2, {"w": np.zeros(3, np.float32)})
    assert train(run, 2) == 1
    assert there() == files_of(1, 2) | {"checkpoint"}


@pytest.mark.parametrize("keep", [1, 3])
def test_a_damaged_checkpoint_does_not_count_as_kept(run, keep):
    """Otherwise the intact ones would be removed."""
    train(run, 5, 10, 20, keep=2)
    forget(run)
    memory = fsspec.filesystem("memory")
    name = "bucket/run/model.ckpt-20.data-00000-of-00001"
    good = memory.cat_file(name)
    memory.pipe_file(name, b"x" + good[1:])
    assert train(run, 15, keep=keep) == 10
    kept = {1: (15,), 3: (10, 15)}[keep]
    assert there() == files_of(*kept, 20) | {"checkpoint"}
    forget(run)
    if keep == 3:  # The damaged step is saved again.
        assert train(run, 20, keep=keep) == 15
        assert memory.cat_file(name) == good
        return
    assert train(run, 25, keep=keep) == 15
    assert there() == files_of(25) | {"checkpoint"}


class KilledError(BaseException):
    """Stands for kill -9."""


@pytest.mark.parametrize("same_machine", [True, False])
@pytest.mark.parametrize("saved", [(1, 2), ()])
@pytest.mark.parametrize("operation", range(8))
def test_a_kill_between_any_two_requests_loses_nothing(
    run, operation, saved, same_machine
):
    train(run, *saved)
    memory = fsspec.filesystem("memory")
    left = [operation]

    def limited(method, path, *args, **kwargs):
        if "run.lock" not in str(args) + str(path):
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
        return method(path, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KilledError):
        for name in ("put_file", "pipe_file", "rm_file"):
            method = getattr(memory, name)
            patch.setattr(memory, name, functools.partial(limited, method))
        train(run, 3)
    if not same_machine:
        forget(run)
    step = train(run)
    assert (
        step == 3
        if "model.ckpt-3.json" in there()
        else step == max(saved, default=None)
    )
    assert train(run, 3, 4) == step
    assert there() == files_of(3, 4) | {"checkpoint"}


def test_one_writer_and_any_number_of_readers(run):
    with Mirror(run):
        refused(Lock(run).__enter__, "in use by process", code=75)
        with Mirror(run, writes=False):
            pass
    train(run, 1)  # The lock is free again.


def held_elsewhere(run, beat=0):
    """The lock of another process in the bucket; returns what describes it."""
    holder = {"pid": 1, "host": "elsewhere", "since": "today", "id": "a", "beat": beat}
    lock_module._BucketLock(Path(run), holder, None)._write(7, holder)
    return holder


def test_a_writer_on_another_machine_refuses(run, monkeypatch):
    held_elsewhere(run)
    monkeypatch.setattr(time, "sleep", lambda _: held_elsewhere(run, beat=1))
    refused(Lock(run).__enter__, "in use by process 1 on elsewhere", code=75)
    assert os.listdir(run) == ["run.lock"]


def test_the_lock_of_a_writer_killed_on_this_machine_is_free(run):
    holder = held_elsewhere(run)
    os.makedirs(run)
    Path(run, "run.lock").write_text(json.dumps(holder))
    with Lock(run) as lock:
        lock.check()


def test_the_lock_of_a_silent_writer_expires(run, monkeypatch):
    held_elsewhere(run)
    monkeypatch.setattr(lock_module, "EXPIRY_SECONDS", 0.0)
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.0)
    with Lock(run) as lock:
        lock.check()


def test_a_writer_whose_lock_expired_writes_nothing_more(run):
    with pytest.raises(UserError, match="taken over") as caught:
        with Mirror(run) as folder:
            held_elsewhere(run)
            folder.upload()
    assert caught.value.exit_code == 75


def test_a_store_that_ignores_conditional_writes_is_refused(run, monkeypatch):
    memory = fsspec.filesystem("memory")
    write = memory.pipe_file
    monkeypatch.setattr(memory, "pipe_file", lambda *args, **_: write(*args))
    refused(lambda: train(run, 1), "ignores conditional writes", code=73)
    assert not memory.find("bucket/run")


def test_readers_on_the_machine_of_a_run_use_its_files(run):
    """They are newer than the bucket, and are not touched."""
    train(run, 1)
    with Mirror(run):
        own = Path(run, "own")
        own.touch()
        bring_model(run)
        assert own.exists()


@pytest.mark.parametrize("failures", [3, 99])
def test_a_failed_request_is_retried_three_times(run, failures, monkeypatch):
    monkeypatch.setattr(mirror, "_WAITS", (0, 0, 0))
    with Mirror(run, log=lambda _: None) as folder:
        Checkpoints(run, log=lambda _: None).save(1, {"w": np.zeros(3, np.float32)})
        store = type(fsspec.filesystem("memory"))
        find, calls = store.find, []

        def silent(*args, **kwargs):
            calls.append(args)
            if len(calls) <= failures:
                raise TimeoutError("the store is silent")
            return find(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(store, "find", silent)
            if failures < 4:
                folder.upload()
            else:
                refused(folder.upload, "the store is silent", code=73)
        assert (files_of(1) <= there()) == (failures < 4)


@pytest.mark.parametrize("in_bucket", [True, False])
def test_a_removed_directory_leaves_nothing(run, tmp_path, in_bucket):
    folder = Path(run) if in_bucket else tmp_path / "run"
    with Mirror(folder, log=lambda _: None) as held:
        Checkpoints(folder, log=lambda _: None).save(1, {"w": np.zeros(3, np.float32)})
        (folder / "below").mkdir()
        (folder / "below/file").touch()
        held.upload()
        held.remove()
        refused(Lock(folder).__enter__, "in use by process")
        held.check()
    assert not folder.exists()
    assert not fsspec.filesystem("memory").find("bucket/run")
    assert train(folder, 2) is None


def test_outputs_of_several_processes(run):
    memory = fsspec.filesystem("memory")
    memory.pipe({"bucket/run/a_old": b"1", "bucket/run/b_old": b"2"})
    with Outputs(run, "a_", resumes=True) as outputs:
        assert os.listdir(run) == ["a_old"]
        for name in ("a_new", "a_old", "b_old"):
            Path(run, name).write_text("of this process")
        outputs.__enter__()  # Keeps what has changed here.
        outputs.upload()
        assert memory.cat_file("bucket/run/a_new") == b"of this process"
        assert memory.cat_file("bucket/run/a_old") == b"of this process"
        assert memory.cat_file("bucket/run/b_old") == b"2"
        memory.pipe_file("bucket/run/a_old", b"of another")
        outputs.__enter__()
        assert Path(run, "a_old").read_bytes() == b"of another"
        Path(run, "a_last").touch()
    assert memory.exists("bucket/run/a_last")


def test_a_file_that_may_grow_is_uploaded_from_memory(run, monkeypatch):
    """gcsfs sends `Content-Range: bytes a-b/size`, with the size of before."""
    memory, metrics = fsspec.filesystem("memory"), Path(run, "metrics.jsonl")
    plain = memory.put_file

    def put_file(source, key):
        assert source != str(metrics)
        plain(source, key)

    monkeypatch.setattr(memory, "put_file", put_file)
    with Mirror(run, log=lambda _: None) as folder:
        Checkpoints(run, log=lambda _: None).save(1, {"w": np.zeros(3, np.float32)})
        for text in ("1\n", "1\n2\n"):
            metrics.write_text(text)
            folder.upload()
            assert there() == files_of(1) | {"checkpoint", "metrics.jsonl"}
            assert memory.cat_file("bucket/run/metrics.jsonl") == text.encode()
