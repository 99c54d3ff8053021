# SPDX-License-Identifier: Apache-2.0
"""The folder of a job: its settings, its finished tasks, and one writer at a time.

The settings come first, the manifest last. A task records its files before they get
their names, so that a file with its name is complete; nothing is ever overwritten.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from electra_tf.errors import UserError
from electra_tf.storage import remote
from electra_tf.storage.checkpoints import as_text, differences
from electra_tf.storage.files import PARTIAL, atomic_write, names_below
from electra_tf.storage.lock import is_of_lock
from electra_tf.storage.manifest import MANIFEST, read_json
from electra_tf.storage.mirror import Mirror

STATE = "job.json"  # until there is a manifest
OWN = ".job"  # a folder inside the job's, removed at the end


class JobFolder:
    """The folder of a job: its state on opening, and its files.

    Attributes:
      state: of an unfinished job with the same settings; of a finished one the
        manifest; None for a new folder.
      is_finished: there is nothing to do.
    """

    def __init__(self, path: str, settings: dict[str, Any], mirror: Mirror):
        sizes = _sizes(path)
        self.path, self._settings, self._mirror = path, settings, mirror
        self.state = _state(path, settings, sizes)
        self.is_finished = MANIFEST in sizes

    def begin(self, state: Mapping[str, Any] | None = None) -> None:
        """Stores the settings, and `state` with them, unless a job is resumed."""
        self.remove_partial()
        if self.state is None:
            self.state = {"settings": self._settings, **(state or {})}
            self.write(STATE, self.state)

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Writes a JSON file, complete or not at all, and uploads what is finished."""
        path = os.path.join(self.path, name)
        atomic_write(path, json.dumps(content, indent=1) + "\n")
        self.upload()

    def upload(self) -> None:
        """Uploads what is finished to the folder's bucket, if it is in one."""
        self._mirror.upload()

    def records(self, name: str, count: int) -> Iterator[dict[str, Any] | None]:
        """Yields the records of the tasks of a job; None: not finished."""
        for number in range(count):
            yield read_record(self.path, name, number)

    def remove_partial(self) -> None:
        """Removes what killed or failed tasks have left."""
        for folder in (self.path, os.path.join(self.path, OWN)):
            for name in glob.glob(f"{glob.escape(folder)}/.*{PARTIAL}"):
                shutil.rmtree(name, ignore_errors=True)
                with contextlib.suppress(OSError):
                    os.unlink(name)

    def finish(self, manifest: dict[str, Any]) -> None:
        """Writes the manifest, and removes what only the unfinished job needed."""
        self.write(MANIFEST, manifest)
        self._remove([])

    def discard(self, name: str, count: int) -> None:
        """Removes the results of a job, and the rest."""
        records = filter(None, self.records(name, count))
        self._remove([f["name"] for record in records for f in record["files"]])

    def _remove(self, names: list[str]) -> None:
        own = os.path.join(self.path, OWN)
        records = [os.path.join(OWN, name) for name in names_below(own)]
        self._mirror.discard([*records, *names, STATE])
        shutil.rmtree(own, ignore_errors=True)


@contextlib.contextmanager
def opened(
    path: str, settings: dict[str, Any], flag: str = "--output-dir"
) -> Iterator[JobFolder]:
    """Makes a folder, reads its state, and keeps other processes out of it.

    A finished one is left unchanged, and may be read-only.

    Args:
      settings: all that makes two jobs the same, in JSON.

    Raises UserError: 73 where it cannot be made, 75 while another process has it, 2 if
    it holds anything else or was made with other settings.
    """
    mirror = Mirror(path, flag=flag)
    if MANIFEST in _sizes(path):
        remote.fetch(os.path.join(path, MANIFEST))
        yield JobFolder(path, settings, mirror)
        return
    # Before this nothing may be read, brought or removed: it may be another's.
    with mirror:
        yield JobFolder(path, settings, mirror)


def record_path(path: str, name: str, number: int) -> str:
    """Where the record of a task is."""
    return os.path.join(path, OWN, f"{name}-{number:05d}.json")


def read_record(path: str, name: str, number: int) -> dict[str, Any] | None:
    """The record of a task if all its files exist, else None."""
    try:
        with open(record_path(path, name, number), encoding="utf-8") as f:
            record = json.load(f)
    except FileNotFoundError:
        return None
    for file in record["files"]:
        place = os.path.join(path, file["name"])
        if not os.path.exists(place) or os.path.getsize(place) != file["bytes"]:
            return None
    return record


def _sizes(path: str) -> dict[str, int]:
    """The files in a folder, here or in a bucket, but for those of its locks."""
    sizes = remote.sizes_in(path)
    return {n: size for n, size in sizes.items() if not is_of_lock(n)}


def _state(
    path: str, settings: dict[str, Any], sizes: Mapping[str, int]
) -> dict[str, Any] | None:
    # Without the rest of a killed first write.
    found = sorted(name for name in sizes if not name.startswith(f".{STATE}."))
    if not found:
        return None
    name = next((name for name in (MANIFEST, STATE) if name in found), None)
    if name is None:
        raise UserError(
            f"{path} already holds something ({found[0]}), and not what this command "
            "makes.\nNothing is overwritten: name another folder, or remove this one."
        )
    state = read_json(Path(path, name), "Name another folder, or remove this one.")
    if changed := differences(state.get("settings") or {}, settings):
        raise UserError(
            f"{path} was made with other settings: {as_text(changed)}.\nNothing is "
            "overwritten: name another folder, or give the settings of before."
        )
    for file in state["files"] if name == MANIFEST else ():
        if (size := sizes.get(file["name"])) != file["bytes"]:
            raise UserError(
                f"{os.path.join(path, file['name'])} has {size or 0} bytes, but the "
                f"manifest lists {file['bytes']}.\nRestore it, or name another folder."
            )
    return state
