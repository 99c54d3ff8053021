# SPDX-License-Identifier: Apache-2.0
"""When a run must end before its last step: signals, and the time it was given.

Standard library only, so that a signal finds its handler before TensorFlow loads.
"""

from __future__ import annotations

import abc
import contextlib
import math
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

from electra_tf.console import say
from electra_tf.errors import EXIT_PEER_LOST, EXIT_PREEMPTED, UserError

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# How long a worker may go on after a signal without answering it: the time in which
# TensorFlow finds out that another worker is dead, and what a loop and a save may take
# this time, as a multiple of what they have taken.
PATIENCE_SECONDS, PATIENCE_FACTOR = 60.0, 3.0
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


def parse_duration(text: str, flag: str) -> float:
    """Seconds in "5400", "5400s", "90m", "1h30m", "2d12h" or "0".

    Raises `UserError` (2) naming `flag`.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    units = (86400, 3600, 60, 1)
    numbers = match.groups() if match else ()
    if not any(numbers):
        raise UserError(
            f"{flag} {text!r} is not a duration.\nGive seconds (5400) or days, hours, "
            "minutes and seconds (1h30m)."
        )
    seconds = (int(n or 0) * unit for n, unit in zip(numbers, units, strict=True))
    return float(sum(seconds))


@contextlib.contextmanager
def plain_signals(seconds: float) -> Iterator[None]:
    """For a block that no handler and no thread interrupts: signals just end it.

    Those that are ignored (by nohup) stay so. The exit code is then not our own, but
    that of the signal: docs/distributed.md says what to do.

    Args:
      seconds: SIGALRM ends the process if the block takes longer.
    """
    heard = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
    before = {n: signal.signal(n, signal.SIG_DFL) for n in (*heard, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


class _Handler(abc.ABC):
    """Handles SIGTERM, SIGINT and SIGHUP by `_handle` while it is entered.

    It may be entered again inside: what it has noted stays, until the outermost end.

    Python's handlers wait while the process is inside TensorFlow, which may be for
    ever: where it waits for a worker that does not come. So a thread hears of the
    signal, too, and ends the process if it is not answered within `_patience` seconds,
    which may be set meanwhile. Without `_is_watched` there is nobody to wait for.
    """

    _is_watched = True
    _patience: float
    _exit_code: int
    _depth = 0

    @abc.abstractmethod
    def _last_words(self) -> str:
        """What is printed where a signal was not answered."""

    @abc.abstractmethod
    def _handle(self, number: signal.Signals) -> None:
        """What a signal does."""

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth > 1:
            return self
        self._is_answered = self._is_reported = False
        self._before = {
            n: signal.signal(n, self._noted)
            for n in _SIGNALS
            if signal.getsignal(n) != signal.SIG_IGN  # as nohup asks
        }
        # Whoever was entered before hears of no signal until this one is left.
        self._write = -1
        if self._is_watched:
            read, self._write = os.pipe()
            os.set_blocking(self._write, False)
            threading.Thread(target=self._listen, args=(read,), daemon=True).start()
        self._wakeup = signal.set_wakeup_fd(self._write)
        return self

    def __exit__(self, *_) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._is_answered = True
        signal.set_wakeup_fd(self._wakeup)
        if self._is_watched:
            os.close(self._write)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _noted(self, number, frame) -> None:
        self._handle(signal.Signals(number))

    def _listen(self, read: int) -> None:
        # Other signals, such as SIGCHLD, do not count.
        while (heard := os.read(read, 1)) and heard[0] not in self._before:
            pass
        since = time.monotonic()
        # Until the time is over, or the block, whose end closes the pipe.
        while heard and (left := since + self._patience - time.monotonic()) > 0:
            said = select.select([read], [], [], min(left, 1.0))[0]
            if said and not os.read(read, 1):
                break
        os.close(read)
        if heard and not self._is_answered:
            if not self._is_reported:
                name = signal.Signals(heard[0]).name
                say(f"{name}: {self._last_words()}", sys.stdout)
            os._exit(self._exit_code)


class LeaveAtOnce(_Handler):
    """While entered, a signal ends the process with exit code 42.

    For the time before and after training, in which there is nothing to save. The
    block has `_patience` seconds to clean up. SystemExit alone would not do: Python
    ignores an exception that a handler raises inside a finalizer.
    """

    _patience = 5.0
    _exit_code = EXIT_PREEMPTED

    def _last_words(self) -> str:
        return "nothing to save. Run the same command again."

    def _handle(self, number: signal.Signals) -> None:
        self._is_reported = True
        say(f"{number.name}: {self._last_words()}", sys.stdout)
        raise SystemExit(EXIT_PREEMPTED)


class StopRequest(_Handler):
    """Notes the first signal while it is entered; a second one ends the process.

    Args:
      max_seconds: the time that the process was given, None for no limit.
      since: when that time began, by `time.monotonic`.
      several_workers: whether the loop may have to wait for others; only then a signal
        that is not answered as long as `expect` allows ends the process with 69.

    Attributes:
      signal: the first signal, None before.
    """

    _exit_code = EXIT_PEER_LOST

    def __init__(
        self,
        max_seconds: float | None = None,
        since: float | None = None,
        several_workers: bool = False,
    ):
        self.signal: signal.Signals | None = None
        self._is_watched = several_workers
        self._end = None
        if max_seconds is not None:
            self._end = (time.monotonic() if since is None else since) + max_seconds

    def __enter__(self) -> Self:
        self._patience = math.inf  # Nothing has been measured yet.
        return super().__enter__()

    def _handle(self, number: signal.Signals) -> None:
        self.signal = number
        for name in _SIGNALS:
            signal.signal(name, signal.SIG_DFL)

    def _last_words(self) -> str:
        return (
            "no exchange with the other workers was reached within "
            f"{self._patience:.3g} s, so nothing was saved. Run the same commands "
            "again."
        )

    def expect(self, seconds: float) -> None:
        """Says how long a loop and a save take, after which a signal is answered."""
        self._patience = max(PATIENCE_SECONDS, PATIENCE_FACTOR * seconds)

    def answered(self) -> None:
        """Says that the loop has ended; saving may take its time."""
        self._is_answered = True

    def reason(self, needed: float = 0.0) -> str | None:
        """Why to stop now, None to go on.

        Args:
          needed: seconds that another round and the saving after it would take.
        """
        if self.signal:
            return self.signal.name
        if self._end is not None and time.monotonic() + needed >= self._end:
            return "max_wall_time"
        return None
