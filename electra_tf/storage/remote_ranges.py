# SPDX-License-Identifier: Apache-2.0
"""Parts of the objects in a bucket, read without a copy of the rest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.paths import cache_root, url_of
from electra_tf.storage.remote import in_words, open_store

_GAP = 1 << 15  # bytes that are read for nothing rather than asked around
_LONGEST = 8 << 20  # of a merged range


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
    """The bytes [start, end) of files in one bucket, all asked for at once.

    Ranges that lie close to each other are one request. Raises `UserError`: 2 when the
    store cannot be reached, 65 for a file that is gone.
    """
    order = sorted(range(len(paths)), key=lambda i: (paths[i], starts[i]))
    merged: list[tuple[str, int, int]] = []
    part_of = {}
    for i in order:
        path, start, end = merged[-1] if merged else ("", 0, 0)
        near = paths[i] == path and starts[i] - end <= _GAP
        if near and max(end, ends[i]) - start <= _LONGEST:
            merged[-1] = (path, start, max(end, ends[i]))
        else:
            merged.append((paths[i], starts[i], ends[i]))
        part_of[i] = len(merged) - 1
    store, first = open_store(paths[0])
    place = paths[0].removesuffix(first)
    keys = [path.removeprefix(place) for path, _, _ in merged]
    requests = keys, [start for _, start, _ in merged], [end for _, _, end in merged]
    with in_words(paths[0]):
        try:
            if store.async_impl:
                from fsspec.asyn import sync

                read = sync(store.loop, _read_all, store, *requests)
            else:
                read = store.cat_ranges(*requests, on_error="raise")
        except FileNotFoundError:
            gone = next((key for key in keys if not store.exists(key)), keys[0])
            raise UserError(
                f"{url_of(place + gone)} cannot be read any more: it is gone.\nDo not "
                "move or remove shards while a run reads them.",
                EXIT_DAMAGED,
            ) from None
    result = []
    for i in range(len(paths)):
        part = part_of[i]
        begin = starts[i] - merged[part][1]
        result.append(read[part][begin : begin + ends[i] - starts[i]])
    return result


async def _read_all(store, keys: list[str], starts, ends) -> list[bytes]:
    """As `cat_ranges`, at half its cost: no time limit of its own for each request."""
    import asyncio  # takes longer to import than all of this module

    places = zip(keys, starts, ends, strict=True)
    return await asyncio.gather(
        *(store._cat_file(key, start=start, end=end) for key, start, end in places)
    )
