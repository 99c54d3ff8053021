# SPDX-License-Identifier: Apache-2.0
"""Objects in buckets, and their copies in a cache on this machine.

Other modules use the path of the copy (`paths.local_of`); here it is
downloaded before it is read (`fetch`) and uploaded after it was written (`put`). The
bucket is the truth: a copy that differs from it is replaced. Paths that are not in the
cache pass untouched, at the cost of comparing a prefix.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from electra_tf import startup
from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_CONFIG, UserError, reason_of
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
_BOTO = {"connect_timeout": 3, "read_timeout": 20, "retries": {"total_max_attempts": 1}}
_OPTIONS = {
    "s3": {"config_kwargs": _BOTO, "use_listings_cache": False},
    "gs": {"use_listings_cache": False},
}
_THREADS = 8  # files that move at a time


def open_store(path: str | os.PathLike) -> tuple[Any, str]:
    """fsspec's file system of a path in a bucket, and its key there.

    Raises `UserError` (2) naming the package that is missing.
    """
    scheme, _, key = url_of(path).partition("://")
    package, extra = ("gcsfs", "gcs") if scheme == "gs" else ("s3fs", "s3")
    with startup.optional(package, f"{scheme}://{key}", extra):
        import fsspec

        store = fsspec.filesystem(scheme, **_OPTIONS.get(scheme, {}))
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


def sizes_of(paths: Sequence[str]) -> list[int]:
    """The bytes of files, here or in a bucket."""
    found = {}
    for folder in {os.path.dirname(path) for path in paths if url_of(path)}:
        sizes = sizes_in(folder)
        found |= {os.path.join(folder, name): size for name, size in sizes.items()}
    return [found[path] if url_of(path) else os.path.getsize(path) for path in paths]


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


def fetch_all(paths: Sequence[str]) -> list[str]:
    """`fetch` of several at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(fetch, paths))


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
        return not flock(f, shared=True)
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


def put(path: str | os.PathLike, names: Iterable[str], may_grow: bool = False) -> None:
    """Uploads copies to their bucket, one after the other; a no-op for local paths.

    Manifests of folders come last. Files that have not changed since their upload or
    download are left out.

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
            if state.get(name, [0])[-1] == stat.st_mtime_ns:
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
    with opened(path, writes=True) as (store, key), _state_of(path) as state:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                store.rm_file(os.path.join(key, name))
            state.pop(name, None)


def check_writable(path: str | os.PathLike) -> None:
    """Raises `UserError` (73) for a place in a bucket that cannot be written to."""
    if url_of(path):
        with opened(path, writes=True) as (store, key):
            name = os.path.join(key, f".try{PARTIAL}")
            store.pipe_file(name, b"")
            store.rm_file(name)
