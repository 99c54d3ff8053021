# SPDX-License-Identifier: Apache-2.0
"""One process at a time writes into a run directory.

Standard library only, so that a second writer is turned away before TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_LOCKED, UserError
from electra_tf.storage.files import cannot_write, flock
from electra_tf.storage.lease import Lease, take, this_process

NAME = "run.lock"  # all names of the lock, and of the lease beside it, begin so


class RunLock:
    """One writer per directory, held through `flock` on `run.lock`.

    The kernel frees the lock when its process ends, however it ends, so a lock left by
    a dead process is simply taken over. Where the file system has no flock, a lease
    (`lease.Lease`) stands in, and a holder that may be dead is waited for. Use as a
    context manager; entering raises `UserError` (75) when another process holds the
    lock.

    Args:
      flag: that which chooses another directory.
      leaves_file: whether `run.lock` stays when the lock is given back.
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
        self._lease: Lease | None = None

    def __enter__(self) -> RunLock:
        self._open()
        try:
            is_ours = flock(self._file)
        except OSError as error:
            self._file.close()
            raise cannot_write(self.path, error) from error
        if is_ours is None:
            self._take_lease()
        elif not is_ours:
            self._refuse(self._holder())
        if not self._is_in_place():  # removed between opening and locking
            self.__exit__()
            return self.__enter__()
        since = datetime.datetime.now().isoformat(timespec="seconds")
        self._write(this_process() | {"since": since})
        return self

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+", encoding="utf-8")
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def _is_in_place(self) -> bool:
        """Whether the file that is locked is the one that others would lock."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except OSError:
            return False

    def check(self) -> None:
        """Raises `UserError` (75) when the lock was removed: others may write now."""
        if self._file and not self._is_in_place():
            raise UserError(
                f"{self.path} was removed while this process held it, so another one "
                "may write there.\nNothing more is saved. Leave that file to the "
                "process that made it, and run the command again.",
                EXIT_LOCKED,
            )

    def _take_lease(self) -> None:
        self._lease = Lease(self.path.with_name(f"{NAME}.lease"), self._end_process)
        try:
            holder = take(self._lease.acquire, str(self.path.parent))
        except OSError as error:
            self._file.close()
            raise cannot_write(self.path, error) from error
        if holder is not None:
            self._refuse(self._holder() if "pid" in holder else {})

    def _end_process(self) -> None:
        print(
            f"error: another process has taken {self.path.parent} over, because this "
            "one did not run for a minute. What was saved is intact.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_LOCKED)

    def __exit__(self, *_) -> None:
        self._write(None)
        if not self._leaves_file and self._is_in_place():
            with contextlib.suppress(OSError):
                self.path.unlink()  # who has opened it meanwhile opens it again
        if self._lease:
            self._lease.release()
        with contextlib.suppress(OSError):
            self._file.close()
        self._file = None

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
            f"choose another {self._flag}.",
            EXIT_LOCKED,
        ) from None

    def _holder(self) -> dict[str, Any]:
        self._file.seek(0)
        try:
            holder = json.loads(self._file.read())
        except ValueError:
            return {}
        return holder if isinstance(holder, dict) else {}
