# SPDX-License-Identifier: Apache-2.0
"""A job: tasks that make files in a folder, done by local processes or by Apache Beam.

A task's files depend on the task alone, so it does not matter who executes it, when, or
how often. A folder has one writer at a time. Its settings come first, the manifest
last. A task records its files before they get their names, so that a file with its name
is complete; nothing is ever overwritten.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import glob
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.console import Console, duration
from electra_tf.errors import UserError
from electra_tf.jobs import beam
from electra_tf.storage import remote
from electra_tf.storage.atomic_folder import sync_folder
from electra_tf.storage.checkpoints import as_text, differences
from electra_tf.storage.files import (
    PARTIAL,
    atomic_write,
    cannot_write,
    names_below,
    sync_directory,
)
from electra_tf.storage.lock import is_of_lock
from electra_tf.storage.manifest import MANIFEST, read_json, record_of
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
    mirror = Mirror(path, flag=flag, may_grow=False)
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


# Its tasks.


class Job(NamedTuple):
    """Work that is the same for any runner.

    Attributes:
      name: in the progress line, and of the records.
      work: makes the files of a task in an empty folder, and returns counts and
        whatever else is to be recorded, in JSON. Hidden files are for later jobs in the
        folder, which find them in `OWN`. Workers must be able to import it.
      tasks: in JSON.
      sizes: bytes of input of each.
    """

    name: str
    work: Callable[[Any, str], dict[str, Any]]
    tasks: Sequence[Any]
    sizes: Sequence[int]


class Runner(NamedTuple):
    """Who executes tasks: processes of this machine or, with its options, Beam."""

    num_processes: int = 1
    beam_args: str | None = None
    gpus: Sequence[str] = ()


def run(folder: JobFolder, job: Job, runner: Runner) -> None:
    """Executes the tasks that are not finished.

    Raises the first `UserError` of a task; a `UserError` for killed workers.
    """
    count = len(job.tasks)
    left = [n for n, record in enumerate(folder.records(job.name, count)) if not record]
    if not left:
        return
    progress = _Progress(job, sorted({*range(count)} - {*left}))
    tasks = [json.dumps([number, job.tasks[number]]) for number in left]
    execute = functools.partial(_execute, folder.path, job.name, job.work)
    os.makedirs(os.path.join(folder.path, OWN), exist_ok=True)
    try:
        if runner.beam_args is None:
            processes = min(runner.num_processes, max(len(left), 2 * bool(runner.gpus)))
            for number in _results(processes, execute, tasks, runner.gpus):
                progress.add(number)
                folder.upload()
        else:
            print(f"{job.name}: {len(left)} of {count} parts with Beam", flush=True)
            error_path = os.path.join(folder.path, OWN, "error.json")
            beam.for_each(execute, tasks, error_path, runner.beam_args)
    finally:
        folder.remove_partial()
    if missing := list(folder.records(job.name, count)).count(None):
        raise UserError(
            f"all is done, but {missing} of {count} parts are not in {folder.path}.\n"
            "Do all workers write to one file system? Run the command again to resume."
        )


def _execute(
    folder: str, name: str, work: Callable[[Any, str], dict[str, Any]], task: str
) -> int:
    """Makes the files of a task, unless they are there; returns its number."""
    number, content = json.loads(task)
    if read_record(folder, name, number):
        return number
    temporary = f".{name}-{number:05d}.{os.urandom(8).hex()}{PARTIAL}"
    temporary = os.path.join(folder, OWN, temporary)
    try:
        os.makedirs(temporary)
        facts = work(content, temporary)
        sync_folder(Path(temporary))
        files = []
        for file in sorted(os.listdir(temporary)):
            place = f"{OWN}/{file}" if file[0] == "." else file
            files.append({"name": place} | record_of(Path(temporary, file)))
        path = record_path(folder, name, number)
        atomic_write(path, json.dumps({"files": files, **facts}) + "\n")
        for file in files:
            place = os.path.join(folder, file["name"])
            os.replace(os.path.join(temporary, os.path.basename(place)), place)
        sync_directory(folder)
    except OSError as e:
        raise cannot_write(folder, e) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return number


class _Progress:
    """How much is done, how fast it goes, and the time that is left."""

    def __init__(self, job: Job, finished: Sequence[int]):
        self._job, self._console = job, Console(sys.stderr)
        self._name = job.name.replace("_", " ")
        self._parts = len(finished)
        self._bytes = self._first = sum(job.sizes[number] for number in finished)
        self._begin = time.monotonic()
        if finished:
            done = f"{self._parts:,} of {len(job.sizes):,}"
            self._console.log(f"{self._name}: {done} parts exist.")

    def add(self, number: int) -> None:
        """Counts a task that this run has finished, and shows it."""
        self._parts += 1
        self._bytes += self._job.sizes[number]
        seconds = max(1e-3, time.monotonic() - self._begin)
        parts, total = len(self._job.sizes), sum(self._job.sizes)
        speed = (self._bytes - self._first) / seconds
        line = f"{self._name}: "
        if parts > 1:
            line += f"{self._parts:,} of {parts:,} parts, "
        line += f"{self._bytes / 1e6:,.1f} of {total / 1e6:,.1f} MB, "
        line += f"{speed / 1e6:,.2f} MB/s, {duration(seconds)}"
        if self._parts == parts:
            self._console.log(line)
        else:
            left = duration((total - self._bytes) / max(1, speed))
            self._console.tick(f"{line}, {left} left")


# Processes of this machine.


def _results(
    num_processes: int,
    function: Callable[[str], int],
    tasks: Sequence[str],
    gpus: Sequence[str],
) -> Iterator[int]:
    """Yields `function(task)` of all tasks as they end.

    One process is this one; others are fresh, because a forked copy of a process that
    has used TensorFlow may hang. An error cancels waiting tasks; Ctrl-C ends running
    ones, too.

    Args:
      gpus: their names; each new process has one of them, in turn.

    Raises `UserError` when a process was killed.
    """
    if num_processes == 1:
        for task in tasks:
            yield function(task)
        return
    context = multiprocessing.get_context("spawn")
    open_until_end, end = context.Pipe(duplex=False)
    executor = concurrent.futures.ProcessPoolExecutor(
        num_processes, context, _start, (open_until_end, gpus)
    )
    try:
        # Ctrl-C is for this process, which ends the others. They inherit the mask.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            futures = {executor.submit(function, task) for task in tasks}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for future in concurrent.futures.as_completed(futures):
            futures.remove(future)  # The results of all would fill the memory.
            yield future.result()
    except KeyboardInterrupt:
        end.close()
        raise
    except concurrent.futures.process.BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps for want of memory.\n"
            "Run the command again with fewer --num-processes (run_inference.py: "
            "--workers)."
        ) from None
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start(
    open_until_end: multiprocessing.connection.Connection, gpus: Sequence[str]
) -> None:
    ends = [multiprocessing.parent_process().sentinel, open_until_end]
    threading.Thread(target=_end_with, args=(ends,), daemon=True).start()
    if gpus:
        number = int(multiprocessing.current_process().name.rpartition("-")[2])
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def _end_with(ends: list) -> None:
    """Ends this process when its parent has ended, or has closed the connection."""
    multiprocessing.connection.wait(ends)
    os._exit(1)
