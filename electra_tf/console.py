# SPDX-License-Identifier: Apache-2.0
"""Output of a running program: log lines and a progress line."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TextIO

from electra_tf.paths import shown

Log = Callable[[str], None]  # takes a line
# Longest time between progress lines without a terminal.
_QUIET_SECONDS = 60.0
_TICK_SECONDS = 10.0

_CONTROLS = {c: chr(0x2400 + c) for c in range(0x20) if chr(c) not in "\t\n"}
_CONTROLS |= dict.fromkeys(range(0x80, 0xA0), "\ufffd") | {0x7F: "\u2421"}


def printable(text: str) -> str:
    """Text with symbols in place of control characters."""
    text = text.translate(_CONTROLS)
    return text.encode("utf-8", "backslashreplace").decode()  # names that are not UTF-8


def duration(seconds: float) -> str:
    """Seconds as [[days, ]hours:]minutes:seconds."""
    text = str(datetime.timedelta(seconds=max(0, round(seconds))))
    return re.sub("^0:0?", "", text)


def open_closed_streams() -> None:
    """Redirects closed standard streams (`>&-`) to /dev/null.

    The next open file, such as a checkpoint, would get their number, and then all that
    libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # open takes the lowest free number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))


def silence(stream: TextIO) -> None:
    """Redirects a failed stream and its buffer to /dev/null."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def silent(message: str) -> None:
    """A no-op logger."""


def say(message: str, stream: TextIO) -> None:
    """Prints and flushes the last line of a process; ignores a closed stream."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    try:
        print(message, file=stream, flush=True)
    except OSError:
        silence(stream)


class Console:
    """Log lines and, on a terminal, one line that is rewritten in place.

    Args:
      stream: where to write; stdout by default.
      silent: write nothing (the workers that are not the chief).
    """

    def __init__(self, stream: TextIO | None = None, silent: bool = False):
        self._stream = stream or sys.stdout
        self._silent = silent
        self._width = 0  # of the line that is being rewritten
        self._ticked = time.monotonic()
        self.is_terminal = self._stream.isatty()

    def log(self, message: str = "") -> None:
        """Writes a line that stays."""
        if self._silent:
            return
        with self._without_errors():
            self._stream.write(f"{self._erased()}{shown(message)}\n")
            self._stream.flush()

    def heading(self, text: str) -> None:
        """Writes a heading between rules, as the original does."""
        rule = "=" * 80
        self.log(f"{rule}\n{text}\n{rule}")

    def update(self, message: str) -> None:
        """Rewrites the terminal's last line; longer lines are cut to its width."""
        if self._silent:
            return
        with self._without_errors():
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80
            message = message[: columns - 1]
            self._stream.write(self._erased() + message)
            self._stream.flush()
            self._width = len(message)

    def tick(self, message: str) -> None:
        """Shows progress now and then: in place, or as a line without a terminal."""
        now = time.monotonic()
        if now > self._ticked + (0.2 if self.is_terminal else _TICK_SECONDS):
            self._ticked = now
            (self.update if self.is_terminal else self.log)(message)

    @contextlib.contextmanager
    def _without_errors(self) -> Iterator[None]:
        """Turns the console off if writing fails, so that the run continues.

        A terminal or pipe may be closed, or a disk full.
        """
        try:
            yield
        except OSError:
            self._silent = True
            silence(self._stream)

    def _erased(self) -> str:
        erase = "\r" + " " * self._width + "\r" if self._width else ""
        self._width = 0
        return erase


@dataclasses.dataclass
class Progress:
    """The progress line, the same on a terminal and in a file:

    1200/10000 102 seq/s ETA 45:50 - loss 12.3 gen 6.05 disc 0.251 recall 0.310

    Args:
      total: steps of the whole run.
      start: steps made before this process; speed is measured from there.
      batch_size: sequences per step.
      every: steps between two lines without a terminal.
      shown: metrics on the line: name -> label.
    """

    console: Console
    total: int
    start: int
    batch_size: int
    every: int
    shown: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self._shown_at = time.monotonic()
        self._marks = [(self.start, self._shown_at)]  # steps and times of recent loops
        self._shown_step = self.start
        self._is_first = True

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Shows progress after `step` steps."""
        now = time.monotonic()
        if self._is_first:
            # The first loop builds the graph, so it does not count for the speed.
            self._marks = [(step, now)]
        else:
            self._marks = [*self._marks[-200:], (step, now)]
        line = self.line(step, metrics, now)
        if self.console.is_terminal:
            self.console.update(line)
        elif (
            self._is_first
            or step == self.total
            or step // self.every > self._shown_step // self.every
            or now - self._shown_at > _QUIET_SECONDS
        ):
            self.console.log(line)
            self._shown_step, self._shown_at = step, now
        self._is_first = False

    def line(self, step: int, metrics: Mapping[str, float], now: float) -> str:
        """The text of the progress line."""
        first, since = self._marks[0]
        parts = [f"{step}/{self.total}"]
        if step > first and now > since:
            speed = (step - first) / (now - since)
            left = duration((self.total - step) / speed)
            parts += [f"{speed * self.batch_size:.0f} seq/s", f"ETA {left}"]
        shown = [
            f"{label} {metrics[name]:#.3g}"
            for name, label in self.shown.items()
            if name in metrics
        ]
        return " ".join([*parts, *(["-", *shown] if shown else [])])

    def close(self) -> None:
        """Ends the line in place."""
        if self.console.is_terminal and self.console._width:
            self.console._width = 0
            self.console.log()
