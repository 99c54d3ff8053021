# SPDX-License-Identifier: Apache-2.0
"""Tasks shared by fresh processes of this machine, which end when this one does."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from electra_tf.errors import UserError


class _Process(multiprocessing.context.SpawnProcess):
    """Is not reached by Ctrl-C: the process that started it ends it.

    Otherwise a worker that ends first looks as if it was killed.
    """

    def start(self) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            super().start()  # A new process inherits what is blocked.
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(multiprocessing.context.SpawnContext):
    Process = _Process


def results(
    num_processes: int,
    function: Callable[..., Any],
    tasks: Sequence[tuple],
    gpus: Sequence[str] = (),
) -> Iterator[Any]:
    """Yields `function(*task)` of all tasks as they end.

    One process is this one; others are fresh, because a forked copy of a process that
    has used TensorFlow may hang. An error cancels what has not begun; Ctrl-C ends what
    runs, too.

    Args:
      gpus: their names; each new process has one of them, in turn.

    Raises `UserError` when a process was killed.
    """
    if num_processes == 1:
        for task in tasks:
            yield function(*task)
        return
    context = _Context()
    open_until_end, end = context.Pipe(duplex=False)
    executor = concurrent.futures.ProcessPoolExecutor(
        num_processes, context, _start, (open_until_end, gpus)
    )
    try:
        futures = {executor.submit(function, *task) for task in tasks}
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
