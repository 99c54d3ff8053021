# SPDX-License-Identifier: Apache-2.0
"""Objects in buckets, their copies in a cache on this machine, and ranges of bytes.

Other modules use the path of the copy (`paths.local_of`); here it is
downloaded before it is read (`fetch`) and uploaded after it was written (`put`). The
bucket is the truth: a copy that differs from it is replaced. Paths that are not in the
cache pass untouched, at the cost of comparing a prefix.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import glob
import itertools
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from electra_tf.errors import (
    EXIT_CANNOT_WRITE,
    EXIT_CONFIG,
    EXIT_DAMAGED,
    UserError,
    reason_of,
)
from electra_tf.paths import cache_root, globs_in, url_of
from electra_tf.storage.files import (
    PARTIAL,
    atomic_write,
    cannot_write,
    flock,
    open_own,
    replacing,
)
from electra_tf.storage.manifest import MANIFEST

# s3fs retries by itself. A cached listing would hide what others write.
_BOTO = {
    "connect_timeout": 3,
    "read_timeout": 20,
    "retries": {"total_max_attempts": 1},
    "max_pool_connections": 256,
}
_OPTIONS = {
    "s3": {"config_kwargs": _BOTO, "use_listings_cache": False},
    "gs": {"use_listings_cache": False},
}
_THREADS = 8  # files that move at a time
_LOCAL_ONLY = ("run.lock",)  # of a copy's writer; never in the bucket

# At most 64 files are open in a process, well below the usual limit of 1024: those of
# the cache, and those that threads are reading.
_MAX_CACHED, _MAX_READERS = 48, 16
_readers = threading.Semaphore(_MAX_READERS)

_GAP = 1 << 15  # bytes between two ranges that are read rather than left out
_LONGEST = 8 << 20  # of merged ranges
_MOVED = "Do not move or remove shards while a run reads them."


def open_store(path: str | os.PathLike) -> tuple[Any, str]:
    """fsspec's file system of a path in a bucket, and its key there.

    Raises `UserError` (2) naming the package that is missing.
    """
    scheme, _, key = url_of(path).partition("://")
    try:
        import fsspec

        store = fsspec.filesystem(scheme, **_OPTIONS.get(scheme, {}))
    except ImportError as error:
        install = f'pip install -e ".[{"gcs" if scheme == "gs" else "s3"}]"'
        raise UserError(f"{scheme}://{key}: {error}.\n{install}") from None
    # absl shows what libraries log for their developers.
    for name in ("aiobotocore", "botocore", "s3fs"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return store, key


@contextlib.contextmanager
def opened(path: str | os.PathLike, writes: bool = False) -> Iterator[tuple[Any, str]]:
    """`open_store` for a block in which all errors of the store become `UserError`s.

    Their exit code is 73 if the block `writes`, else 2, and then a missing object stays
    a FileNotFoundError.
    """
    store = open_store(path)
    try:
        yield store
    except UserError:
        raise
    except Exception as error:
        is_missing = isinstance(error, FileNotFoundError)
        if is_missing and not writes and "bucket does not exist" not in str(error):
            raise
        raise UserError(
            f"{url_of(path)} cannot be {'written' if writes else 'read'}: "
            f"{reason_of(error)}\nCheck its name, the network, AWS_ENDPOINT_URL, "
            "and the credentials (docs/storage.md).",
            EXIT_CANNOT_WRITE if writes else EXIT_CONFIG,
        ) from None


# ------------------------------------------------------------------------- listing


def listing(path: str | os.PathLike) -> dict[str, dict[str, Any]]:
    """All objects below a path in a bucket, or at it: relative name -> fsspec's facts.

    The name of an object at the path itself is "". The empty objects `folder/` that
    consoles make to show an empty folder are left out.
    """
    with opened(path) as (store, key):
        key = key.rstrip("/")
        try:
            found = store.find(key, detail=True)
        except FileNotFoundError as error:
            if "bucket does not exist" in str(error):
                raise
            found = {}
        if not found and "/" not in key and not store.exists(key):
            raise FileNotFoundError("the bucket does not exist")
    files = {name.lstrip("/"): i for name, i in found.items() if name[-1] != "/"}
    _check_names(files)
    found = {name.removeprefix(key): i for name, i in files.items()}
    return {n.lstrip("/"): i for n, i in found.items() if not n or n[0] == "/"}


def _check_names(keys: Iterable[str]) -> None:
    """Raises `UserError` for a key whose copy would lie outside of its folder."""
    for key in keys:
        if ".." in key.split("/"):
            raise UserError(f"the bucket has the key {key!r}: rename it, .. leads out.")


def version_of(facts: dict[str, Any]) -> str:
    """A text that changes when an object is written again."""
    names = ("ETag", "etag", "generation", "LastModified", "updated", "created")
    return next((str(facts[name]) for name in names if facts.get(name)), "")


def names_in(folder: str | os.PathLike) -> list[str]:
    """The names in a folder, here or in a bucket; none if it does not exist."""
    return sorted({name.partition("/")[0] for name in sizes_in(folder)})


def sizes_in(folder: str | os.PathLike) -> dict[str, int]:
    """Name -> bytes of what is in a folder; in a bucket of all objects below it."""
    if url_of(folder):
        return {name: facts["size"] for name, facts in listing(folder).items()}
    names = os.listdir(folder) if os.path.isdir(folder) else []
    places = {name: os.path.join(folder, name) for name in names}
    # A link may be broken.
    return {n: os.path.exists(p) and os.path.getsize(p) for n, p in places.items()}


def expand(globs: str) -> list[str]:
    """The files that a comma-separated list of globs names, sorted; none is fetched."""
    paths = set()
    for part in globs_in(globs):
        if url_of(part):
            missing = contextlib.suppress(FileNotFoundError)
            with opened(part) as (store, pattern), missing:
                place = part.removesuffix(pattern)
                found = store.glob(pattern, detail=True).values()
                names = {i["name"].lstrip("/") for i in found if i["type"] == "file"}
                _check_names(names)
                paths |= {place + name for name in names if name[-1] != "/"}
        else:
            paths |= {path for path in glob.glob(part) if os.path.isfile(path)}
    return sorted(paths)


def stats_of(paths: Sequence[str]) -> list[tuple[int, int]]:
    """(bytes, time of change in ns) of files; 0 for the time of those in buckets."""
    found = {}
    for folder in {os.path.dirname(path) for path in paths if url_of(path)}:
        for name, facts in listing(folder).items():
            found[os.path.join(folder, name)] = facts["size"], 0
    for path in paths:
        if not url_of(path):
            stat = os.stat(path)
            found[path] = stat.st_size, stat.st_mtime_ns
    return [found[path] for path in paths]


# ------------------------------------------------------------------- downloads


@functools.cache
def fetch(path: str | os.PathLike) -> str:
    """Downloads the file or folder at a path to its place in the cache; returns that.

    Once in a process.

    Raises `UserError` (2) when the store cannot be reached.
    """
    path = os.fspath(path)
    if url_of(path):
        bring(path)
    return path


def bring(
    path: str,
    scope: Callable[[str], bool] = lambda name: True,
    wanted: Callable[[dict[str, Any]], Iterable[str]] = lambda there: there,
    is_writer: bool = False,
    keeps_own: bool = False,
) -> list[str]:
    """Downloads objects to the cache; returns the names in the bucket.

    Copies of removed objects are removed. A run's directory into which another process
    of this machine writes is newer and stays unchanged; the result is then empty.

    Args:
      scope: which names, relative to a folder, are looked at at all.
      wanted: the names to download, of those in the bucket.
      is_writer: whether this process writes there.
      keeps_own: whether local files stay that are new, or have changed since.
    """
    path = path.rstrip("/")
    with _state_of(path) as state:
        if not is_writer and is_written_to(path):
            return []
        there = {n: facts for n, facts in listing(path).items() if scope(n)}
        # Copies of removed objects, and a run's files that were not uploaded, go.
        names = {name for name in state if scope(name)}
        if not keeps_own and os.path.isdir(path):
            names |= {e.name for e in os.scandir(path) if e.is_file() and scope(e.name)}
        for name in names - set(there):
            state.pop(name, None)
            if not name.startswith(_LOCAL_ONLY):
                with contextlib.suppress(OSError):
                    os.unlink(_place_of(path, name))

        def is_due(name: str) -> bool:
            stored, current = state.get(name, []), _facts(path, name, there[name])
            if keeps_own and current[-1]:
                return stored[:2] != current[:2]
            return stored != current

        due = list(filter(is_due, wanted(there)))
        with ThreadPoolExecutor(_THREADS) as pool:
            moves = [(path, name, there[name], state) for name in due]
            list(pool.map(lambda move: _bring(*move), moves))
    return sorted(there)


def is_written_to(folder: str | os.PathLike) -> bool:
    """Whether a process of this machine holds the lock of a run's directory."""
    with contextlib.suppress(OSError), open(os.path.join(folder, "run.lock")) as f:
        # For a moment this refuses a process that starts now.
        return flock(f, shared=True) is False
    return False


@contextlib.contextmanager
def _state_of(path: str) -> Iterator[dict[str, list]]:
    """The state of the copies at a path; one process at a time.

    name -> [bytes, version in the bucket, the copy's time of change]
    """
    root = Path(cache_root())
    place = root.with_name("versions") / Path(path).relative_to(root)
    with contextlib.ExitStack() as held:
        try:
            place.mkdir(parents=True, exist_ok=True)
            # Without flock two processes may both download a file, each whole.
            flock(held.enter_context(open_own(place / ".lock", "wb")), waits=True)
        except OSError as error:
            raise _no_cache(error) from None
        try:
            state = json.loads((place / ".state.json").read_text())
        except (OSError, ValueError):
            state = {}
        try:
            yield state
        finally:
            atomic_write(place / ".state.json", json.dumps(state))


def _no_cache(error: OSError) -> UserError:
    return cannot_write(f"the cache, $ELECTRA_TF_CACHE ({cache_root()})", error)


def _place_of(path: str, name: str) -> str:
    return os.path.join(path, name) if name else path


def _facts(path: str, name: str, facts: dict[str, Any]) -> list:
    """The state of an object and its copy that are equal."""
    return [facts["size"], version_of(facts), _changed(_place_of(path, name))]


def _changed(place: str) -> int:
    """The time of a copy's change; 0 if there is none."""
    return os.stat(place).st_mtime_ns if os.path.exists(place) else 0


def _bring(path: str, name: str, facts: dict[str, Any], state: dict) -> None:
    place = _place_of(path, name)
    try:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with replacing(place) as f:
            try:
                with opened(place) as (store, key):
                    store.get_file(key, f.name)
            except FileNotFoundError:
                gone = f"{url_of(place)} is gone since it was listed; try again."
                raise UserError(gone) from None
            if os.path.getsize(f.name) != facts["size"]:
                raise UserError(f"{url_of(place)} is being changed; try again.")
    except OSError as error:
        raise _no_cache(error) from error
    state[name] = _facts(path, name, facts)


# ------------------------------------------------------------------------- uploads


def put(
    path: str | os.PathLike,
    names: Iterable[str],
    all_of_them: bool = False,
    may_grow: bool = False,
) -> None:
    """Uploads copies to their bucket, one after the other; a no-op for local paths.

    Manifests of folders come last. Files that have not changed since their upload or
    download are left out, unless `all_of_them`.

    Args:
      may_grow: whether another thread may append to them meanwhile; their present
        content is uploaded, from memory.

    Raises `UserError` (73).
    """
    path = os.fspath(path)
    if not url_of(path):
        return
    with _state_of(path) as state:
        for name in sorted(names, key=lambda n: os.path.basename(n) == MANIFEST):
            place = _place_of(path, name)
            stat = os.stat(place)
            if state.get(name, [0])[-1] == stat.st_mtime_ns and not all_of_them:
                continue
            with opened(place, writes=True) as (store, key):
                if may_grow:
                    # Stores take a file's size first, and fail at what comes then.
                    with open(place, "rb") as f:
                        stat = os.fstat(f.fileno())
                        store.pipe_file(key, f.read(stat.st_size))
                else:
                    store.put_file(place, key)
                facts = store.info(key)
            if facts["size"] == stat.st_size:  # else it has changed in between
                state[name] = [facts["size"], version_of(facts), stat.st_mtime_ns]


def has_changed(path: str, name: str) -> bool:
    """Whether a copy has changed since its upload or download."""
    with _state_of(path) as state:
        return state.get(name, [0])[-1] != _changed(f"{path}/{name}")


def remove(path: str | os.PathLike, names: Iterable[str]) -> None:
    """Removes objects below a path, one after the other; a no-op for local paths."""
    if not url_of(path):
        return
    with opened(path, writes=True) as (store, key):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                store.rm_file(os.path.join(key, name))


def check_writable(path: str | os.PathLike) -> None:
    """Raises `UserError` (73) for a place in a bucket that cannot be written to."""
    if url_of(path):
        with opened(path, writes=True) as (store, key):
            name = os.path.join(key, f".try{PARTIAL}")
            store.pipe_file(name, b"")
            store.rm_file(name)


# ------------------------------------------------------------------------- ranges


class ByteRanges:
    """The bytes of files, for any number of threads.

    Attributes:
      paths: of the files.
      stats: (bytes, time of change in ns) of each; 0 for the time of those in buckets.
      is_remote: whether they are read from a bucket on demand.
    """

    def __init__(self, paths: Sequence[str]):
        self.paths = list(paths)
        self.stats = stats_of(self.paths)
        self.is_remote = all(map(url_of, self.paths))
        self._copied: set[int] = set()  # numbers of files that are in the cache

    def copy(self) -> None:
        """Copies all files that are in buckets."""
        for path in self.paths:
            fetch(path)
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
                if room < 0 or not os.path.exists(fetch(self.paths[file])):
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
            with _readers:
                # Evicted from the cache, it is closed when its last reference is gone.
                shard = _shard(self, file)
                for i in places:
                    size = ends[i] - starts[i]
                    result[i] = os.pread(shard.fileno(), size, starts[i])
        return result


@functools.lru_cache(_MAX_CACHED)
def _shard(files: ByteRanges, number: int) -> BinaryIO:
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
        return float(limit) * 1e9
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

    with opened(paths[0]) as (store, first):
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
