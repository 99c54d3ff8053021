# SPDX-License-Identifier: Apache-2.0
"""Tasks shared by the workers of Apache Beam.

Beam carries the tasks and nothing else; results are files in a folder that all workers
see. So it does not matter which worker has a task, how tasks are bundled, or whether a
bundle is repeated.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import queue
import shlex
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from electra_tf import startup
from electra_tf.errors import (
    EXIT_FLAGS,
    EXIT_PEER_LOST,
    UserError,
    as_text,
    as_user_error,
)
from electra_tf.storage.files import atomic_write

# Beam's own engine, in this process or in several of this machine. Its default, and
# "DirectRunner", would download a program first.
_LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_LOCAL_NAMES = (None, "DirectRunner", "FnApiRunner", "BundleBasedDirectRunner")

_KEPT = "What is finished is kept: run the command again to resume."

# A worker may run several bundles in threads. In Python one at a time is as fast and
# takes less memory.
_one_at_a_time = threading.Lock()


def for_each(
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
    runner, options = _options(beam_args)
    call = functools.partial(_call, error_path, os.getcwd(), function)

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
    if problem:
        if error := as_user_error(problem):
            raise error
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


def _options(beam_args: str) -> tuple[str, Any]:
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


def _call(
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
            try:
                atomic_write(error_path, json.dumps([str(e), e.exit_code]))
            except UserError:
                raise RuntimeError(as_text(e)) from None
