# SPDX-License-Identifier: Apache-2.0
"""One writer per run directory."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest

from electra_tf.errors import UserError
from electra_tf.storage.lock import Lock
from tests.helpers.runs import ROOT, refused

HOLD = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from electra_tf.storage import lock
with lock.Lock(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def check_is_refused(directory, *expected):
    with pytest.raises(UserError, match="is in use by") as caught:
        Lock(directory).__enter__()
    assert caught.value.exit_code == 75
    assert all(part in str(caught.value) for part in expected)


def test_a_live_holder_refuses_and_a_dead_one_is_replaced(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            name = os.uname().nodename
            check_is_refused(tmp_path, f"process {holder.pid} on {name} since")
        finally:
            holder.send_signal(signal.SIGKILL)
    with Lock(tmp_path) as lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()
        check_is_refused(tmp_path)
    with Lock(tmp_path):
        pass
    assert os.listdir(tmp_path) == []


def test_a_lock_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    refused(Lock(tmp_path / "file" / "run").__enter__, "cannot write", code=73)
    with monkeypatch.context() as patch:
        no_locks = OSError(errno.ENOLCK, "No locks available")
        patch.setattr(fcntl, "flock", mock.Mock(side_effect=no_locks))
        refused(Lock(tmp_path).__enter__, "(flock): No locks available", code=73)


def test_a_removed_lock_is_noticed(tmp_path):
    with Lock(tmp_path) as first:
        first.check()
        first.path.unlink()
        refused(first.check, "removed", code=75)
        with Lock(tmp_path) as second:
            second.check()
            refused(first.check, "removed")


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "other").write_text("keep")
    (tmp_path / "run.lock").symlink_to("other")
    refused(Lock(tmp_path).__enter__, "run.lock: it is a symbolic link", code=73)
    assert (tmp_path / "other").read_text() == "keep"


@pytest.mark.parametrize("content", [b"[1]", b"7", b'{"pid": 1}', b"\xff", b'"pid"'])
def test_any_content_of_a_lock(tmp_path, content):
    (tmp_path / "run.lock").write_bytes(content)
    with Lock(tmp_path) as lock:
        lock.path.write_bytes(content)
        check_is_refused(tmp_path, "by another process")


def test_a_lock_removed_between_opening_and_locking(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def slow_flock(file, operation):
        if not calls:
            (tmp_path / "run.lock").unlink()
        calls.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    with Lock(tmp_path) as lock:
        lock.check()
        check_is_refused(tmp_path)
    assert len(calls) == 3
