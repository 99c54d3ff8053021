# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl: one JSON object per step, each step once.

At a restart the file is cut back to the checkpoint that the run continues from. Values
that are not finite are null.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from electra_tf.storage.files import cannot_write


class MetricsFile:
    """metrics.jsonl: a line per step.

    Args:
      path: the file; made when missing.
      step: the steps that the run has behind it; later lines are cut off.

    Raises `UserError` (73) when it cannot be written.
    """

    def __init__(self, path: str | os.PathLike, step: int):
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b")
            _cut_after(self._file, step)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def write(self, rows: list[dict[str, float]]) -> None:
        """Appends rows; each has a "step"."""
        text = "".join(json.dumps(finite(row)) + "\n" for row in rows)
        try:
            self._file.write(text.encode())
            self._file.flush()
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def sync(self) -> None:
        """Makes what was written durable."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        # What a full disk kept from being written was reported then, and is not
        # promised; the file is closed all the same.
        with contextlib.suppress(OSError):
            self._file.close()


def finite(row: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics as JSON can hold them: null for what is not finite."""
    return {k: v if math.isfinite(v) else None for k, v in row.items()}


def _cut_after(file, step: int) -> None:
    """Cuts a metrics file after the line of `step`, looking from its end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = _line_start(file, end)
        file.seek(start)
        line = file.read(end - start)
        try:
            if line.endswith(b"\n") and json.loads(line)["step"] <= step:
                break
        except (ValueError, KeyError, TypeError):
            pass  # A torn or damaged line goes.
        end = start
    file.truncate(end)
    file.seek(end)


def _line_start(file, end: int, block: int = 4096) -> int:
    """Offset of the line that ends at `end`."""
    position = end - 1  # the line's own newline does not count
    while position > 0:
        size = min(block, position)
        file.seek(position - size)
        newline = file.read(size).rfind(b"\n")
        if newline >= 0:
            return position - size + newline + 1
        position -= size
    return 0


def read_metrics(path: str | os.PathLike) -> Iterator[dict[str, Any]]:
    """The rows of a metrics file; a torn last line is left out."""
    with open(path, "rb") as f:
        for line in f:
            try:
                yield json.loads(line)
            except ValueError:
                continue
