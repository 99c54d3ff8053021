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
import logging
import multiprocessing
import multiprocessing.connection
import os
import queue
import shlex
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf import startup
from electra_tf.console import Console, duration
from electra_tf.errors import EXIT_FLAGS, EXIT_PEER_LOST, UserError
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
from electra_tf.storage.manifest import MANIFEST, read_json, record_of
from electra_tf.storage.mirror import Mirror

STATE = "job.json"  # until there is a manifest
OWN = ".job"  # a folder inside the job's, removed at the end


class JobFolder(Mirror):
    """The folder of a job: its state on opening, and its files.

    Args:
      settings: all that makes two jobs the same, in JSON.

    Attributes:
      state: of an unfinished job with the same settings; of a finished one the
        manifest; None for a new folder.
      is_finished: there is nothing to do.
    """

    may_grow = False

    def __init__(self, path: str, settings: dict[str, Any], flag: str):
        super().__init__(path, flag=flag)
        self.path, self._settings = path, settings

    def _read(self) -> None:
        sizes = self.sizes()
        self.state = _state(self.path, self._settings, sizes)
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
        self.discard_job()

    def discard_job(self, results: Sequence[str] = ()) -> None:
        """Removes what only the unfinished job needed, and results of it."""
        own = os.path.join(self.path, OWN)
        records = [os.path.join(OWN, name) for name in names_below(own)]
        self.discard([*records, *results, STATE])
        shutil.rmtree(own, ignore_errors=True)


@contextlib.contextmanager
def opened(
    path: str, settings: dict[str, Any], flag: str = "--output-dir"
) -> Iterator[JobFolder]:
    """Makes a folder, reads its state, and keeps other processes out of it.

    A finished one is left unchanged, and may be read-only.

    Raises UserError: 73 where it cannot be made, 75 while another process has it, 2 if
    it holds anything else or was made with other settings.
    """
    folder = JobFolder(path, settings, flag)
    is_finished = MANIFEST in folder.sizes()
    if is_finished:
        remote.fetch(os.path.join(path, MANIFEST))
    # Before this nothing may be read, brought or removed: it may be another's.
    with contextlib.nullcontext() if is_finished else folder:
        folder._read()
        yield folder


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
        whatever else is to be recorded, in JSON. Workers must be able to import it.
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
            _for_each_in_beam(execute, tasks, error_path, runner.beam_args)
    finally:
        folder.remove_partial()
    if missing := sum(not record for record in folder.records(job.name, count)):
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
            files.append({"name": file} | record_of(Path(temporary, file)))
        path = record_path(folder, name, number)
        atomic_write(path, json.dumps({"files": files, **facts}) + "\n")
        for file in files:
            place = os.path.join(folder, file["name"])
            os.replace(os.path.join(temporary, file["name"]), place)
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


# The workers of Apache Beam.

# Beam carries the tasks and nothing else; results are files in a folder that all
# workers see. So it does not matter which worker has a task, how tasks are bundled, or
# whether a bundle is repeated.

# Beam's own engine, in this process or in several of this machine. Its default, and
# "DirectRunner", would download a program first.
_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_LOCAL_NAMES = (None, "DirectRunner", "FnApiRunner", "BundleBasedDirectRunner")

_KEPT = "What is finished is kept: run the command again to resume."

# A worker may run several bundles in threads. In Python one at a time is as fast and
# takes less memory.
_one_at_a_time = threading.Lock()


def _for_each_in_beam(
    function: Callable[[str], Any],
    tasks: Sequence[str],
    error_path: str,
    beam_args: str = "",
) -> None:
    """Calls `function(task)` for every task, at least once, in Beam's workers.

    Args:
      function: of a module that workers can import, or a partial of one.
      error_path: of a file that all workers see, for the first error.
      beam_args: Beam's options, as on a command line; without --runner, Beam's own
        engine in this process.

    Raises the first `UserError` of a call; a `UserError` for what prevents the run.
    """
    logging.disable(logging.WARNING)  # of optional parts that are not needed here
    try:
        with startup.optional("apache-beam", "--runner beam", "beam"):
            import apache_beam as beam
    finally:
        logging.disable(logging.NOTSET)
    error_path = os.path.abspath(error_path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(error_path)
    runner, options = _beam_options(beam_args)
    call = functools.partial(_call_in_beam, error_path, os.getcwd(), function)

    def run() -> None:
        pipeline = beam.Pipeline(runner=runner, options=options)
        (
            pipeline
            | "Tasks" >> beam.Create(list(tasks))
            | "Spread" >> beam.Reshuffle()
            | "Work" >> beam.Map(call)
        )
        if (state := pipeline.run().wait_until_finish()) in ("FAILED", "CANCELLED"):
            raise RuntimeError(f"the pipeline ended as {state}")

    problem = _watched(run)
    with contextlib.suppress(FileNotFoundError):
        with open(error_path, encoding="utf-8") as f:
            stored = json.load(f)
        os.unlink(error_path)
        raise UserError(*stored)
    if isinstance(problem, UserError):
        raise problem
    if problem:
        path = f"{os.path.dirname(error_path)}/beam_traceback.txt"
        atomic_write(path, "".join(traceback.format_exception(problem)))
        reason = str(problem).strip().rpartition("\n")[2]
        raise UserError(
            f"the Beam runner failed: {type(problem).__name__}: {reason:.300}\n"
            f"{_KEPT}\nThe traceback is in {path}."
        )


def _watched(run: Callable[[], None]) -> Exception | None:
    """What `run` raised; a `UserError` (69) when a thread that it started failed.

    Beam's own engine waits for ever for a worker process that was killed.
    """
    ended: queue.Queue[Exception | None] = queue.Queue()

    def guarded() -> None:
        try:
            run()
        except Exception as e:  # runners raise what they like
            ended.put(e)
        ended.put(None)

    lost = UserError(
        f"a worker of Beam was killed or lost, perhaps for want of memory.\n{_KEPT}",
        EXIT_PEER_LOST,
    )
    before, threading.excepthook = threading.excepthook, lambda _: ended.put(lost)
    try:
        threading.Thread(target=guarded, daemon=True).start()
        return ended.get()
    finally:
        threading.excepthook = before


def _beam_options(beam_args: str) -> tuple[str, Any]:
    from apache_beam.options import pipeline_options

    # Errors are raised, and reported once.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    # Workers that Beam starts on this machine also import this package.
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        options = pipeline_options.PipelineOptions(shlex.split(beam_args))
        standard = options.view_as(pipeline_options.StandardOptions)
    except (ValueError, SystemExit) as e:
        raise UserError(f"--beam-args cannot be read: {e}", EXIT_FLAGS) from None
    if standard.runner in _LOCAL_NAMES:
        standard.runner = _LOCAL_RUNNER
    return standard.runner, options


def _call_in_beam(
    error_path: str, directory: str, function: Callable[[str], Any], task: str
) -> None:
    """Calls the function in a worker; stores its `UserError` for the caller.

    If it were raised, it would be tried again, to no avail.
    """
    with _one_at_a_time:
        if os.path.exists(error_path):
            return  # Another task has failed: the run is over.
        with contextlib.suppress(OSError):
            os.chdir(directory)
        try:
            function(task)
        except UserError as e:
            atomic_write(error_path, json.dumps([str(e), e.exit_code]))
