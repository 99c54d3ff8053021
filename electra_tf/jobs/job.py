# SPDX-License-Identifier: Apache-2.0
"""A job: tasks that make files, done by local processes or by Apache Beam.

A task's files depend on the task alone, so it does not matter who executes it, when, or
how often.
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.console import Console, duration
from electra_tf.errors import UserError
from electra_tf.jobs import beam
from electra_tf.jobs import folder as job_folder
from electra_tf.jobs.folder import OWN, JobFolder
from electra_tf.storage.atomic_folder import sync_folder
from electra_tf.storage.files import PARTIAL, atomic_write, cannot_write, sync_directory
from electra_tf.storage.manifest import record_of


class Job(NamedTuple):
    """Work that is the same for any runner.

    Attributes:
      name: in the progress line, and of the records.
      work: makes the files of a task in an empty folder, and returns counts and
        whatever else is to be recorded, in JSON. Hidden files are for later jobs in the
        folder, which find them in `folder.OWN`. Workers must be able to import it.
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
            beam.for_each(execute, tasks, folder.path, runner.beam_args)
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
    if job_folder.read_record(folder, name, number):
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
        path = job_folder.record_path(folder, name, number)
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
