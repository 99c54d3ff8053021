# SPDX-License-Identifier: Apache-2.0
"""One writer per run directory, with flock and on file systems that have none."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from electra_tf.errors import UserError
from electra_tf.storage import lease
from electra_tf.storage.files import atomic_write
from electra_tf.storage.lock import RunLock
from tests.helpers.runs import ROOT

HOLD = f"""
import errno, fcntl, sys, time
sys.path.insert(0, {str(ROOT)!r})
from electra_tf.storage import lease
from electra_tf.storage.lock import RunLock
def no_flock(*args):
    raise OSError(errno.ENOTSUP, "not supported")
if sys.argv[2] == "lease":
    fcntl.flock = no_flock
    lease.BEAT_SECONDS = 0.05
with RunLock(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["flock", "lease"])
def kind(request, monkeypatch):
    if request.param == "lease":
        without_flock(monkeypatch)
    return request.param


def without_flock(monkeypatch, code=errno.ENOTSUP):
    def fail(*args):
        raise OSError(code, "not supported")

    monkeypatch.setattr(fcntl, "flock", fail)


class Holder:
    """Another process that holds the lock of a directory."""

    def __init__(self, directory, kind):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(directory), kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "locked\n"

    def __enter__(self):
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def refusal(directory):
    started = time.monotonic()
    with pytest.raises(UserError, match="is in use by") as caught:
        RunLock(directory).__enter__()
    assert caught.value.exit_code == 75
    assert time.monotonic() - started < 2
    return str(caught.value)


def test_a_second_writer_is_refused_and_a_dead_one_replaced(tmp_path, kind):
    with Holder(tmp_path, kind) as process:
        assert f"process {process.pid} on {os.uname().nodename}" in refusal(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with RunLock(tmp_path) as lock:
            assert json.loads(lock.path.read_text())["pid"] == os.getpid()
            refusal(tmp_path)
    with RunLock(tmp_path):  # given back, so it can be had again
        pass
    assert os.listdir(tmp_path) == ["run.lock"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_ways_of_having_no_flock(tmp_path, monkeypatch, code):
    without_flock(monkeypatch, code)
    with RunLock(tmp_path):
        assert (tmp_path / "run.lock.lease").exists()
        refusal(tmp_path)


def test_other_errors_of_flock_are_told(tmp_path, monkeypatch):
    without_flock(monkeypatch, errno.EIO)
    with pytest.raises(UserError, match="cannot write") as caught:
        RunLock(tmp_path).__enter__()
    assert caught.value.exit_code == 73


def of_another_machine(path, age):
    """A lease whose holder's life cannot be seen from here."""
    path.write_text(json.dumps(lease.this_process() | {"host": "far", "token": "t"}))
    then = time.time() - age
    os.utime(path, (then, then))


def test_a_lease_of_another_machine_holds_while_it_is_touched(tmp_path, monkeypatch):
    without_flock(monkeypatch)
    path = tmp_path / "run.lock.lease"
    of_another_machine(path, age=lease.STALE_SECONDS - 5)
    with monkeypatch.context() as patch:
        patch.setattr(lease.time, "sleep", lambda _: os.utime(path))  # a beat
        refusal(tmp_path)
    assert json.loads(path.read_text())["host"] == "far"
    of_another_machine(path, age=lease.STALE_SECONDS + 5)
    with RunLock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == ["run.lock"]


def test_one_who_was_killed_elsewhere_is_waited_for(tmp_path, monkeypatch, capsys):
    """A pod's successor is in another namespace; 75 would end the job for good."""
    without_flock(monkeypatch)
    monkeypatch.setattr(lease, "STALE_SECONDS", 3.0)
    path = tmp_path / "run.lock.lease"
    of_another_machine(path, age=0)
    with RunLock(tmp_path):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path} is locked by process {os.getpid()} on far, which may" in line
    assert "at most 3 seconds" in line


@pytest.mark.parametrize("change", [{"boot": "x"}, {"namespace": "x"}, {"host": "x"}])
def test_in_doubt_a_holder_is_alive(change):
    """A pid says nothing about another boot, container or machine."""
    gone = lease.this_process() | {"pid": 2**22 + 1}
    assert lease.is_dead(gone)
    assert not lease.is_dead(gone | change)
    assert not lease.is_dead(lease.this_process())
    # The same pid, given to another process since.
    assert lease.is_dead(lease.this_process() | {"started": "1"})


def test_a_broken_lease_is_not_taken_at_once(tmp_path, monkeypatch):
    without_flock(monkeypatch)
    path = tmp_path / "run.lock.lease"
    path.write_text('{"pid": ')
    assert lease.Lease(path, lambda: None).acquire() is not None
    os.utime(path, (1, 1))
    with RunLock(tmp_path):
        pass


def take_at_once(path, count=8):
    """Lets threads try to get one lease; returns those that did."""
    start = threading.Barrier(count)
    taken = []

    def take(one):
        start.wait()
        if one.acquire() is None:
            taken.append(one)

    leases = [lease.Lease(path, lambda: None) for _ in range(count)]
    threads = [threading.Thread(target=take, args=(one,)) for one in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return taken


def test_many_take_over_one_stale_lease(tmp_path):
    path = tmp_path / "lease"
    for _ in range(60):
        of_another_machine(path, age=lease.STALE_SECONDS + 5)
        taken = take_at_once(path)
        assert len(taken) == 1
        taken[0].release()
        assert os.listdir(tmp_path) == []


def test_a_slow_successor_finds_the_lease_replaced(tmp_path, monkeypatch):
    """Between finding a lease stale and replacing it, anything may happen."""
    path = tmp_path / "lease"
    of_another_machine(path, age=lease.STALE_SECONDS + 5)
    slow, fast = (lease.Lease(path, lambda: None) for _ in range(2))
    succeed = slow._succeed

    def succeed_late(after):
        assert fast.acquire() is None
        return succeed(after)

    monkeypatch.setattr(slow, "_succeed", succeed_late)
    assert slow.acquire().holder["token"] == fast._holder["token"]
    assert json.loads(path.read_text())["token"] == fast._holder["token"]
    fast.release()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [None, "", '{"pid": 1'])
def test_a_successor_that_died_is_succeeded(tmp_path, content):
    path = tmp_path / "lease"
    of_another_machine(path, age=lease.STALE_SECONDS + 5)
    died = tmp_path / "lease.after-t"
    of_another_machine(died, age=0)
    died.write_text(died.read_text().replace('"t"', '"u"'))
    if content is not None:
        died.write_text(content)
    assert lease.Lease(path, lambda: None).acquire() is not None  # may be at work
    os.utime(died, (1, 1))
    taken = take_at_once(path)
    assert len(taken) == 1
    assert os.listdir(tmp_path) == ["lease"]
    taken[0].release()
    assert os.listdir(tmp_path) == []


def test_a_holder_does_not_end_a_lease_that_is_taken_over(tmp_path):
    path = tmp_path / "lease"
    holder, other = (lease.Lease(path, lambda: None) for _ in range(2))
    assert holder.acquire() is None
    os.utime(path, (1, 1))
    release_first = other._last

    def last_after_release():
        holder.release()
        assert path.exists()
        return release_first()

    assert other._age(path) > lease.STALE_SECONDS
    other._last = last_after_release
    assert other._succeed(other._after(holder._holder))
    assert json.loads(path.read_text())["token"] == other._holder["token"]


def test_a_lease_that_vanished(tmp_path, monkeypatch):
    """Made again, unless its holder slept so long that another may have had it."""
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.02)
    lost = threading.Event()
    path = tmp_path / "lease"
    holder = lease.Lease(path, lost.set)
    assert holder.acquire() is None
    path.unlink()
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert path.exists() and not lost.is_set()
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.0)
    while not lost.is_set() and time.monotonic() < deadline:
        path.unlink(missing_ok=True)
        time.sleep(0.05)
    assert lost.is_set()
    holder.release()


def test_a_holder_that_lost_its_lease_ends(tmp_path):
    with Holder(tmp_path, "lease") as process:
        of_another_machine(tmp_path / "run.lock.lease", age=0)
        stderr = process.communicate(timeout=20)[1]
        assert process.returncode == 75
        assert "has taken" in stderr
    assert json.loads((tmp_path / "run.lock.lease").read_text())["host"] == "far"


def test_a_lease_is_kept_fresh(tmp_path):
    with Holder(tmp_path, "lease"):
        path = tmp_path / "run.lock.lease"
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 20
        while path.stat().st_mtime < 1 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert path.stat().st_mtime > time.time() - 60


def test_a_file_where_a_directory_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write") as caught:
        atomic_write(tmp_path / "file" / "config.json", "{}")
    assert caught.value.exit_code == 73


def test_a_removed_lock_is_noticed(tmp_path):
    with RunLock(tmp_path) as first:
        first.check()
        first.path.unlink()
        with pytest.raises(UserError, match="was removed while") as caught:
            first.check()
        assert caught.value.exit_code == 75
        with RunLock(tmp_path) as second:
            second.check()
            with pytest.raises(UserError, match="was removed while"):
                first.check()
    first.check()  # not held any more: nothing to say


def test_a_lock_removed_between_opening_and_locking(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def slow_flock(file, operation):
        if not calls:
            (tmp_path / "run.lock").unlink()
        calls.append(operation)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", slow_flock)
    with RunLock(tmp_path) as lock:
        lock.check()
        with pytest.raises(UserError, match="in use"):
            RunLock(tmp_path).__enter__()
    assert len(calls) == 3
