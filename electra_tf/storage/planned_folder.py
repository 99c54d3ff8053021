# SPDX-License-Identifier: Apache-2.0
"""A folder whose files a plan names before any is made, by whichever process.

A file is written under a name of its own and renamed when it is whole; what was made is
recorded beside it, and the manifest comes last. So a run that was killed goes on with
what is there, and nothing is ever overwritten.
"""

import contextlib
import fcntl
import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_LOCKED, UserError
from electra_tf.storage import remote
from electra_tf.storage.bucket_lock import BucketLock
from electra_tf.storage.files import PARTIAL, atomic_write, cannot_write
from electra_tf.storage.manifest import MANIFEST, read_json


def load_state(
    folder: str,
    state_file: str,
    settings: dict[str, Any],
    there: Mapping[str, int] | None = None,
) -> dict[str, Any] | None:
    """The state of an unfinished run of these settings, None for a fresh start.

    Args:
      state_file: where it is, until there is a manifest.
      there: the sizes of the files in a bucket, which need not be here.

    Raises UserError if the folder holds anything else: nothing is ever wiped.
    """
    try:
        found = sorted(there or os.listdir(folder))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise UserError(f"cannot use {folder}: {e.strerror}.") from None
    # What a kill in the first write leaves.
    found = [name for name in found if name != state_file + PARTIAL]
    if not found:
        return None
    for name in (MANIFEST, state_file):
        if name in found:
            state = _read(Path(folder, name))
            theirs = state.get("settings")
            _check_same(folder, theirs if isinstance(theirs, dict) else {}, settings)
            if name == MANIFEST:
                _check_complete(folder, state, there or {})
            return state
    raise UserError(
        f"{folder} already holds something ({found[0]}"
        f"{', ...' if len(found) > 1 else ''}), and not what this command makes.\n"
        "Nothing is overwritten: name another folder, or remove it yourself."
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except UserError as e:
        advice = "Name another folder, or remove this one yourself."
        raise UserError(f"{e}\n{advice}", e.exit_code) from None


def _check_same(folder: str, theirs: dict, ours: dict) -> None:
    different = [
        f"{name} {_brief(before)}, now {_brief(now)}"
        for name, before, now in _differences(theirs, ours)
    ]
    if different:
        raise UserError(
            f"{folder} was made with {'; '.join(different)}.\nNothing is "
            "overwritten: name another folder, or give the settings of before."
        )


def _differences(theirs: dict, ours: dict) -> Iterator[tuple[str, Any, Any]]:
    """What differs, and in both; of objects within objects only what differs there."""
    for name in sorted(theirs.keys() | ours.keys()):
        before, now = theirs.get(name), ours.get(name)
        if isinstance(before, dict) and isinstance(now, dict):
            for inner, *values in _differences(before, now):
                yield (f"{name}: {inner}", *values)
        elif before != now:
            yield name, before, now


def _brief(value: Any) -> str:
    text = json.dumps(value)
    # Paths differ at their ends, too.
    return text if len(text) <= 90 else f"{text[:40]}...{text[-40:]}"


def _check_complete(folder: str, manifest: dict, there: Mapping[str, int]) -> None:
    for file in manifest["files"]:
        path = os.path.join(folder, file["name"])
        size = there.get(file["name"])
        if size is None and os.path.exists(path):
            size = os.path.getsize(path)
        if size != file["bytes"]:
            has = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"{path} {has}, but the manifest of what was finished there lists it "
                f"with {file['bytes']}.\nRestore it, or name another folder."
            )


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Makes the folder and keeps a second run out; the kernel frees it at our end.

    Raises UserError: 73 where it cannot be made, 75 while another run has it.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as e:
        raise cannot_write(folder, e) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"another process is filling {folder}.\nWait for it, or name another "
            "folder.",
            EXIT_LOCKED,
        ) from None
    except OSError:
        pass  # a file system without locks
    try:
        is_remote = remote.is_remote(folder)
        with BucketLock(folder) if is_remote else contextlib.nullcontext():
            yield
    finally:
        os.close(descriptor)


def unique() -> str:
    """A part of a name that no other process gives."""
    return os.urandom(8).hex()


def hidden(path: str, letters: str) -> str:
    """The name of a file until it is whole; `letters` are the writer's own."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name.lstrip('.')}.{letters}.tmp")


def write(path: str, data: str) -> None:
    """Writes a whole file, also where several processes do; see `atomic_write`."""
    partial = hidden(path, unique())
    atomic_write(partial, data)
    os.replace(partial, path)


def remove_rests(folder: str, *patterns: str) -> None:
    """Removes what this run, or one that was killed, has not finished."""
    for pattern in (".*.tmp", ".*.tmp.partial", *patterns):
        for path in glob.glob(os.path.join(glob.escape(folder), pattern)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
