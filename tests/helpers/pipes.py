# SPDX-License-Identifier: Apache-2.0
"""Named pipes whose other end is a thread, with a timeout."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

_SECONDS = 120


@contextlib.contextmanager
def fed(pipe: Path, *parts: bytes) -> Iterator[None]:
    """Makes a pipe that gives these bytes, each part by a write of its own."""

    def feed():
        with open(pipe, "wb", buffering=0) as stream:
            for part in parts:
                stream.write(part)
                # A reader may get less than it asks for.
                threading.Event().wait(0.05)

    with _running(pipe, feed):
        yield


@contextlib.contextmanager
def drained(pipe: Path) -> Iterator[list[str]]:
    """Makes a pipe; what was written to it is in the list after the block."""
    found: list[str] = []
    with _running(pipe, lambda: found.append(pipe.read_text("utf-8"))):
        yield found


@contextlib.contextmanager
def _running(pipe: Path, end) -> Iterator[None]:
    os.mkfifo(pipe)
    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    yield
    thread.join(_SECONDS)
    assert not thread.is_alive(), f"{pipe} was not used to its end"
