# SPDX-License-Identifier: Apache-2.0
"""One writer at a time in a directory of a bucket, which has neither flock nor rename.

The holder makes the object `run.lock.N` and refreshes it every ten seconds; N counts
the holders, and only the greatest one counts. The next holder makes N + 1 with a
conditional write (`If-None-Match: *`, generation 0), which only one process can do:
when holder N has released the lock, is known to be dead (same machine, no such
process), or did not refresh it for a minute. A holder that finds a greater number
ends; if it was suspended for that minute, it may write one more file as it wakes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_LOCKED, UserError
from electra_tf.paths import url_of
from electra_tf.storage.lock import (
    EXPIRY_SECONDS,
    end_process,
    in_use,
    is_alive,
    take,
    this_process,
)
from electra_tf.storage.remote import in_words, listing, open_store

BEAT_SECONDS = 10.0
NAME = "run.lock."


class BucketLock:
    """The right to write into a directory of a bucket.

    Held as a context manager. A process that loses it to another one ends with 75.

    Args:
      directory: its place in the cache.
      flag: the flag that chooses another one.
    """

    def __init__(self, directory: str | os.PathLike, flag: str = "--model-name"):
        self.directory = os.fspath(directory)
        self._flag = flag
        self._holder = this_process() | {"beat": 0}
        self._number = 0
        self._seen: tuple[Any, float] = None, 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BucketLock:
        """Raises `UserError`: 75 when another process has it, 73 if not writable."""
        with in_words(self.directory, writes=True):
            holder = take(self._acquire, self.directory)
        if holder is not None:
            raise in_use(url_of(self.directory), holder, self._flag)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        return self

    def _acquire(self) -> dict[str, Any] | None:
        """Takes the lock and returns None, or returns the holder's description."""
        number, holder = self._last()
        if self._seen[0] != (number, holder):
            self._seen = (number, holder), time.monotonic()
        is_over = not number or holder.get("released") or is_alive(holder) is False
        is_expired = time.monotonic() - self._seen[1] > EXPIRY_SECONDS
        if (is_over or is_expired) and self._create(number + 1):
            return None
        return holder

    def check(self) -> None:
        """Raises `UserError` (75) when another process has taken over."""
        with in_words(self.directory, writes=True):
            lost = self._numbers()[-1:] != [self._number]
        if lost:
            raise UserError(
                f"another process has taken {url_of(self.directory)} over; nothing "
                "more is written there.\nStop one of the two, and run the command "
                "again.",
                EXIT_LOCKED,
            )

    def __exit__(self, *_) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()
        try:
            if self._numbers()[-1:] == [self._number]:
                self._write(self._number, {"released": True})
        except Exception:  # Of any store; the lock expires.
            return

    def _numbers(self) -> list[int]:
        parts = (name.rpartition(NAME) for name in listing(self.directory))
        return sorted(int(n) for folder, _, n in parts if not folder and n.isdigit())

    def _key(self, number: int) -> tuple[Any, str]:
        return open_store(os.path.join(self.directory, f"{NAME}{number}"))

    def _write(self, number: int, holder: dict[str, Any], **mode: str) -> None:
        store, key = self._key(number)
        store.pipe_file(key, json.dumps(holder).encode(), **mode)

    def _last(self) -> tuple[int, dict[str, Any]]:
        """Number of the last holder (0: none), and its description."""
        numbers = self._numbers()
        if not numbers:
            return 0, {}
        store, key = self._key(numbers[-1])
        try:
            return numbers[-1], json.loads(store.cat_file(key))
        except (ValueError, FileNotFoundError):
            return numbers[-1], {}

    def _create(self, number: int) -> bool:
        """Makes an object that is not there yet; False when another was faster.

        Raises `UserError` (73) for a store that ignores the condition.
        """
        try:
            self._write(number, self._holder, mode="create")
        except FileExistsError:
            return False
        store, key = self._key(number)
        try:
            self._write(number, self._holder, mode="create")
        except FileExistsError:
            pass
        else:
            store.rm_file(key)
            raise UserError(
                f"the store of {url_of(self.directory)} ignores conditional writes "
                "(If-None-Match: *), so two processes could write there at once.\n"
                "Use a store that has them, such as Amazon S3, Google Cloud Storage or "
                "MinIO, or a local directory.",
                EXIT_CANNOT_WRITE,
            )
        self._number = number
        for old in self._numbers():
            if old < number:
                store.rm_file(self._key(old)[1])
        return True

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if self._numbers()[-1:] != [self._number]:
                    end_process(url_of(self.directory))
                self._holder["beat"] += 1
                self._write(self._number, self._holder)
            except Exception:  # Of any store; the next refresh may pass.
                continue
