# SPDX-License-Identifier: Apache-2.0
"""A folder whose files a plan names before any is made, by whichever process.

A file is written under a name of its own and renamed when it is whole; what was made is
recorded beside it, and the manifest comes last. So a run that was killed goes on with
what is there, and nothing is ever overwritten.
"""

import contextlib
import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.errors import UserError
from electra_tf.storage import remote
from electra_tf.storage.bucket_lock import BucketLock
from electra_tf.storage.files import PARTIAL
from electra_tf.storage.lock import NAME, RunLock
from electra_tf.storage.manifest import MANIFEST, read_json

_FLAG = "--output-dir"


class Opened(NamedTuple):
    """A folder as it was found.

    Attributes:
        state: of an unfinished run of the same settings, None for a fresh start; of a
          finished one the manifest.
        sizes: bytes of its files by name.
    """

    state: dict[str, Any] | None
    sizes: dict[str, int]

    @property
    def is_finished(self) -> bool:
        return self.state is not None and MANIFEST in self.sizes


@contextlib.contextmanager
def opened(
    folder: str,
    state_file: str,
    settings: dict[str, Any],
    stays: Callable[[str], bool] = lambda name: False,
) -> Iterator[Opened]:
    """Makes a folder, looks at what it holds, and keeps other runs out of it.

    A finished one is left as it is: it need not be writable, and others may have it.

    Args:
      state_file: where the state is, until there is a manifest.
      stays: which files of a folder in a bucket are not brought here.

    Raises UserError: 73 where it cannot be made, 75 while another run has it, and if
    the folder holds anything else: nothing is ever wiped.
    """
    sizes = _sizes(folder)
    if MANIFEST in sizes:
        remote.fetch(os.path.join(folder, MANIFEST))
        yield Opened(_state(folder, state_file, settings, sizes), sizes)
        return
    is_remote = remote.is_remote(folder)
    with (
        RunLock(folder, _FLAG, leaves_file=False),
        BucketLock(folder, _FLAG) if is_remote else contextlib.nullcontext(),
    ):
        # Before this nothing may be read, brought or removed: it may be another's.
        if is_remote:
            _bring(folder, stays)
        sizes = _sizes(folder)
        yield Opened(_state(folder, state_file, settings, sizes), sizes)


def _sizes(folder: str) -> dict[str, int]:
    """The files in a folder, here or in a bucket, but for those of its locks."""
    if remote.is_remote(folder):
        sizes = {n: facts["size"] for n, facts in remote.listing(folder).items()}
    else:
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            names = []
        except OSError as e:
            raise UserError(f"cannot use {folder}: {e.strerror}.") from None
        paths = {name: os.path.join(folder, name) for name in names}
        sizes = {n: _size(path) for n, path in paths.items()}
    return {n: size for n, size in sizes.items() if not n.startswith(NAME)}


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0  # a broken link


def _bring(folder: str, stays: Callable[[str], bool]) -> None:
    def wanted(there):
        return [name for name in there if not stays(name)]

    remote.bring(folder, lambda n: not n.startswith(NAME), wanted, is_writer=True)


def _state(
    folder: str, state_file: str, settings: dict[str, Any], sizes: Mapping[str, int]
) -> dict[str, Any] | None:
    # What a kill in the first write leaves.
    found = sorted(name for name in sizes if not name.startswith(f".{state_file}."))
    if not found:
        return None
    for name in (MANIFEST, state_file):
        if name in found:
            advice = "Name another folder, or remove this one yourself."
            state = read_json(Path(folder, name), advice)
            theirs = state.get("settings")
            _check_same(folder, theirs if isinstance(theirs, dict) else {}, settings)
            if name == MANIFEST:
                _check_complete(folder, state, sizes)
            return state
    raise UserError(
        f"{folder} already holds something ({found[0]}"
        f"{', ...' if len(found) > 1 else ''}), and not what this command makes.\n"
        "Nothing is overwritten: name another folder, or remove it yourself."
    )


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


def _check_complete(folder: str, manifest: dict, sizes: Mapping[str, int]) -> None:
    for file in manifest["files"]:
        path = os.path.join(folder, file["name"])
        size = sizes.get(file["name"])
        if size != file["bytes"]:
            has = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"{path} {has}, but the manifest of what was finished there lists it "
                f"with {file['bytes']}.\nRestore it, or name another folder."
            )


def unique() -> str:
    """A part of a name that no other process gives."""
    return os.urandom(8).hex()


def hidden(path: str, letters: str) -> str:
    """The name of a file until it is whole; `letters` are the writer's own."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name.lstrip('.')}.{letters}.tmp")


def remove_rests(folder: str, *patterns: str) -> None:
    """Removes what this run, or one that was killed, has not finished."""
    for pattern in (".*.tmp", f".*{PARTIAL}", *patterns):
        for path in glob.glob(os.path.join(glob.escape(folder), pattern)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
