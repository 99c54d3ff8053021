# SPDX-License-Identifier: Apache-2.0
"""Mutual exclusion on file systems without flock: a file that its holder keeps fresh.

The holder makes `run.lock.lease` (O_EXCL, which network file systems honour too) and
touches it every few seconds. Somebody else may take it over when its holder is known to
be dead (same machine, no such process) or has not touched it for a minute. Ages are
measured by the file system's own clock, so clocks of machines need not agree.

Every lease has a token that is never used again. A lease changes hands, or ends, only
through the file `run.lock.lease.after-TOKEN`: who makes that (O_EXCL again) is the one
successor, and moves it over the lease, so that at no time there is none. When a
successor dies before that, it is succeeded in the same way.

Weaker than flock: a holder that is suspended for more than a minute loses the lease. It
notices when it wakes, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.paths import shown

BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0
_SECONDS_BETWEEN_LOOKS = 1.0


class Seen(NamedTuple):
    """What was seen of who has a lock.

    Attributes:
      holder: what it says of itself.
      age: seconds since its last beat.
      beat: another one after each beat, and of each holder.
    """

    holder: dict[str, Any]
    age: float
    beat: Any


def this_process() -> dict[str, Any]:
    """What tells this process from all others, here and elsewhere."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        # The same pid means the same process only in one boot and one namespace.
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "namespace": _link("/proc/self/ns/pid"),
        "started": _start_of(os.getpid()),
    }


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; "" if there is none."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    # Field 22 of proc(5); the command's name, which may hold blanks, is cut off.
    return fields[19] if len(fields) > 19 and fields[0] != "Z" else ""


def is_dead(holder: dict[str, Any]) -> bool:
    """Whether it is certain that the process has ended; False when in doubt."""
    return _is_seen(holder) and _start_of(holder["pid"]) != holder.get("started")


def _is_seen(holder: dict[str, Any]) -> bool:
    """Whether the life of a process can be seen from here."""
    here = this_process()
    places = ("host", "boot", "namespace")
    return bool(here["started"]) and all(holder.get(k) == here[k] for k in places)


def take(attempt: Callable[[], Seen | None], place: str) -> dict[str, Any] | None:
    """Takes a lock, if need be when its holder has not been heard of for a minute.

    Whoever comes after a kill finds a lock that is fresh, and cannot tell the dead from
    the living, unless they were on this machine: it waits for the next beat. So a
    start that is refused was refused by a living process.

    Args:
      attempt: takes it and returns None, or what it has seen.
      place: what is locked, for a line on the console.

    Returns: None, or the holder, which lives.
    """
    first, began = None, time.monotonic()
    while (seen := attempt()) is not None:
        first = first or seen
        # No clock may keep us here.
        is_late = time.monotonic() - began > 2 * STALE_SECONDS
        if seen.beat != first.beat or _is_seen(seen.holder) or is_late:
            return seen.holder
        if seen is first:
            unknown = {"pid": "?", "host": "?"}
            name = "process {pid} on {host}".format(**unknown | seen.holder)
            seconds = max(0, round(STALE_SECONDS - seen.age))
            print(
                shown(f"{place} is locked by {name}, which may have been killed: "),
                f"waiting for a sign of it, at most {seconds} seconds.",
                sep="",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return None


class Lease:
    """The right to write into a directory.

    Args:
      path: the lease's file.
      on_loss: called in a thread when somebody else took the lease over.
    """

    def __init__(self, path: str | os.PathLike, on_loss: Callable[[], None]):
        self.path = Path(path)
        self._on_loss = on_loss
        self._holder = this_process() | {"token": uuid.uuid4().hex}
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> Seen | None:
        """Takes the lease; returns None, or what was seen of who has it.

        Raises `OSError` when the file cannot be written.
        """
        seen = Seen({}, 0.0, None)
        for _ in range(10):
            if self._create(self.path):
                return self._hold()
            last, holder = self._last()
            try:
                beat = holder.get("token"), last.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # gone in between
            age = self._age(last)
            if age is None:
                continue
            seen = Seen(holder, age, beat)
            if not (is_dead(holder) or age > STALE_SECONDS):
                return seen
            if self._succeed(self._after(holder)):
                return self._hold()
        return seen

    def release(self) -> None:
        """Gives the lease back."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        after = self._after(self._holder)
        with contextlib.suppress(OSError):
            if not self._create(after):
                return  # somebody is taking it over
            if self._is_ours():
                self.path.unlink()
            after.unlink()

    def _hold(self) -> None:
        # What the dead left. Their leases are no more, so nobody can need it.
        for orphan in self.path.parent.glob(f"{self.path.name}.after-*"):
            if orphan != self._after(self._holder):
                orphan.unlink(missing_ok=True)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def _create(self, path: Path) -> bool:
        try:
            with open(path, "x", encoding="utf-8") as f:
                json.dump(self._holder, f)
        except FileExistsError:
            return False
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink()  # on a full disk, made but not written
            raise
        return True

    def _after(self, holder: dict[str, Any]) -> Path:
        """The file of the one who comes after `holder`."""
        return self.path.with_name(f"{self.path.name}.after-{holder.get('token')}")

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            holder = json.loads(_text(str(path)))
        except ValueError:
            holder = {}
        if isinstance(holder, dict) and "token" in holder:
            return holder
        # Made this moment and not written yet, or damaged, or gone.
        with contextlib.suppress(OSError):
            return {"token": f"unreadable-{path.stat().st_ino}"}
        return {}

    def _last(self) -> tuple[Path, dict[str, Any]]:
        """The lease, or the last of those who were about to replace it."""
        path, holder = self.path, self._read(self.path)
        while self._after(holder).exists():
            path = self._after(holder)
            holder = self._read(path)
        return path, holder

    def _succeed(self, after: Path) -> bool:
        """Replaces a stale lease; False when somebody else was faster."""
        if not self._create(after):
            return False
        # The lease may have been replaced, and `after` moved, since it was looked at.
        # If not, then it stays as it is now: only who made `after` may replace it.
        if self._last()[0] == after:
            with contextlib.suppress(FileNotFoundError):
                os.replace(after, self.path)
                return True
        after.unlink(missing_ok=True)
        return False

    def _is_ours(self) -> bool:
        return self._read(self.path).get("token") == self._holder["token"]

    def _age(self, path: Path) -> float | None:
        """Seconds since a file was touched; None when it is gone."""
        probe = self.path.with_name(f"{self.path.name}.{self._holder['token']}")
        try:
            probe.touch()
            return probe.stat().st_mtime - path.stat().st_mtime
        except FileNotFoundError:
            return None
        finally:
            probe.unlink(missing_ok=True)

    def _beat(self) -> None:
        fresh = time.clock_gettime(time.CLOCK_BOOTTIME)
        while not self._ended.wait(BEAT_SECONDS):
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            try:
                if self._is_ours():
                    os.utime(self.path)
                    fresh = now
                elif "pid" in self._read(self.path):
                    self._on_loss()
                else:
                    self.path.stat()  # unreadable, by a hiccup of the network?
            except FileNotFoundError:
                if now - fresh >= STALE_SECONDS:
                    self._on_loss()  # somebody may have had it and given it back
                with contextlib.suppress(OSError):
                    self._create(self.path)
            except OSError:
                continue
