# SPDX-License-Identifier: Apache-2.0
"""Checkpoints written while training goes on.

Training waits only for the copy of the variables; tensors, checksums, fsync and renames
are the work of a thread, in the order and with the guarantees of `Checkpoints.save`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from electra_tf.storage.checkpoints import Checkpoints


class BackgroundSaver:
    """Saves to `checkpoints` one after the other, each in a thread.

    Attributes:
      checkpoints: where to.
      seconds: how long the last save took, from the copy to the last rename.
      blocked_seconds: how long training has waited for saves, all together.
    """

    def __init__(self, checkpoints: Checkpoints):
        self.checkpoints = checkpoints
        self.seconds = 0.0
        self.blocked_seconds = 0.0
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._step = checkpoints.last_saved_step

    def save(self, step: int, variables: Mapping[str, Any]) -> None:
        """Copies the variables and starts to write them; waits for an earlier save.

        Raises what the earlier save failed with.
        """
        self.wait()
        if step == self._step:
            return
        self._step = step
        started = time.monotonic()
        # The host must hold the state twice: the copy lives until it is written.
        with tf.device("CPU:0"):
            copies = {k: np.array(tf.identity(v)) for k, v in variables.items()}
        self._thread = threading.Thread(
            target=self._write, args=(step, copies, started), name="checkpoint"
        )
        self._thread.start()
        self.blocked_seconds += time.monotonic() - started

    def _write(self, step: int, copies: dict[str, np.ndarray], started: float) -> None:
        try:
            self.checkpoints.save(step, copies)
        except BaseException as error:  # raised again where training sees it
            self._error = error
        self.seconds = time.monotonic() - started

    def is_writing(self) -> bool:
        """Whether a save is under way."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raises what a save that has ended failed with."""
        if not self.is_writing():
            self.wait()

    def wait(self) -> None:
        """Returns when nothing is being written; raises what the save failed with."""
        started = time.monotonic()
        thread, self._thread = self._thread, None
        if thread:
            thread.join()
        self.blocked_seconds += time.monotonic() - started
        error, self._error = self._error, None
        if error:
            self._step = self.checkpoints.last_saved_step
            raise error
