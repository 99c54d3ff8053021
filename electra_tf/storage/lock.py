# SPDX-License-Identifier: Apache-2.0
"""One process at a time writes into a directory, here or in a bucket.

Light imports only, so that a second writer is refused before TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_LOCKED, UserError
from electra_tf.paths import shown, url_of
from electra_tf.storage import remote
from electra_tf.storage.files import cannot_write, flock, open_own

NAME = "run.lock"  # prefix of all files and objects of a lock
BEAT_SECONDS = 10.0
EXPIRY_SECONDS = 60.0


def is_of_lock(name: str) -> bool:
    """Whether a file or an object of a directory is its lock's."""
    return name.startswith(NAME)


class Lock:
    """The right to write into a directory, as a context manager.

    It is a `flock` on `run.lock`, which the kernel frees when the process ends, however
    it ends. For a directory in a bucket this protects the copy in the cache, and
    `_BucketLock` the bucket.

    Entering raises `UserError`: 75 when another process holds the lock, 73 where it
    cannot be written, or the file system has no flock. A process that loses an expired
    lock of a bucket ends with 75.

    Args:
      flag: the flag that chooses another directory, for messages.

    Attributes:
      removes_folder: whether the directory, which is empty then, is removed at the end.
    """

    removes_folder = False

    def __init__(self, directory: str | os.PathLike, flag: str = "--model-name"):
        self.path = Path(directory) / NAME
        self._flag = flag
        self._file = None
        self._bucket: _BucketLock | None = None

    def __enter__(self) -> Lock:
        folder, previous = self.path.parent, {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open_own(self.path, "a+b")
            is_ours = flock(self._file)
            self._file.seek(0)
            previous = _holder_in(self._file.read())  # of this one, or a killed one
            if not is_ours:
                raise self._in_use(previous)
            if not self._is_in_place():  # removed between opening and locking
                self._release()
                return self.__enter__()
            holder = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": datetime.datetime.now().isoformat(timespec="seconds"),
                "id": uuid.uuid4().hex,
            }
            if url_of(folder):
                bucket = _BucketLock(folder, holder, previous.get("id"))
                if not bucket.acquire():
                    raise self._in_use(bucket.last()[1])
                self._bucket = bucket
        except BaseException as error:
            self._release()
            if isinstance(error, OSError):
                raise cannot_write(self.path, error) from error
            raise
        # The text is for people; on a full disk the lock itself still holds.
        with contextlib.suppress(OSError):
            self._file.truncate(0)
            self._file.write(json.dumps(holder).encode())
            self._file.flush()
        return self

    def __exit__(self, *_) -> None:
        if self._bucket:
            self._bucket.release(self.removes_folder)
        if self._is_in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()  # a process that has opened it opens it again
                if self.removes_folder:
                    self.path.parent.rmdir()
        self._release()

    def check(self) -> None:
        """Raises `UserError` (75) when the lock was lost: others may write now."""
        if self._file is None:
            return
        if not self._is_in_place() or (self._bucket and not self._bucket.is_held()):
            raise UserError(
                f"{self.path} was removed or taken over while this process held it, so "
                "another one may write there.\nNothing more is saved. Leave that file "
                "to the process that made it, and run the command again.",
                EXIT_LOCKED,
            )

    def _is_in_place(self) -> bool:
        """Whether the locked file is the one that others would lock."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def _release(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):
                self._file.close()
        self._file = None

    def _in_use(self, holder: dict[str, Any]) -> UserError:
        name = "another process"
        if holder.keys() >= {"pid", "host", "since"}:
            name = "process {pid} on {host} since {since}".format(**holder)
        return UserError(
            f"{self.path.parent} is in use by {name}.\nWait for it, stop it, or choose "
            f"another {self._flag}.",
            EXIT_LOCKED,
        )


class _BucketLock:
    """The lock of a directory in a bucket, which has neither flock nor rename.

    The holder makes the object `run.lock.N` and refreshes it; N counts the holders, and
    only the greatest one counts. The next holder makes N + 1 with a conditional write
    (`If-None-Match: *`, generation 0), which only one process can do: when holder N has
    released the lock, was killed on this machine, or did not refresh it for a minute. A
    holder that finds a greater number ends; if it was suspended for that minute, it may
    write one more file as it wakes.

    Args:
      killed: the id of the last holder of the copy's lock, which this process has now.
    """

    def __init__(self, directory: Path, holder: dict[str, Any], killed: str | None):
        self._directory = directory
        self._store, self._prefix = remote.open_store(directory / NAME)
        self._holder = holder | {"beat": 0}
        self._killed = killed
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def acquire(self) -> bool:
        """Takes the lock; False if another process holds it."""
        with remote.opened(self._directory, writes=True):
            if not self._wait():
                return False
        self._thread.start()
        return True

    def is_held(self) -> bool:
        with remote.opened(self._directory, writes=True):
            return max(self._numbers(), default=0) == self._number

    def release(self, removes: bool) -> None:
        """Frees the lock for others; `removes` its object as well."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # Of any store; the lock expires.
            if self.is_held() and removes:
                self._store.rm_file(self._key(self._number))
            elif self.is_held():
                self._write(self._number, {"released": True})

    def last(self) -> tuple[int, dict[str, Any]]:
        """Number of the last holder (0: none), and its description."""
        number = max(self._numbers(), default=0)
        if not number:
            return 0, {"released": True}
        try:
            return number, _holder_in(self._store.cat_file(self._key(number)))
        except FileNotFoundError:
            return number, {}

    def _wait(self) -> bool:
        """Takes the lock when it is free or expires; False if it is refreshed."""
        start, first = time.monotonic(), None
        while True:
            number, holder = state = self.last()
            is_free = "released" in holder or holder.get("id", "") == self._killed
            is_free = is_free or time.monotonic() - start > EXPIRY_SECONDS
            if is_free and self._create(number + 1):
                return True
            if first is None:
                first = state
                _print(
                    f"{self._directory} is locked by a process that may have been "
                    f"killed: waiting at most {EXPIRY_SECONDS:.0f} s for its next "
                    "refresh."
                )
            elif state != first:
                return False
            time.sleep(min(1.0, BEAT_SECONDS))

    def _numbers(self) -> list[int]:
        names = remote.listing(self._directory)
        endings = (n.removeprefix(f"{NAME}.") for n in names if n.startswith(NAME))
        return [int(ending) for ending in endings if ending.isdigit()]

    def _key(self, number: int) -> str:
        return f"{self._prefix}.{number}"

    def _write(self, number: int, holder: dict[str, Any], **mode: str) -> None:
        self._store.pipe_file(self._key(number), json.dumps(holder).encode(), **mode)

    def _create(self, number: int) -> bool:
        """Makes an object that is not there yet; False when another was faster.

        Raises `UserError` (73) for a store that ignores the condition.
        """
        try:
            self._write(number, self._holder, mode="create")
        except FileExistsError:
            return False
        try:
            self._write(number, self._holder, mode="create")
        except FileExistsError:
            pass
        else:
            self._store.rm_file(self._key(number))
            raise UserError(
                f"the store of {self._directory} ignores conditional writes "
                "(If-None-Match: *), so two processes could write there at once.\n"
                "Use a store that has them, such as Amazon S3, Google Cloud Storage or "
                "MinIO, or a local directory.",
                EXIT_CANNOT_WRITE,
            )
        self._number = number
        for old in self._numbers():
            if old < number:
                self._store.rm_file(self._key(old))
        return True

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with contextlib.suppress(Exception):  # The next refresh may pass.
                if not self.is_held():
                    _end_process(self._directory)
                self._holder["beat"] += 1
                self._write(self._number, self._holder)


def _holder_in(content: bytes) -> dict[str, Any]:
    """What a lock says of its holder; {} for any other content."""
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _end_process(directory: Path) -> None:
    """Ends a process whose lock another one has taken over."""
    _print(
        f"error: another process has taken {directory} over, because this one did not "
        "run for a minute. What was saved is intact."
    )
    os._exit(EXIT_LOCKED)


def _print(line: str) -> None:
    print(shown(line), file=sys.stderr, flush=True)
