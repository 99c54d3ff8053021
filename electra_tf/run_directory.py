# SPDX-License-Identifier: Apache-2.0
"""Writing into a run directory: one process at a time, whole files or none.

Standard library only, so that a second writer is turned away before TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_LOCKED, UserError
from electra_tf.lease import Lease, this_process

# What flock fails with where the file system does not have it.
_NO_FLOCK = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

# A name with this ending is the rest of an interrupted write, and safe to remove.
PARTIAL = ".partial"


def cannot_write(path: str | os.PathLike, error: BaseException) -> UserError:
    """The error for a failed write: what failed, and how much room is left."""
    path = Path(path)
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    try:
        left = shutil.disk_usage(path if path.is_dir() else path.parent).free / 1e6
        room = f"{left:.0f} MB are free there. "
    except OSError:
        room = ""
    return UserError(
        f"cannot write {path}: {reason}\n{room}What was saved before is intact; "
        "make room or mend the permissions and run the command again.",
        EXIT_CANNOT_WRITE,
    )


def sync_directory(directory: str | os.PathLike) -> None:
    """Makes renames in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a directory; the rename still holds.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def atomic_write(path: str | os.PathLike, data: str | bytes) -> None:
    """Writes a whole file or nothing: temporary name, fsync, rename.

    Directories on the way are made. Raises `UserError` (73) when the file cannot be
    written.
    """
    path = Path(path)
    partial = path.with_name(path.name + PARTIAL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


class RunLock:
    """One writer per run directory, held through `flock` on `run.lock`.

    The kernel frees the lock when its process ends, however it ends, so a lock left by
    a dead process is simply taken over. Where the file system has no flock, a lease
    (`lease.Lease`) stands in. Use as a context manager; entering raises `UserError`
    (75) when another process holds the lock.
    """

    def __init__(self, directory: str | os.PathLike):
        self.path = Path(directory) / "run.lock"
        self._file = None
        self._lease: Lease | None = None

    def __enter__(self) -> RunLock:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+", encoding="utf-8")
        except OSError as error:
            raise cannot_write(self.path, error) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._refuse(self._holder())
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                self._file.close()
                raise cannot_write(self.path, error) from error
            self._take_lease()
        since = datetime.datetime.now().isoformat(timespec="seconds")
        self._write(this_process() | {"since": since})
        return self

    def _take_lease(self) -> None:
        self._lease = Lease(self.path.with_name("run.lock.lease"), self._end_process)
        try:
            holder = self._lease.acquire()
        except OSError as error:
            self._file.close()
            raise cannot_write(self.path, error) from error
        if holder is not None:
            self._refuse(self._holder() if "pid" in holder else {})

    def _end_process(self) -> None:
        print(
            f"error: another process has taken {self.path.parent} over, because this "
            "one did not run for a minute. Checkpoints are intact.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_LOCKED)

    def __exit__(self, *_) -> None:
        self._write(None)
        if self._lease:
            self._lease.release()
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, holder: dict[str, Any] | None) -> None:
        try:
            self._file.truncate(0)
            self._file.write(json.dumps(holder) if holder else "")
            self._file.flush()
        except OSError:
            pass  # The text is for people; on a full disk the lock itself still holds.

    def _refuse(self, holder: dict[str, Any]) -> None:
        self._file.close()
        try:
            name = "process {pid} on {host} since {since}".format(**holder)
        except KeyError:
            name = "another process"
        raise UserError(
            f"{self.path.parent} is in use by {name}.\nWait for it, stop it, or "
            "choose another --model-name.",
            EXIT_LOCKED,
        ) from None

    def _holder(self) -> dict[str, Any]:
        self._file.seek(0)
        try:
            holder = json.loads(self._file.read())
        except ValueError:
            return {}
        return holder if isinstance(holder, dict) else {}
