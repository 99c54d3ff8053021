# SPDX-License-Identifier: Apache-2.0
"""A bucket is a mirror: runs and jobs work in local directories, also for buckets.

A run writes to its copy, with all that `Checkpoints` promises; after each save the
files are uploaded. A checkpoint is in the bucket when its manifest is, which is
uploaded last and removed first. The rest that a kill leaves is ignored, and
overwritten or removed by a later save.

Every start downloads the newest intact checkpoint of the bucket. Steps that were
not uploaded before a kill are computed again, to the same bits.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_LOCKED, UserError
from electra_tf.paths import url_of
from electra_tf.storage import remote
from electra_tf.storage.files import PARTIAL, names_below
from electra_tf.storage.lock import Lock, is_of_lock
from electra_tf.storage.manifest import (
    CHECKPOINT_MANIFEST,
    CORRUPT,
    POINTER,
    DamagedCheckpointError,
    complete_steps,
    name_of,
    split_name,
    verify_checkpoint,
)

# Other files below a run's directory.
_OTHERS = ("run.lock", "finetuning_models/", "finetuning_tfrecords/", "training/")
# The folders with checkpoints of a run; the second is that of a fine-tuning that keeps
# the best weights, and is uploaded later: it must not be ahead of the scores.
_FOLDERS = ("", "training")
_WAITS = (2.0, 10.0, 30.0)  # seconds before a failed upload is tried again


def bring_model(path: str | os.PathLike) -> None:
    """Downloads the files of a model; of a run the newest intact checkpoint.

    Args:
      path: a directory, or the prefix of a checkpoint; nothing happens unless it is in
        a bucket.

    Raises `UserError` (2) when the store cannot be reached.
    """
    path = os.fspath(path).rstrip("/")
    if url_of(path):
        _bring_model(path)


@functools.cache
def _bring_model(path: str) -> None:
    if remote.listing(path):
        _bring_run(path)
        return
    folder, name = os.path.split(path)

    def belongs(other: str) -> bool:
        """Files of no checkpoint belong to each."""
        is_tensors = ".data-" in other or other.endswith((".index", ".meta"))
        named = other.startswith(f"{name}.") or not (is_tensors or split_name(other))
        return _is_ours(other) and "/" not in other and named

    remote.bring(folder, belongs)


def _bring_run(path: str, is_writer: bool = False) -> None:
    """Downloads a run's files, of its checkpoints only the newest intact one."""

    def rest(there):
        is_new = is_writer and POINTER not in there  # none is complete yet
        if not (complete_steps(there) or is_new):
            return list(there)  # maybe the original's checkpoints, without manifests
        return [name for name in there if _step_of(name) is None]

    names = remote.bring(path, _is_ours, rest, is_writer)
    for step in reversed(complete_steps(names)):
        files = functools.partial(_files_of, step)
        remote.bring(path, _is_ours, files, is_writer)
        with contextlib.suppress(DamagedCheckpointError):  # `Checkpoints` reports it
            verify_checkpoint(Path(path), step)
            return


def _is_ours(name: str) -> bool:
    return not (name.startswith(_OTHERS) or name.endswith((PARTIAL, CORRUPT)))


def _step_of(name: str) -> int | None:
    return (split_name(name) or (None, ""))[0]


def _files_of(step: int, names: Iterable[str]) -> list[str]:
    """The files of a checkpoint, its manifest last."""
    manifest = name_of(step) + CHECKPOINT_MANIFEST
    own = [n for n in names if _step_of(n) == step and not n.endswith(PARTIAL)]
    return sorted(own, key=lambda name: (name == manifest, name))


def _remove_incomplete(folder: str) -> None:
    """Removes copies of checkpoints whose upload was interrupted."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    steps = {None, *complete_steps(names)}
    for name in names:
        if _is_ours(name) and _step_of(name) not in steps:
            os.unlink(os.path.join(folder, name))


class Mirror:
    """The directory of a run or job, in a bucket or not, as a context manager.

    A writer has its lock. Entering downloads what is in the bucket; in the end a writer
    uploads the rest. For a local directory it is the lock alone.

    Args:
      directory: where the files are, or their copies.
      writes: whether this process writes there.
      keep: how many checkpoints stay in the bucket; 0 keeps all.
      flag: see `Lock`.
      log: called with one line of text.

    Entering raises `UserError`: 2 when the store cannot be reached, 73 when it cannot
    be written, 75 when another process writes there.

    Attributes:
      may_grow: whether files, then small ones, may grow while they are uploaded.
    """

    may_grow = True

    def __init__(
        self,
        directory: str | os.PathLike,
        writes: bool = True,
        *,
        keep: int = 0,
        flag: str = "--model-name",
        log: Callable[[str], None] = print,
    ):
        self._directory = os.fspath(directory)
        self._lock = Lock(directory, flag) if writes else None
        self._keep, self._log, self._is_removed = keep, log, False
        names = _FOLDERS if url_of(directory) else ()
        self._folders = [os.path.join(directory, name) for name in names]
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Mirror:
        with contextlib.ExitStack() as stack:
            if self._lock:
                stack.enter_context(self._lock)
            for folder in self._folders:
                _bring_run(folder, is_writer=self._lock is not None)
                if self._lock:
                    _remove_incomplete(folder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, error, _) -> None:
        with self._stack:
            code = getattr(error, "exit_code", None)
            if self._is_removed or code in (EXIT_CANNOT_WRITE, EXIT_LOCKED):
                return
            with contextlib.suppress(UserError) if error else contextlib.nullcontext():
                self.upload()

    def sizes(self) -> dict[str, int]:
        """Name -> bytes of what is there, in the bucket if it is in one."""
        sizes = remote.sizes_in(self._directory)
        return {n: size for n, size in sizes.items() if not is_of_lock(n)}

    def check(self) -> None:
        """Raises `UserError` (75) when the lock was lost: others may write now."""
        if self._lock:
            self._lock.check()

    def discard(self, names: Iterable[str]) -> None:
        """Removes files, in a bucket as well, one after the other."""
        for name in names:
            remote.remove(self._directory, [name])
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, name))

    def remove(self) -> None:
        """Removes the directory, in a bucket as well: the manifests first."""
        if self._folders:
            first = CHECKPOINT_MANIFEST
            names = sorted(self.sizes(), key=lambda name: not name.endswith(first))
            remote.remove(self._directory, names)
        for entry in os.scandir(self._directory):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry, ignore_errors=True)
            elif not is_of_lock(entry.name):
                os.unlink(entry)
        self._is_removed = True
        if self._lock:
            self._lock.removes_folder = True

    def upload(self) -> None:
        """Uploads what has changed; raises `UserError` (73, 75) if that fails."""
        if self._lock is None or not self._folders:
            return
        for wait in (*_WAITS, None):
            try:
                self._lock.check()
                for folder in self._folders:
                    self._upload(folder)
                return
            except UserError as error:
                if error.exit_code == EXIT_LOCKED:
                    raise
                if wait is None:  # 73 whether it failed at looking or at writing
                    raise UserError(str(error), EXIT_CANNOT_WRITE) from error
                self._log(f"{str(error).splitlines()[0]}; trying again.")
                time.sleep(wait)

    def _upload(self, folder: str) -> None:
        names = [name for name in names_below(folder) if _is_ours(name)]
        steps = complete_steps(names)
        # Training writes on meanwhile, to metrics and events.
        others = [n for n in names if n != POINTER and _step_of(n) not in steps]
        remote.put(folder, others, may_grow=self.may_grow)
        there = set(remote.listing(folder))
        for step in steps:
            files = _files_of(step, names)
            if files[-1] not in there or remote.has_changed(folder, files[-1]):
                remote.remove(folder, reversed(files))
                remote.put(folder, files)
        remote.put(folder, [POINTER] if POINTER in names else [])
        there = set(remote.listing(folder))
        for step in self._outdated(steps, there):
            remote.remove(folder, reversed(_files_of(step, there)))

    def _outdated(self, own: list[int], there: Iterable[str]) -> list[int]:
        """The steps to remove from the bucket; `own` are the steps of the copy.

        The copy began with the newest intact one: newer steps of the bucket that the
        copy lacks are damaged. They do not count among those to keep, and are removed
        once the run is past them.
        """
        if not (self._keep and own):
            return []
        older = [step for step in complete_steps(there) if step < own[0]]
        kept = [*older, *own][-self._keep :]
        steps = sorted({*map(_step_of, there)} - {None, *kept})
        return [step for step in steps if step < own[-1]]


class Outputs:
    """Files in a folder that several commands write into, as a context manager.

    Entering checks that the bucket can be written, leaving without an error uploads.
    For a local folder nothing happens.

    Args:
      prefix: of the names that this process writes.
      resumes: whether entering also downloads the files.
    """

    def __init__(self, folder: str | os.PathLike, prefix: str, resumes: bool = False):
        self._folder, self._prefix = os.fspath(folder) or ".", prefix
        self._is_remote, self._resumes = url_of(self._folder) is not None, resumes

    def __enter__(self) -> Outputs:
        remote.check_writable(self._folder)
        if self._is_remote and self._resumes:
            remote.bring(self._folder, self._is_own, keeps_own=True)
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            self.upload()

    def upload(self) -> None:
        """Uploads what has changed, as it was written: the oldest file first.

        Raises `UserError` (73) if that fails.
        """
        if self._is_remote:
            names = names_below(self._folder)
            own = [*filter(self._is_own, names)]
            own.sort(key=lambda name: os.stat(f"{self._folder}/{name}").st_mtime_ns)
            remote.put(self._folder, own)

    def _is_own(self, name: str) -> bool:
        return name.startswith(self._prefix)
