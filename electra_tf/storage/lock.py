# SPDX-License-Identifier: Apache-2.0
"""One process at a time writes into a run directory.

Light imports only, so that a second writer is refused before TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from electra_tf.errors import EXIT_LOCKED, UserError
from electra_tf.paths import shown
from electra_tf.storage.files import cannot_write, flock

if TYPE_CHECKING:
    from filelock import SoftFileLease

NAME = "run.lock"  # prefix of the lock's files: those of the soft lock, too
BEAT_SECONDS = 5.0
EXPIRY_SECONDS = 60.0


def this_process() -> dict[str, Any]:
    """What identifies this process, here and on other machines."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as f:
            # A pid means the same process only in one boot and one namespace.
            machine = f"{f.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        machine = ""
    pid = os.getpid()
    started = _start_of(pid)
    host = socket.gethostname()
    return {"pid": pid, "host": host, "machine": machine, "started": started}


def _start_of(pid: int) -> str:
    """When a process started, in the kernel's ticks; "" if it does not run."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            # Field 22 of proc(5), counted after the command's name.
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def is_alive(holder: dict[str, Any]) -> bool | None:
    """Whether a process still runs; None for one on another machine."""
    if not holder.get("machine") or holder["machine"] != this_process()["machine"]:
        return None
    return _start_of(holder["pid"]) == holder["started"]


def take(
    attempt: Callable[[], dict[str, Any] | None], place: str | os.PathLike
) -> dict[str, Any] | None:
    """Takes a lock, if need be once its holder has been silent for a minute.

    Only a holder that is alive refuses: a process of this machine, or one that
    refreshes the lock meanwhile.

    Args:
      attempt: takes the lock and returns None, or describes its holder: `this_process`
        and whatever changes when the holder refreshes the lock.
      place: the locked directory, for a line on the console.

    Returns: None, or the live holder.
    """
    first = None
    while (holder := attempt()) is not None:
        if is_alive(holder) or first not in (None, holder):
            return holder
        if first is None:
            print(
                shown(f"{place} is locked by {_name(holder)}, which may have been "),
                f"killed: waiting at most {EXPIRY_SECONDS:.0f} seconds for its next "
                "refresh.",
                sep="",
                file=sys.stderr,
                flush=True,
            )
        first = holder
        time.sleep(min(1.0, BEAT_SECONDS))
    return None


def _name(holder: dict[str, Any]) -> str:
    if "pid" not in holder:
        return "another process"
    since = f" since {holder['since']}" if "since" in holder else ""
    return f"process {holder['pid']} on {holder['host']}{since}"


def in_use(place: str | os.PathLike, holder: dict[str, Any], flag: str) -> UserError:
    """The error (75) for a directory that another process has locked."""
    return UserError(
        f"{place} is in use by {_name(holder)}.\nWait for it, stop it, or choose "
        f"another {flag}.",
        EXIT_LOCKED,
    )


def end_process(place: str | os.PathLike) -> None:
    """Ends a process whose lock another one has taken over."""
    print(
        f"error: another process has taken {place} over, because this one did not run "
        "for a minute. What was saved is intact.",
        file=sys.stderr,
        flush=True,
    )
    os._exit(EXIT_LOCKED)


class RunLock:
    """One writer per directory, held through `flock` on `run.lock`.

    The kernel frees the lock when its process ends, however it ends. Where the file
    system has no flock, filelock's soft lock takes its place: a file that its holder
    refreshes, and that expires after a minute. Use as a context manager; entering
    raises `UserError` (75) when another process holds the lock.

    Args:
      flag: the flag that chooses another directory.
      leaves_file: whether `run.lock` stays when the lock is released.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        flag: str = "--model-name",
        leaves_file: bool = True,
    ):
        self.path = Path(directory) / NAME
        self._flag = flag
        self._leaves_file = leaves_file
        self._file = None
        self._lease: SoftFileLease | None = None

    def __enter__(self) -> RunLock:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+", encoding="utf-8")
            is_ours = flock(self._file)
            if is_ours is None:
                is_ours = self._take_lease()
        except OSError as error:
            if self._file:
                self._file.close()
            raise cannot_write(self.path, error) from error
        if not is_ours:
            holder = self._holder()
            self._file.close()
            raise in_use(self.path.parent, holder, self._flag)
        if not self._is_in_place():  # removed between opening and locking
            self.__exit__()
            return self.__enter__()
        since = datetime.datetime.now().isoformat(timespec="seconds")
        self._write(json.dumps(this_process() | {"since": since}))
        return self

    def _is_in_place(self) -> bool:
        """Whether the locked file is the one that others would lock."""
        try:
            same = os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False
        return same and (self._lease is None or self._lease.is_lock_held_by_us)

    def check(self) -> None:
        """Raises `UserError` (75) when the lock was lost: others may write now."""
        if self._file and not self._is_in_place():
            raise UserError(
                f"{self.path} was removed or taken over while this process held it, so "
                "another one may write there.\nNothing more is saved. Leave that file "
                "to the process that made it, and run the command again.",
                EXIT_LOCKED,
            )

    def _take_lease(self) -> bool:
        from filelock import SoftFileLease, Timeout

        lease = SoftFileLease(
            self.path.with_name(f"{NAME}.lease"),
            lease_duration=EXPIRY_SECONDS,
            heartbeat_interval=BEAT_SECONDS,
            on_compromise=lambda _: end_process(self.path.parent),
        )

        def attempt() -> dict[str, Any] | None:
            try:
                lease.acquire(timeout=0)
            except Timeout:
                holder = self._holder()
                with contextlib.suppress(FileNotFoundError):
                    holder["beat"] = os.stat(lease.lock_file).st_mtime_ns
                return holder
            self._lease = lease
            return None

        return take(attempt, self.path.parent) is None

    def __exit__(self, *_) -> None:
        self._write("")
        if not self._leaves_file and self._is_in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()  # a process that has opened it opens it again
        if self._lease:
            self._lease.release()
            self._lease = None
        with contextlib.suppress(OSError):
            self._file.close()
        self._file = None

    def _write(self, text: str) -> None:
        try:
            self._file.truncate(0)
            self._file.write(text)
            self._file.flush()
        except OSError:
            pass  # The text is for people; on a full disk the lock itself still holds.

    def _holder(self) -> dict[str, Any]:
        self._file.seek(0)
        try:
            holder = json.loads(self._file.read())
        except ValueError:
            return {}
        return holder if isinstance(holder, dict) else {}
