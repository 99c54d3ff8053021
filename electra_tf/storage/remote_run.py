# SPDX-License-Identifier: Apache-2.0
"""The directory of a run in a bucket, and the working copy of who writes there.

Training writes to its copy, with all that `Checkpoints` promises; after each save the
files go up. A checkpoint is in the bucket when its manifest is, which goes up last and,
when a checkpoint is removed, goes first. In between there is an object
`model.ckpt-N.partial`: the rest of a kill, which the next writer clears.

Whoever starts, brings down the newest intact checkpoint of the bucket. What was not yet
up when a writer was killed is computed again, to the same bits.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_LOCKED, UserError
from electra_tf.paths import shown
from electra_tf.storage import checkpoint_manifest, remote
from electra_tf.storage.bucket_lock import BucketLock
from electra_tf.storage.checkpoint_manifest import (
    MANIFEST,
    POINTER,
    DamagedCheckpointError,
    name_of,
    split_name,
)
from electra_tf.storage.checkpoints import CORRUPT
from electra_tf.storage.files import PARTIAL

# What else lies below a run's directory, and is not the run's.
_OTHERS = ("run.lock", "finetuning_models/", "finetuning_tfrecords/")
_WAITS = (2.0, 10.0, 30.0)  # seconds before a failed upload is tried again


def bring_model(path: str | os.PathLike) -> None:
    """Brings what belongs to a model, of a run the newest intact checkpoint.

    Args:
      path: a directory, or the prefix of a checkpoint; nothing happens unless it is in
        a bucket.

    Raises `UserError` (2) when the store cannot be reached.
    """
    path = os.fspath(path).rstrip("/")
    if remote.is_remote(path):
        _bring_model(path)


@functools.cache
def _bring_model(path: str) -> None:
    if remote.listing(path):
        _bring_run(path)
        return
    folder, name = os.path.split(path)

    def belongs(other: str) -> bool:
        tensors = ".data-" in other or other.endswith((".index", ".meta"))
        others = tensors or split_name(other) is not None
        named = other.startswith(f"{name}.") or not others
        return _is_ours(other) and "/" not in other and named

    remote.bring(folder, belongs)


def _bring_run(path: str, is_writer: bool = False) -> None:
    """Brings a run's files, of its checkpoints only the newest intact one."""

    def rest(there):
        steps = _complete(there)
        return [name for name in there if _step_of(name) not in steps]

    names = remote.bring(path, _is_ours, rest, is_writer)
    for step in reversed(_complete(names)):
        remote.bring(
            path, _is_ours, lambda there, s=step: _files_of(s, there), is_writer
        )
        try:
            manifest = checkpoint_manifest.read(Path(path), step)
            checkpoint_manifest.verify_files(Path(path), manifest)
            return
        except DamagedCheckpointError:
            continue  # `Checkpoints` finds it damaged, too, and says so


def _is_ours(name: str) -> bool:
    return not (name.startswith(_OTHERS) or name.endswith((PARTIAL, CORRUPT)))


def _step_of(name: str) -> int | None:
    return (split_name(name) or (None, ""))[0]


def _files_of(step: int, names: Iterable[str]) -> list[str]:
    """The files of a checkpoint, its manifest last."""
    manifest = name_of(step) + MANIFEST
    own = [n for n in names if _step_of(n) == step and not n.endswith(PARTIAL)]
    return sorted(own, key=lambda name: (name == manifest, name))


def _complete(names: Iterable[str]) -> list[int]:
    """The steps whose manifest is among the names, ascending."""
    parts = filter(None, map(split_name, names))
    return sorted(step for step, suffix in parts if suffix == MANIFEST)


class RunFolder:
    """A run's directory, in a bucket or not, as a context manager.

    Entering brings down what is there; a writer is the only one while it is entered,
    and brings everything up in the end. For a local directory nothing happens.

    Args:
      directory: where the run's files are, or their copies.
      writes: whether this process trains.
      keep: how many checkpoints stay in the bucket; 0 keeps all.
      log: called with one line of text.

    Entering raises `UserError`: 2 when the store cannot be reached, 73 when it cannot
    be written, 75 when another process writes there.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        *,
        writes: bool,
        keep: int = 0,
        log: Callable[[str], None] = print,
    ):
        self.directory = os.fspath(directory).rstrip("/")
        self.is_remote = remote.is_remote(directory)
        self._keep = keep
        self._log = log
        self._lock = None
        if writes and self.is_remote:
            self._lock = BucketLock(self.directory, self._end_process)

    def __enter__(self) -> RunFolder:
        if self._lock:
            self._lock.acquire()
            self._clear_rests()
        if self.is_remote:
            _bring_run(self.directory, is_writer=self._lock is not None)
        return self

    def __exit__(self, kind, error, _) -> None:
        if self._lock is None:
            return
        code = getattr(error, "exit_code", None)
        try:
            if code not in (EXIT_CANNOT_WRITE, EXIT_LOCKED):
                self.upload()
        except UserError:
            if error is None:
                raise
        finally:
            self._lock.release()

    def upload(self) -> None:
        """Brings up what has changed; raises `UserError` (73, 75) if that fails."""
        if self._lock is None:
            return
        for wait in (*_WAITS, None):
            self._lock.check()
            try:
                return self._upload()
            except UserError as error:
                if wait is None:
                    raise
                self._log(f"{str(error).splitlines()[0]}; trying again.")
                time.sleep(wait)

    def _upload(self) -> None:
        names = [n for n in _names_in(self.directory) if _is_ours(n)]
        steps = _complete(names)
        left = {POINTER, *(n for n in names if _step_of(n) in steps)}
        remote.put(self.directory, [n for n in names if n not in left])
        there = set(remote.listing(self.directory))
        for step in steps:
            self._upload_step(step, _files_of(step, names), there)
        remote.put(self.directory, [POINTER] if POINTER in names else [])
        self._remove_old(set(remote.listing(self.directory)))

    def _upload_step(self, step: int, names: list[str], there: set[str]) -> None:
        manifest = names[-1]
        if manifest in there and not remote.has_changed(self.directory, manifest):
            return
        self._mark(step)
        remote.remove(self.directory, [manifest])
        remote.put(self.directory, names)
        remote.remove(self.directory, [name_of(step) + PARTIAL])

    def _remove_old(self, there: set[str]) -> None:
        for step in _complete(there)[: -self._keep or None] if self._keep else ():
            self._mark(step)
            self._remove_step(step, there)

    def _mark(self, step: int) -> None:
        """Says in the bucket that the files of a step are incomplete."""
        remote.write(os.path.join(self.directory, name_of(step) + PARTIAL), b"")

    def _remove_step(self, step: int, there: Iterable[str]) -> None:
        names = reversed(_files_of(step, there))
        remote.remove(self.directory, [*names, name_of(step) + PARTIAL])

    def _clear_rests(self) -> None:
        """Removes what a kill in an upload or a removal left in the bucket."""
        there = remote.listing(self.directory)
        for name in there:
            step = _step_of(name)
            if step is None or not name.endswith(PARTIAL):
                continue
            if step in _complete(there):
                remote.remove(self.directory, [name])
            else:
                self._remove_step(step, there)
                self._log(f"Cleared step {step}, left by an interrupted upload.")

    def _end_process(self) -> None:
        print(
            f"error: another process has taken {shown(self.directory)} over, because "
            "this one did not run for a minute. Checkpoints are intact.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_LOCKED)


def _names_in(folder: str) -> list[str]:
    """The files below a folder; not those in folders of interrupted writes."""
    found = []
    for directory, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.endswith(PARTIAL)]
        found += [os.path.join(directory, name) for name in files]
    return sorted(os.path.relpath(path, folder) for path in found)
