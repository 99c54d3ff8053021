# SPDX-License-Identifier: Apache-2.0
"""Worker processes that end when the process that started them does."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from electra_tf.errors import UserError

# The environment variable that names the process which this one should not outlive.
ENDS_WITH_PARENT = "ELECTRA_TF_ENDS_WITH"


@contextlib.contextmanager
def pool(
    num_processes: int, initializer: Callable[..., Any] | None = None, *args: Any
) -> Iterator[concurrent.futures.ProcessPoolExecutor]:
    """An executor of fresh processes, each of which calls `initializer(*args)` first.

    Fresh, because a forked copy of a process that has used TensorFlow may hang. What
    has not begun at the end of the block is cancelled. Raises `UserError` when a
    process was killed.
    """
    executor = concurrent.futures.ProcessPoolExecutor(
        num_processes,
        multiprocessing.get_context("spawn"),
        _start,
        (initializer, args),
    )
    try:
        yield executor
    except concurrent.futures.process.BrokenProcessPool:
        raise UserError(
            "a worker process was killed, perhaps for want of memory.\n"
            "Run the command again with fewer --num-processes (run_inference.py: "
            "--workers)."
        ) from None
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def results(
    num_processes: int,
    function: Callable[..., Any],
    tasks: Sequence[tuple],
    initializer: Callable[..., Any] | None = None,
    *args: Any,
) -> Iterator[tuple[int, Any]]:
    """Yields (number of the task, `function(*task)`) of all tasks as they end.

    One process is this one. Others call `initializer(*args)` first, as in `pool`.
    """
    if num_processes == 1:
        for number, task in enumerate(tasks):
            yield number, function(*task)
        return
    with pool(num_processes, initializer, *args) as executor:
        futures = {
            executor.submit(function, *task): number
            for number, task in enumerate(tasks)
        }
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()


def gpus() -> list[str]:
    """The GPUs that a process may see, as CUDA_VISIBLE_DEVICES names them."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name and name != "-1"]
    names = os.listdir("/dev") if os.path.isdir("/dev") else []
    found = (re.fullmatch(r"nvidia(\d+)", name) for name in names)
    return sorted((match[1] for match in found if match), key=int)


def _start(initializer: Callable[..., Any] | None, args: tuple) -> None:
    parent = multiprocessing.parent_process().sentinel
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if initializer:
        initializer(*args)


def _end_with(sentinel: int) -> None:
    """Ends this process when its parent has ended, however that came about."""
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def end_with_parent() -> None:
    """Ends this process, from now on, when the one that its environment names has."""
    parent = os.environ.get(ENDS_WITH_PARENT)
    if parent:
        threading.Thread(target=_end_without, args=(int(parent),), daemon=True).start()


def _end_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
