# SPDX-License-Identifier: Apache-2.0
"""The curves of a run for TensorBoard."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from electra_tf.storage.files import cannot_write


class TensorBoardEvents:
    """An event file that TensorBoard reads.

    Written as the TFRecord of events that it is, without `tf.summary`: that would need
    the tensorboard package and 0.1 ms per value. A restart announces from which step on
    earlier files no longer hold, so curves show each step once.

    Args:
      directory: of the event files; each start of a run adds one.
      step: the steps that the run has behind it.
      tags: metric -> its tag; for others it is training/<name>.
    """

    def __init__(
        self, directory: str | os.PathLike, step: int, tags: Mapping[str, str]
    ):
        import tensorflow as tf

        self._tags = tags

        self._tf = tf.compat.v1
        self._directory = Path(directory)
        name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._writer = tf.io.TFRecordWriter(str(self._directory / name))
            self._write(file_version="brain.Event:2")
            start = self._tf.SessionLog(status=self._tf.SessionLog.START)
            self._write(step=step + 1, session_log=start)
            self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            raise cannot_write(self._directory, error) from error

    def _write(self, **fields) -> None:
        event = self._tf.Event(wall_time=time.time(), **fields)
        try:
            self._writer.write(event.SerializeToString())
        except self._tf.errors.OpError as error:
            raise cannot_write(self._directory, error) from error

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds the metrics of a step."""
        values = [
            self._tf.Summary.Value(
                tag=self._tags.get(name) or f"training/{name}", simple_value=value
            )
            for name, value in metrics.items()
        ]
        self._write(step=step, summary=self._tf.Summary(value=values))

    def flush(self) -> None:
        """Lets TensorBoard see what was written."""
        import tensorflow as tf

        try:
            self._writer.flush()
        except tf.errors.OpError as error:
            raise cannot_write(self._directory, error) from error

    def close(self) -> None:
        import tensorflow as tf

        with contextlib.suppress(tf.errors.OpError):  # as in MetricsFile.close
            self._writer.close()
