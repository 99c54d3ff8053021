# SPDX-License-Identifier: Apache-2.0
"""The workers of a run, signals, and the time limit.

Standard library only, so that signal handlers are set before TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple, Self

from electra_tf.console import say
from electra_tf.errors import (
    EXIT_CONFIG,
    EXIT_PEER_LOST,
    EXIT_PREEMPTED,
    JSON_ERRORS,
    UserError,
)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_DURATION = re.compile(r"(?=.)(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


class Cluster(NamedTuple):
    """The processes of one run.

    Attributes:
      places: host:port of each, the chief first; empty without TF_CONFIG.
      index: of this process.
      timeout: seconds to wait for the others.
      num_chiefs: how many of the places TF_CONFIG lists as "chief": 1 or 0.
    """

    places: tuple[str, ...] = ()
    index: int = 0
    timeout: float = 600.0
    num_chiefs: int = 0

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints, metrics and log lines."""
        return self.index == 0

    @property
    def has_peers(self) -> bool:
        """Whether there are other processes."""
        return len(self.places) > 1

    def name(self, index: int) -> str:
        """A worker's name in messages."""
        return f"worker {index} ({self.places[index]})"

    def index_of(self, job: str, task: str | int) -> int:
        """The index of a task of TensorFlow's job "chief" or "worker"."""
        return int(task) + (self.num_chiefs if job == "worker" else 0)

    @classmethod
    def from_environment(
        cls, timeout: float = timeout, use_tpu: bool = False
    ) -> Cluster:
        """Reads TF_CONFIG; raises `UserError` (2) if it is invalid.

        Also raises it for several workers with `use_tpu`: each would train by itself,
        on its own TPU.
        """
        text = os.environ.get("TF_CONFIG")
        if not text:
            return cls()
        try:
            content = json.loads(text)
            jobs, task = content["cluster"], content["task"]
            if not {*jobs} <= {"chief", "worker"}:  # TensorFlow would wait for others
                raise ValueError("another job")
            chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
            places = [str(place) for place in (*chiefs, *workers)]
            ports = [int(place.rpartition(":")[2]) for place in places]
            if len({*places}) < len(places) or not all(0 < p < 2**16 for p in ports):
                raise ValueError("duplicate places or invalid ports")
            tasks = {"chief": chiefs, "worker": workers}[task["type"]]
            if not 0 <= int(task["index"]) < len(tasks):
                raise ValueError("index out of range")
            cluster = cls(tuple(places), 0, timeout, len(chiefs))
            index = cluster.index_of(task["type"], task["index"])
        except JSON_ERRORS:
            raise UserError(
                f"TF_CONFIG is {text[:200]!r}.\nIt has the form "
                '{"cluster": {"worker": ["host0:port", "host1:port"]}, '
                '"task": {"type": "worker", "index": 0}}.\n'
                'A "chief" may lead the workers; parameter servers are not supported.'
            ) from None
        if use_tpu and cluster.has_peers:
            raise UserError(
                f"use_tpu is set and TF_CONFIG names {len(places)} workers: TPU pods "
                "are not supported.\nLeave TF_CONFIG out: one process uses all cores "
                "of one TPU (docs/hardware.md)."
            )
        return cluster._replace(index=index)

    def meet(self, facts: Mapping[str, Any]) -> None:
        """Waits until all workers have arrived, and compares their facts.

        TensorFlow's own meeting comes afterwards. It would wait for an hour, without
        reacting to signals, and does not compare settings.

        Args:
          facts: what all workers must have in common.

        Raises `UserError` on all workers: 69 with the names of those that did not come
        in time, 2 with the name of the first that differs.
        """
        if not self.has_peers:
            return
        own = json.loads(json.dumps(dict(facts)))
        answer = self._receive_all(own) if self.is_chief else self._ask_chief(own)
        if answer:
            raise UserError(*answer)

    def _receive_all(self, own: dict[str, Any]) -> tuple[str, int] | None:
        """On the chief: sends all workers its answer, a message and exit code."""
        end = time.monotonic() + self.timeout
        facts = {0: own}
        peers: dict[int, socket.socket] = {}
        port = int(self.places[0].rpartition(":")[2])
        try:
            listener = socket.create_server(("", port), backlog=len(self.places))
        except OSError as error:
            raise UserError(
                f"{self.name(0)} cannot use its port: {error.strerror}.\n"
                "Stop the process that uses it, or set another port in TF_CONFIG."
            ) from error
        with listener, contextlib.ExitStack() as stack:
            while len(facts) < len(self.places):
                if (left := end - time.monotonic()) <= 0:
                    break
                listener.settimeout(left)
                with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                    peer = stack.enter_context(listener.accept()[0])
                    peer.settimeout(10)
                    message = json.loads(peer.makefile().readline())
                    if message["index"] in range(1, len(self.places)):
                        facts[message["index"]] = message["facts"]
                        peers[message["index"]] = peer
            answer = self._compare(facts)
            for peer in peers.values():
                with contextlib.suppress(OSError):
                    peer.sendall(json.dumps(answer).encode() + b"\n")
        return answer

    def _ask_chief(self, own: dict[str, Any]) -> tuple[str, int] | None:
        """On the other workers: returns the chief's answer."""
        host, _, port = self.places[0].rpartition(":")
        end = time.monotonic() + self.timeout
        while (left := end - time.monotonic()) > 0:
            # ValueError: another program answers at the chief's port.
            with contextlib.suppress(OSError, ValueError):
                with socket.create_connection((host, int(port)), min(left, 5)) as chief:
                    message = json.dumps({"index": self.index, "facts": own})
                    chief.sendall(message.encode() + b"\n")
                    # The chief's timeout may have started later.
                    chief.settimeout(self.timeout + 5)
                    return json.loads(chief.makefile().readline())
            time.sleep(0.2)
        return self._missing([0])

    def _compare(self, facts: Mapping[int, dict[str, Any]]) -> tuple[str, int] | None:
        missing = [i for i in range(len(self.places)) if i not in facts]
        if missing:
            return self._missing(missing)
        expected = facts[0]
        for index in range(1, len(self.places)):
            found = facts[index]
            names = sorted(expected.keys() | found.keys())
            names = [name for name in names if expected.get(name) != found.get(name)]
            if names:
                name, more = names[0], f" ({len(names)} differ)" if names[1:] else ""
                text = (
                    f"{self.name(index)} has {name} {found.get(name)!r}, "
                    f"{self.name(0)} has {expected.get(name)!r}{more}.\nAll workers of "
                    "a run need the same settings, data, vocabulary and code."
                )
                return text, EXIT_CONFIG
        return None

    def _missing(self, indices: list[int]) -> tuple[str, int]:
        names = ", ".join(map(self.name, indices))
        text = (
            f"waited {self.timeout:g} s for {names}.\nStart all workers with the same "
            'command; set "peer_timeout" in the hparams to wait longer.'
        )
        return text, EXIT_PEER_LOST

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """Ends the process (69) if the block waits for others past the timeout."""
        if not self.has_peers:
            yield
            return
        timer = threading.Timer(self.timeout, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        say(
            f"error: no exchange with the other workers within {self.timeout:g} s: one "
            "has ended, hangs, or takes longer for a step or a save.\nRun the same "
            'commands again on all workers; set "peer_timeout" in the hparams to wait '
            "longer.",
            sys.stderr,
        )
        os._exit(EXIT_PEER_LOST)  # sys.exit would also wait for the other workers.


def parse_duration(text: str, flag: str) -> float:
    """Seconds in "5400", "5400s", "90m", "1h30m", "2d12h" or "0".

    Raises `UserError` (2) naming `flag`.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        raise UserError(
            f"{flag} {text!r} is not a duration.\nGive seconds (5400) or days, hours, "
            "minutes and seconds (1h30m)."
        )
    days, hours, minutes, seconds = map(int, match.groups("0"))
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@contextlib.contextmanager
def _handled(
    action: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> Iterator[None]:
    """Calls `action` for the first signal in the block; the second ends the process.

    Ignored signals (nohup) stay ignored.
    """
    handled = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]

    def first(number: int, frame: FrameType | None) -> None:
        for n in handled:
            signal.signal(n, signal.SIG_DFL)
        action(number, frame)

    handler = first if callable(action) else action
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def plain_signals(seconds: float) -> Iterator[None]:
    """Signals end the process at once, as by default, even if the block holds the GIL.

    The exit code is then that of the signal (see docs/hardware.md).

    Args:
      seconds: SIGALRM ends the process if the block takes longer.
    """
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with _handled(signal.SIG_DFL):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def leave_at_once() -> Iterator[None]:
    """Signals in the block end the process at once, with exit code 42.

    For the time before and after training, with nothing to save.
    """
    with _handled(_leave):
        yield


def _leave(number: int, _: FrameType | None = None) -> None:
    name = signal.Signals(number).name
    say(f"{name}: nothing to save. Run the same command again.", sys.stdout)
    os._exit(EXIT_PREEMPTED)


class StopRequest:
    """Records the first signal in its `with` block; a second one ends the process.

    Args:
      max_seconds: the time limit; None for no limit.
      since: start of that time, by `time.monotonic`.

    Attributes:
      signal: the first signal, None before.
    """

    def __init__(self, max_seconds: float | None = None, since: float | None = None):
        self.signal: signal.Signals | None = None
        self._handlers = contextlib.ExitStack()
        self._end = None
        if max_seconds is not None:
            self._end = (time.monotonic() if since is None else since) + max_seconds

    def __enter__(self) -> Self:
        self._handlers.enter_context(_handled(self._record))
        return self

    def __exit__(self, *_) -> None:
        self._handlers.close()

    def _record(self, number: int, _) -> None:
        self.signal = signal.Signals(number)

    @contextlib.contextmanager
    def leave_at_once(self) -> Iterator[None]:
        """As the function, also for a signal that was recorded before the block.

        For work in training that may take long, with all saved before it.
        """
        with leave_at_once():
            if self.signal:
                _leave(self.signal)
            yield

    def reason(self, needed: float = 0.0) -> str | None:
        """Why to stop now; None to continue.

        Args:
          needed: seconds for another loop and a save.
        """
        if self.signal:
            return self.signal.name
        if self._end is not None and time.monotonic() + needed >= self._end:
            return "max_wall_time"
        return None
