# SPDX-License-Identifier: Apache-2.0
"""One writer per run directory, with flock and on file systems that have none."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

from electra_tf.errors import UserError
from electra_tf.storage import lock as lock_module
from electra_tf.storage.lock import Lock
from tests.helpers.runs import ROOT

HOLD = f"""
import fcntl, socket, sys, time
sys.path.insert(0, {str(ROOT)!r})
from electra_tf.storage import lock
def no_flock(*args):
    raise OSError(int(sys.argv[2]), "not supported")
if int(sys.argv[2]):
    fcntl.flock = no_flock
if sys.argv[3] == "elsewhere":
    socket.gethostname = lambda: "elsewhere"
lock.BEAT_SECONDS, lock.EXPIRY_SECONDS = 0.2, 4.0
with lock.Lock(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


def without_flock(monkeypatch, code):
    def fail(*_):
        raise OSError(code, "not supported")

    monkeypatch.setattr(fcntl, "flock", fail)


def check_is_refused(directory, *expected):
    with pytest.raises(UserError, match="is in use by") as caught:
        Lock(directory).__enter__()
    assert caught.value.exit_code == 75
    assert all(part in str(caught.value) for part in expected)


@pytest.mark.parametrize(
    ("error", "host"), [(0, ""), (errno.ENOTSUP, ""), (errno.ENOLCK, "elsewhere")]
)
def test_a_live_holder_refuses_and_a_dead_one_is_replaced(
    tmp_path, monkeypatch, error, host
):
    """With flock, and on file systems without it."""
    monkeypatch.setattr(lock_module, "BEAT_SECONDS", 0.2)
    monkeypatch.setattr(lock_module, "EXPIRY_SECONDS", 4.0)
    if error:
        without_flock(monkeypatch, error)
    command = [sys.executable, "-c", HOLD, str(tmp_path), str(error), host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "locked\n"
            name = host or os.uname().nodename
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
    with pytest.raises(UserError, match="cannot write") as caught:
        Lock(tmp_path / "file" / "run").__enter__()
    assert caught.value.exit_code == 73
    without_flock(monkeypatch, errno.EIO)
    with pytest.raises(UserError, match="cannot write") as caught:
        Lock(tmp_path).__enter__()
    assert caught.value.exit_code == 73


def test_a_removed_lock_is_noticed(tmp_path):
    with Lock(tmp_path) as first:
        first.check()
        first.path.unlink()
        with pytest.raises(UserError, match="removed") as caught:
            first.check()
        assert caught.value.exit_code == 75
        with Lock(tmp_path) as second:
            second.check()
            with pytest.raises(UserError, match="removed"):
                first.check()


def test_a_soft_lock_that_was_taken_over_is_noticed(tmp_path, monkeypatch):
    without_flock(monkeypatch, errno.ENOTSUP)
    with Lock(tmp_path) as lock:
        lock.check()
        (tmp_path / "run.lock.lease").unlink()
        with pytest.raises(UserError, match="taken over") as caught:
            lock.check()
    assert caught.value.exit_code == 75


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
