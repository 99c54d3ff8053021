# SPDX-License-Identifier: Apache-2.0
"""Requests that wait while the model is busy are answered together.

Nothing waits for company: an idle model takes what is there.
"""

import asyncio
import collections
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from models import BadRequest

Arrays = dict[str, np.ndarray]


class Overloaded(Exception):
    """Too many rows are waiting."""


class _Waiting(NamedTuple):
    inputs: Arrays
    rows: int
    future: asyncio.Future


class Batcher:
    """Runs one function on the requests of many clients, in batches.

    Args:
      run: from the name of a signature and its inputs to its outputs; all of them
        arrays whose first dimension counts rows.
      max_batch_size: rows that run together; a larger request runs alone.
      max_waiting: rows that may wait before requests are turned away.
    """

    def __init__(
        self,
        run: Callable[[str, Arrays], Arrays],
        max_batch_size: int = 32,
        max_waiting: int = 1024,
    ):
        self._run = run
        self.max_batch_size = max_batch_size
        self.max_waiting = max_waiting
        self.largest_batch = 0
        self._waiting = 0
        # Requests that can be put together, by signature and the shape of a row.
        self._queues: dict[tuple, collections.deque[_Waiting]] = {}
        self._executor = ThreadPoolExecutor(1)
        self._worker: asyncio.Task | None = None

    async def submit(self, signature: str, inputs: Arrays) -> Arrays:
        """The outputs for one request's rows; raises what `run` raises for it."""
        rows = len(next(iter(inputs.values())))
        if self._waiting + rows > max(self.max_waiting, rows):
            raise Overloaded(f"{self._waiting} rows are waiting; try again later")
        shapes = tuple((name, x.shape[1:]) for name, x in sorted(inputs.items()))
        future = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault((signature, shapes), collections.deque())
        queue.append(_Waiting(inputs, rows, future))
        self._waiting += rows
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queues:
            # The next batch is of the kind whose turn it is, so that none starves.
            key, queue = next(iter(self._queues.items()))
            batch = self._take(queue)
            del self._queues[key]
            if queue:
                self._queues[key] = queue
            try:
                await loop.run_in_executor(self._executor, self._answer, key[0], batch)
            finally:
                self._waiting -= sum(waiting.rows for waiting in batch)
        self._worker = None

    def _take(self, queue: collections.deque[_Waiting]) -> list[_Waiting]:
        batch, rows = [queue.popleft()], 0
        rows = batch[0].rows
        while queue and rows + queue[0].rows <= self.max_batch_size:
            batch.append(queue.popleft())
            rows += batch[-1].rows
        self.largest_batch = max(self.largest_batch, rows)
        return batch

    def _answer(self, signature: str, batch: list[_Waiting]) -> None:
        """Runs a batch in the executor's thread; every future gets its answer."""
        try:
            names = batch[0].inputs
            together = {n: np.concatenate([w.inputs[n] for w in batch]) for n in names}
            outputs = self._run(signature, together)
        except BadRequest as error:
            if len(batch) == 1:
                _tell(batch[0].future, error)
                return
            # One bad request must not spoil the others.
            for waiting in batch:
                self._answer(signature, [waiting])
            return
        except Exception as error:  # noqa: BLE001 - goes to whoever waits
            for waiting in batch:
                _tell(waiting.future, error)
            return
        first = 0
        for waiting in batch:
            last = first + waiting.rows
            part = {name: x[first:last] for name, x in outputs.items()}
            _tell(waiting.future, part)
            first = last


def _tell(future: asyncio.Future, result: Arrays | Exception) -> None:
    """Settles a future from another thread; one whose client left is let go."""

    def settle():
        if future.cancelled():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    future.get_loop().call_soon_threadsafe(settle)
