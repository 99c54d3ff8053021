# SPDX-License-Identifier: Apache-2.0
"""Mutual exclusion on file systems without flock: a file that its holder keeps fresh.

The holder makes `run.lock.lease` (O_EXCL, which network file systems honour too) and
touches it every few seconds. Somebody else may take it over when its holder is known to
be dead (same machine, no such process) or has not touched it for a minute. Ages are
measured by the file system's own clock, so clocks of machines need not agree.

Weaker than flock: a holder that is suspended for more than a minute loses the lease. It
notices when it wakes, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

BEAT_SECONDS = 5.0
STALE_SECONDS = 60.0


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
    here = this_process()
    places = ("host", "boot", "namespace")
    if not here["started"] or any(holder.get(k) != here[k] for k in places):
        return False
    return _start_of(holder["pid"]) != holder.get("started")


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

    def acquire(self) -> dict[str, Any] | None:
        """Takes the lease; returns None, or what is known of who has it.

        Raises `OSError` when the file cannot be written.
        """
        for _ in range(3):
            if self._create():
                self._thread = threading.Thread(target=self._beat, daemon=True)
                self._thread.start()
                return None
            holder = self._read()
            if not (is_dead(holder) or self._age() > STALE_SECONDS):
                return holder
            self._set_aside(holder)
        return self._read()

    def release(self) -> None:
        """Gives the lease back."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        if self._is_ours():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _create(self) -> bool:
        try:
            with open(self.path, "x", encoding="utf-8") as f:
                json.dump(self._holder, f)
        except FileExistsError:
            return False
        return True

    def _read(self) -> dict[str, Any]:
        try:
            holder = json.loads(_text(str(self.path)))
        except ValueError:
            return {}  # gone, or made this moment and not written yet
        return holder if isinstance(holder, dict) else {}

    def _is_ours(self) -> bool:
        return self._read().get("token") == self._holder["token"]

    def _age(self) -> float:
        """Seconds since the lease was touched; 0 when it is gone."""
        probe = self.path.with_name(f"{self.path.name}.{self._holder['token']}")
        try:
            probe.touch()
            return probe.stat().st_mtime - self.path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)

    def _set_aside(self, stale: dict[str, Any]) -> None:
        """Removes a stale lease, unless somebody else has just replaced it."""
        mine = self.path.with_name(f"{self.path.name}.{self._holder['token']}")
        try:
            os.rename(self.path, mine)
        except FileNotFoundError:
            return
        try:
            moved = json.loads(_text(str(mine)) or "{}")
        except ValueError:
            moved = {}
        if moved.get("token") != stale.get("token"):
            with contextlib.suppress(OSError):
                os.link(mine, self.path)  # fails if there is one again
        mine.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if self._is_ours() or (not self.path.exists() and self._create()):
                    os.utime(self.path)
                elif self._read():
                    self._on_loss()
            except OSError:
                continue  # a hiccup of the network; the next beat comes
