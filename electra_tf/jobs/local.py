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
    context = multiprocessing.get_context("spawn")
    open_until_end, end = context.Pipe(duplex=False)
    executor = concurrent.futures.ProcessPoolExecutor(
        num_processes, context, _start, (open_until_end, gpus)
    )
    try:
        # Ctrl-C is for this process, which ends the others. They inherit the mask.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            futures = {executor.submit(function, *task) for task in tasks}
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
