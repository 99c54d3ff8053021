# SPDX-License-Identifier: Apache-2.0
"""Byte ranges of many files, here or in a bucket."""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import shutil
import threading
from collections.abc import Sequence
from typing import BinaryIO

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.paths import cache_root, url_of
from electra_tf.storage import remote

# At most 64 files are open in a process, well below the usual limit of 1024: those of
# the cache, and those that threads are reading.
_MAX_CACHED, _MAX_READERS = 48, 16
_readers = threading.Semaphore(_MAX_READERS)

_GAP = 1 << 15  # bytes between two ranges that are read rather than left out
_LONGEST = 8 << 20  # of merged ranges
_MOVED = "Do not move or remove shards while a run reads them."


class ByteRanges:
    """The bytes of files, for any number of threads.

    Attributes:
      paths: of the files.
      stats: (bytes, time of change in ns) of each; 0 for the time of those in buckets.
      is_remote: whether they are read from a bucket on demand.
    """

    def __init__(self, paths: Sequence[str]):
        self.paths = list(paths)
        self.stats = remote.stats_of(self.paths)
        self.is_remote = all(map(url_of, self.paths))
        self._copied: set[int] = set()  # numbers of files that are in the cache

    def copy(self) -> None:
        """Copies all files that are in buckets."""
        for path in self.paths:
            remote.fetch(path)
        self.is_remote = False

    def copy_ahead(self) -> None:
        """Starts to copy the files of a bucket, as far as the disk has room.

        Each request costs much more than the bytes of a record; a copy serves all
        epochs.
        """
        if self.is_remote:
            room = room_for_copies()
            threading.Thread(target=self._copy, args=(room,), daemon=True).start()

    def _copy(self, room: float) -> None:
        for file, (size, _) in enumerate(self.stats):
            room -= size
            try:
                if room < 0 or not os.path.exists(remote.fetch(self.paths[file])):
                    return
            except UserError:
                return  # Reading one of its ranges raises the error again.
            self._copied.add(file)

    def read(
        self, files: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> list[bytes]:
        """The bytes [start, end) of files, by their numbers.

        Raises `UserError`: 65 for a file that is gone or cannot be read, 2 when the
        store cannot be reached.
        """
        if self.is_remote and not self._copied.issuperset(files):
            return read_ranges([self.paths[i] for i in files], starts, ends)
        result = [b""] * len(files)
        by_file = sorted(range(len(files)), key=files.__getitem__)
        for file, places in itertools.groupby(by_file, files.__getitem__):
            ranges = [(place, starts[place], ends[place]) for place in places]
            with _readers:
                self._read_into(result, file, ranges)
        return result

    def _read_into(
        self, result: list[bytes], file: int, ranges: list[tuple[int, int, int]]
    ) -> None:
        """Reads (place in `result`, first byte, end) of one file."""
        # Evicted from the cache, a file is closed after its last reference is gone.
        opened = _opened(self, file)
        for place, start, end in ranges:
            result[place] = os.pread(opened.fileno(), end - start, start)


@functools.lru_cache(_MAX_CACHED)
def _opened(files: ByteRanges, number: int) -> BinaryIO:
    path = files.paths[number]
    try:
        return open(path, "rb", buffering=0)
    except OSError as e:
        advice = f"\n{_MOVED}" if isinstance(e, FileNotFoundError) else ""
        message = f"{path} cannot be opened any more: {e.strerror}.{advice}"
        raise UserError(message, EXIT_DAMAGED) from None


def room_for_copies() -> float:
    """Bytes of data that may be copied to the cache, beyond what has to be there.

    $ELECTRA_TF_COPY_GB; by default half of what is free.
    """
    if limit := os.environ.get("ELECTRA_TF_COPY_GB"):
        try:
            return float(limit) * 1e9
        except ValueError:
            raise UserError(
                f"$ELECTRA_TF_COPY_GB is {limit!r}; it is a number of gigabytes."
            ) from None
    os.makedirs(cache_root(), exist_ok=True)
    return shutil.disk_usage(cache_root()).free / 2


def read_ranges(
    paths: Sequence[str], starts: Sequence[int], ends: Sequence[int]
) -> list[bytes]:
    """The bytes [start, end) of files in one bucket, without a copy of the rest.

    Ranges that lie close to each other are one request; all are made at once. Raises
    `UserError`: 2 when the store cannot be reached, 65 for a file that is gone.
    """
    from fsspec.utils import merge_offset_ranges

    with remote.opened(paths[0]) as (store, first):
        place = paths[0].removesuffix(first)
        keys = [path.removeprefix(place) for path in paths]
        requests = merge_offset_ranges(
            keys, list(starts), list(ends), max_gap=_GAP, max_block=_LONGEST
        )
        try:
            found = store.cat_ranges(*requests)
            for error in found:
                if isinstance(error, Exception):
                    raise error
        except FileNotFoundError:
            gone = next((key for key in keys if not store.exists(key)), keys[0])
            message = f"{url_of(place + gone)} cannot be read any more: it is gone."
            raise UserError(f"{message}\n{_MOVED}", EXIT_DAMAGED) from None
    begins = list(zip(*requests[:2], strict=True))  # ascending
    result = []
    for key, start, end in zip(keys, starts, ends, strict=True):
        i = bisect.bisect_right(begins, (key, start)) - 1
        result.append(found[i][start - begins[i][1] : end - begins[i][1]])
    return result
