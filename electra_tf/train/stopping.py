# SPDX-License-Identifier: Apache-2.0
"""When a run must end before its last step: signals, and the time it was given.

Standard library only, so that a signal finds its handler before TensorFlow loads.
"""

from __future__ import annotations

import re
import signal
import time
from typing import Self

from electra_tf.errors import EXIT_PREEMPTED, UserError

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


def parse_duration(text: str, flag: str) -> float:
    """Seconds in "5400", "5400s", "90m", "1h30m" or "2d12h".

    Raises `UserError` (2) naming `flag`.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    units = (86400, 3600, 60, 1)
    parts = zip(match.groups(), units, strict=True) if match else ()
    seconds = sum(int(number) * unit for number, unit in parts if number)
    if seconds <= 0:
        raise UserError(
            f"{flag} {text!r} is not a duration.\nGive seconds (5400) or days, hours, "
            "minutes and seconds (1h30m)."
        )
    return float(seconds)


class _Handler:
    """Handles SIGTERM and SIGINT by `_handle` while it is entered."""

    def __enter__(self) -> Self:
        self._before = {n: signal.signal(n, self._handle) for n in _SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class LeaveAtOnce(_Handler):
    """While entered, SIGTERM and SIGINT end the process with exit code 42.

    For the time before and after training, in which there is nothing to save.
    """

    def _handle(self, number, frame) -> None:
        del frame
        name = signal.Signals(number).name
        print(f"{name}: nothing to save. Run the same command again.", flush=True)
        raise SystemExit(EXIT_PREEMPTED)


class StopRequest(_Handler):
    """Notes SIGTERM and SIGINT while it is entered; a second one acts at once.

    Args:
      max_seconds: the time that the process was given, None for no limit.
      since: when that time began, by `time.monotonic`.

    Attributes:
      signal: the first signal, None before.
    """

    def __init__(self, max_seconds: float | None = None, since: float | None = None):
        self.signal: signal.Signals | None = None
        self._end = None
        if max_seconds is not None:
            self._end = (time.monotonic() if since is None else since) + max_seconds

    def _handle(self, number, frame) -> None:
        self.signal = signal.Signals(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)

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
