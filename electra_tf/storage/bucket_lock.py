# SPDX-License-Identifier: Apache-2.0
"""One writer at a time in a directory of a bucket, which has neither flock nor rename.

The holder makes the object `run.lock.N` and writes it again every few seconds; N counts
the holders, and only the greatest one counts. Who comes next makes N + 1, which the
store lets only one do (`If-None-Match: *`, generation 0): when the holder N said that
it has ended, is known to be dead (same machine, no such process), or was silent for a
minute by the store's clock; until then the next one waits for a sign of it. A holder
that finds a greater number ends.

Weaker where a store ignores that condition: whoever made the object waits two seconds
and reads it again; the last of several who made it at the same moment has it. And a
holder that was suspended for more than a minute may, as it wakes, write one more file.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from typing import Any

from electra_tf.errors import EXIT_LOCKED, UserError
from electra_tf.paths import url_of
from electra_tf.storage.lease import STALE_SECONDS, Seen, is_dead, take, this_process
from electra_tf.storage.remote import in_words, listing, open_store

BEAT_SECONDS = 10.0
NAME = "run.lock."
_LAST_WRITER_SECONDS = 2.0


class BucketLock:
    """The right to write into a directory of a bucket.

    Held as a context manager. A process that loses it to another one ends with 75.

    Args:
      directory: its place in the cache.
      flag: that which chooses another one.
    """

    def __init__(self, directory: str | os.PathLike, flag: str = "--model-name"):
        self.directory = os.fspath(directory)
        self._flag = flag
        self._holder = this_process() | {"token": uuid.uuid4().hex}
        self._number = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> BucketLock:
        """Raises `UserError`: 75 when it is another's, 73 when it cannot be written."""
        with in_words(self.directory, writes=True):
            holder = take(self._acquire, self.directory)
        if holder is None:
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()
            return self
        name = "process {pid} on {host}".format(**{"pid": "?", "host": "?"} | holder)
        raise UserError(
            f"{url_of(self.directory)} is in use by {name}.\nWait for it, stop it, or "
            f"choose another {self._flag}.",
            EXIT_LOCKED,
        )

    def _acquire(self) -> Seen | None:
        """Takes the lock; returns None, or what was seen of who has it."""
        seen = Seen({}, 0.0, None)
        for _ in range(10):
            number, seen = self._last()
            is_over = seen.holder.get("released") or is_dead(seen.holder)
            if number and not (is_over or seen.age > STALE_SECONDS):
                return seen
            if self._create(number + 1):
                return None
        return seen

    def check(self) -> None:
        """Raises `UserError` (75) when somebody else has taken over."""
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
        # A store that does not answer will find the lock stale.
        self._ended.set()
        if self._thread:
            self._thread.join()
        try:
            if self._numbers()[-1:] == [self._number]:
                self._write(self._number, {"released": True})
        except Exception:  # whatever a store fails with
            return

    def _numbers(self) -> list[int]:
        names = (name.removeprefix(NAME) for name in self._objects())
        return sorted(int(name) for name in names if name.isdigit())

    def _objects(self) -> dict[str, Any]:
        there = listing(self.directory)
        return {n: facts for n, facts in there.items() if n.startswith(NAME)}

    def _key(self, number: int | str) -> tuple[Any, str]:
        return open_store(os.path.join(self.directory, f"{NAME}{number}"))

    def _write(self, number: int | str, holder: dict[str, Any], **mode: str) -> None:
        store, key = self._key(number)
        store.pipe_file(key, json.dumps(holder).encode(), **mode)

    def _last(self) -> tuple[int, Seen]:
        """Number of the last holder (0: none), and what was seen of it."""
        numbers = self._numbers()
        if not numbers:
            return 0, Seen({}, 0.0, None)
        store, key = self._key(numbers[-1])
        try:
            holder = json.loads(store.cat_file(key))
        except (ValueError, FileNotFoundError):
            holder = {}
        probe = f"try-{self._holder['token']}"
        self._write(probe, {})
        now, beat = (store.modified(k) for k in (self._key(probe)[1], key))
        store.rm_file(self._key(probe)[1])
        age = (now - beat).total_seconds()
        return numbers[-1], Seen(holder, age, (numbers[-1], beat))

    def _create(self, number: int) -> bool:
        """Makes an object that is not there yet; False when another was faster."""
        try:
            self._write(number, self._holder, mode="create")
        except FileExistsError:
            return False
        try:
            self._write(number, self._holder, mode="create")
            time.sleep(_LAST_WRITER_SECONDS)  # it should not have let us
        except FileExistsError:
            pass
        store, key = self._key(number)
        if json.loads(store.cat_file(key)).get("token") != self._holder["token"]:
            return False
        self._number = number
        for old in self._numbers():
            if old < number:
                store.rm_file(self._key(old)[1])
        return True

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                if self._numbers()[-1:] == [self._number]:
                    self._write(self._number, self._holder)
                else:
                    self._end_process()
            except Exception:  # whatever a store fails with; the next beat may pass
                continue

    def _end_process(self) -> None:
        print(
            f"error: another process has taken {url_of(self.directory)} over, because "
            "this one did not run for a minute. What was saved is intact.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_LOCKED)
