# SPDX-License-Identifier: Apache-2.0
"""Apache Beam as one more way to share work: a function called with each of many tasks.

Beam carries the tasks and nothing else. What a call makes it leaves as files, written
under a name of their own and renamed, in a folder that all workers and the caller see.
So it does not matter which worker has a task, how tasks are bundled, or whether a
bundle is made again, at once or after a failure.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import queue
import shlex
import socket
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from electra_tf.errors import (
    EXIT_CONFIG,
    EXIT_FLAGS,
    EXIT_PEER_LOST,
    UserError,
    as_text,
    as_user_error,
)

# Beam's own engine, in this process or in some of this machine. What Beam does by
# default, and for "DirectRunner", is to download a program first.
_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_LOCAL_NAMES = ("DirectRunner", "FnApiRunner", "BundleBasedDirectRunner")

_ERROR_FILE = ".error.json"

Call = Callable[[Callable[[str], Any], str], Any]

# A worker may run several bundles in threads. The work is Python's: one at a time is as
# fast, takes less memory, and nothing that is called has to know about threads.
_one_at_a_time = threading.Lock()


def for_each(
    step: Callable[[Call], Any],
    tasks: Sequence[str],
    folder: str | os.PathLike,
    beam_args: str = "",
) -> None:
    """Has Beam's workers make every task at least once.

    Args:
      step: is given a function for workers to call as `call(function, task)`, with
        functions of modules that they can import, or partials of these; gives the step
        of the pipeline that does so. See `step_of`.
      folder: all workers see it; relative paths are from the same place for all.
      beam_args: Beam's options, as on a command line; without --runner, Beam's own
        engine in this process.

    Raises the first `UserError` of a call; a `UserError` for what prevents the run.
    """
    logging.disable(logging.WARNING)  # It tells of parts that nobody needs here.
    try:
        import apache_beam as beam
    except ImportError:
        raise UserError(
            "--runner beam needs the package apache-beam, which is not installed.\n"
            'Install it: pip install -e ".[beam]"',
            EXIT_CONFIG,
        ) from None
    finally:
        logging.disable(logging.NOTSET)
    folder = os.path.abspath(folder)
    error_path = os.path.join(folder, _ERROR_FILE)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(error_path)
    runner, options = _options(beam_args)
    work = step(functools.partial(_call, folder, os.getcwd()))

    def run() -> None:
        pipeline = beam.Pipeline(runner=runner, options=options)
        (
            pipeline
            | "Tasks" >> beam.Create(list(tasks))
            | "Spread" >> beam.Reshuffle()
            | "Work" >> work
        )
        state = pipeline.run().wait_until_finish()
        if state in ("FAILED", "CANCELLED"):
            raise RuntimeError(f"the pipeline ended as {state}")

    problem = _watched(run)
    _raise_stored(error_path)
    if problem:
        raise _failed(problem, folder)


def step_of(function: Callable[[str], Any]) -> Callable[[Call], Any]:
    """For `for_each`: the step that calls `function(task)`."""

    def step(call: Call) -> Any:
        import apache_beam as beam

        return beam.Map(functools.partial(call, function))

    return step


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
        else:
            ended.put(None)

    def lost(args: Any) -> None:
        ended.put(
            UserError(
                "a worker of Beam was killed or lost, perhaps for want of memory.\n"
                "What is finished is kept: run the command again to go on.",
                EXIT_PEER_LOST,
            )
        )

    before, threading.excepthook = threading.excepthook, lost
    try:
        threading.Thread(target=guarded, daemon=True).start()
        return ended.get()
    finally:
        threading.excepthook = before


def _options(beam_args: str) -> tuple[str | None, Any]:
    from apache_beam.options import pipeline_options

    # What goes wrong is raised, and said once.
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    # Workers that Beam starts on this machine import this package, too.
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])
    try:
        args = shlex.split(beam_args)
        options = pipeline_options.PipelineOptions(args)
        name = options.view_as(pipeline_options.StandardOptions).runner
        unknown = [arg for arg in args if not arg.startswith("-")]
    except (ValueError, SystemExit) as e:
        raise UserError(f"--beam-args cannot be read: {e}", EXIT_FLAGS) from None
    if unknown and not any(arg.startswith("--") and "=" not in arg for arg in args):
        raise UserError(
            f"--beam-args: {unknown[0]!r} is no option.\nGive options of Beam in one "
            "pair of quotes, as --beam-args='--runner=FlinkRunner --parallelism=8'.",
            EXIT_FLAGS,
        )
    if name is None or name in _LOCAL_NAMES:
        name = _LOCAL_RUNNER
        options.view_as(pipeline_options.StandardOptions).runner = name
    return name, options


def _call(folder: str, place: str, function: Callable[[str], Any], task: str) -> Any:
    """Calls the function in a worker; leaves its `UserError` where the caller finds it.

    Raised, it would be tried again, to no avail. The result is None then.
    """
    error_path = os.path.join(folder, _ERROR_FILE)
    with _one_at_a_time:
        if os.path.exists(error_path):
            return None  # Another task has failed: the run is over.
        try:
            _go_to(folder, place)
            return function(task)
        except UserError as e:
            _store(e, error_path)
            return None


def _go_to(folder: str, place: str) -> None:
    if not os.path.isdir(folder):
        raise UserError(
            f"a worker on {socket.gethostname()} does not see {folder}.\nWorkers of "
            "--runner beam read the corpus and write the result on a file system that "
            "all machines share."
        )
    with contextlib.suppress(OSError):
        os.chdir(place)


def _store(error: UserError, path: str) -> None:
    partial = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        with open(partial, "w", encoding="utf-8") as f:
            json.dump({"message": str(error), "exit_code": error.exit_code}, f)
        os.replace(partial, path)
    except OSError:
        raise RuntimeError(as_text(error)) from None


def _raise_stored(path: str) -> None:
    try:
        with open(path, encoding="utf-8") as f:
            stored = json.load(f)
    except FileNotFoundError:
        return
    os.unlink(path)
    raise UserError(stored["message"], stored["exit_code"])


def _failed(error: Exception, folder: str) -> UserError:
    """The error for a run that ended, in three lines; all of it is in a file."""
    if found := as_user_error(error):
        return found
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    reason = f"{type(error).__name__}: {lines[-1].strip() if lines else ''}"
    path = f"{folder}.beam_traceback.txt"
    where = ""
    with contextlib.suppress(OSError):
        with open(path, "w", encoding="utf-8") as f:
            f.write("".join(traceback.format_exception(error)))
        where = f" All that it said is in {path}."
    return UserError(
        f"the Beam runner failed: {reason:.300}\nWhat is finished is kept: run the "
        f"command again to go on, or see docs/scale.md.{where}"
    )
