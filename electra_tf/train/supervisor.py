# SPDX-License-Identifier: Apache-2.0
"""When a run begins, waits and ends: its workers, signals, and the time it was given.

Standard library only: a signal finds its handler before TensorFlow loads.
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
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")


class Cluster(NamedTuple):
    """The processes of one run.

    Attributes:
      places: host:port of each, the chief first; empty without TF_CONFIG.
      index: which of them this process is.
      timeout: seconds that it waits for the others.
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
        """Whether there are others to wait for."""
        return len(self.places) > 1

    def name(self, index: int) -> str:
        """How messages call a worker."""
        return f"worker {index} ({self.places[index]})"

    def index_of(self, job: str, task: str | int) -> int:
        """The index of TensorFlow's task of a job, "chief" or "worker"."""
        return int(task) + (self.num_chiefs if job == "worker" else 0)

    @classmethod
    def from_environment(
        cls, timeout: float = timeout, use_tpu: bool = False
    ) -> Cluster:
        """Reads TF_CONFIG; raises `UserError` (2) if it is invalid.

        With `use_tpu` also for one of several workers: each would train by itself, on
        the TPU that it finds.
        """
        text = os.environ.get("TF_CONFIG")
        if not text:
            return cls()
        try:
            content = json.loads(text)
            jobs, task = content["cluster"], content["task"]
            chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
            places = [str(place) for place in (*chiefs, *workers)]
            ports = [int(place.rpartition(":")[2]) for place in places]
            if len({*places}) < len(places) or not all(0 < p < 2**16 for p in ports):
                raise ValueError("no places of their own")
            # An "evaluator" or a "ps" has no part in a run, and must not become one.
            of_job = {"chief": chiefs, "worker": workers}[task["type"]]
            if not 0 <= int(task["index"]) < len(of_job):
                raise ValueError("no such task")
            cluster = cls(tuple(places), 0, timeout, len(chiefs))
            index = cluster.index_of(task["type"], task["index"])
        except JSON_ERRORS:
            raise UserError(
                f"TF_CONFIG is {text[:200]!r}, which names no worker.\nIt has the form "
                '{"cluster": {"worker": ["host0:port", "host1:port"]}, '
                '"task": {"type": "worker", "index": 0}}.'
            ) from None
        if use_tpu and cluster.has_peers:
            raise UserError(
                f"use_tpu is set and TF_CONFIG names {len(places)} workers: TPU pods "
                "are not supported.\nLeave TF_CONFIG out: one process uses all cores "
                "of one TPU (docs/tpu.md)."
            )
        return cluster._replace(index=index)

    def meet(self, facts: Mapping[str, Any]) -> None:
        """Waits until all workers have come, and checks that they are of one run.

        At the chief's place, which TensorFlow uses afterwards: it would wait for an
        hour, deaf to signals, and does not look at what the workers are to do.

        Args:
          facts: what all workers must have in common.

        Raises `UserError` at all workers: 69 naming those that did not come in time, 2
        naming the first that differs.
        """
        if not self.has_peers:
            return
        own = json.loads(json.dumps(dict(facts)))
        answer = self._receive_all(own) if self.is_chief else self._ask_chief(own)
        if answer:
            raise UserError(*answer)

    def _receive_all(self, own: dict[str, Any]) -> tuple[str, int] | None:
        """The chief's side; returns the answer to all: a message and exit code."""
        end = time.monotonic() + self.timeout
        came: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
        port = int(self.places[0].rpartition(":")[2])
        try:
            listener = socket.create_server(("", port), backlog=len(self.places))
        except OSError as error:
            raise UserError(
                f"{self.name(0)} cannot use its port: {error.strerror}.\n"
                "End what uses it, or give TF_CONFIG another."
            ) from error
        with listener, contextlib.ExitStack() as stack:
            while len(came) < len(self.places) - 1:
                if (left := end - time.monotonic()) <= 0:
                    break
                listener.settimeout(left)
                with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                    peer = stack.enter_context(listener.accept()[0])
                    peer.settimeout(10)
                    said = json.loads(peer.makefile().readline())
                    if said["index"] in range(1, len(self.places)):
                        came[said["index"]] = peer, said["facts"]
            known = {index: facts for index, (_, facts) in sorted(came.items())}
            answer = self._compare({0: own} | known)
            for peer, _ in came.values():
                with contextlib.suppress(OSError):
                    peer.sendall(json.dumps(answer).encode() + b"\n")
        return answer

    def _ask_chief(self, own: dict[str, Any]) -> tuple[str, int] | None:
        """The side of all others."""
        # The chief says who is missing; its clock may have begun later.
        host, _, port = self.places[0].rpartition(":")
        end = time.monotonic() + self.timeout
        while (left := end - time.monotonic()) > 0:
            # Whatever listens there while the chief has not come says no JSON.
            with contextlib.suppress(OSError, ValueError):
                with socket.create_connection((host, int(port)), min(left, 5)) as chief:
                    said = json.dumps({"index": self.index, "facts": own})
                    chief.sendall(said.encode() + b"\n")
                    chief.settimeout(self.timeout + 5)
                    return json.loads(chief.makefile().readline())
            time.sleep(0.2)
        return self._missing([0])

    def _compare(self, facts: Mapping[int, dict[str, Any]]) -> tuple[str, int] | None:
        missing = [i for i in range(len(self.places)) if i not in facts]
        if missing:
            return self._missing(missing)
        for index, found in facts.items():
            names = sorted(facts[0].keys() | found.keys())
            names = [name for name in names if facts[0].get(name) != found.get(name)]
            if not names:
                continue
            name, more = names[0], f" ({len(names)} differ)" if names[1:] else ""
            text = (
                f"{self.name(index)} has {name} {found.get(name)!r}, {self.name(0)} "
                f"has {facts[0].get(name)!r}{more}.\nAll workers of a run need the "
                "same settings, data, vocabulary and code."
            )
            return text, EXIT_CONFIG
        return None

    def _missing(self, indices: list[int]) -> tuple[str, int]:
        names = ", ".join(map(self.name, indices))
        text = (
            f"waited {self.timeout:g} s for {names}.\nStart all workers with the same "
            'command; "peer_timeout" in the hparams is how long they wait.'
        )
        return text, EXIT_PEER_LOST

    @contextlib.contextmanager
    def patience(self) -> Iterator[None]:
        """Ends the process (69) if the block waits for others beyond the timeout."""
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
            'commands again on all workers; "peer_timeout" in the hparams is how long '
            "they wait.",
            sys.stderr,
        )
        os._exit(EXIT_PEER_LOST)  # TensorFlow's own end would wait for the others.


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
def _handled(
    action: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> Iterator[None]:
    """Has the first signal in the block call `action`; the second ends the process.

    Those that are ignored (by nohup) stay so.
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
    """For a block that no handler and no thread interrupts: signals just end it.

    The exit code is then that of the signal: docs/distributed.md says what to do.

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
    """Has a signal in the block end the process at once, with exit code 42.

    For the time before and after training, in which there is nothing to save.
    """

    def leave(number: int, _) -> None:
        name = signal.Signals(number).name
        say(f"{name}: nothing to save. Run the same command again.", sys.stdout)
        os._exit(EXIT_PREEMPTED)

    with _handled(leave):
        yield


class StopRequest:
    """Notes the first signal while it is entered; a second one ends the process.

    Args:
      max_seconds: the time that the process was given, None for no limit.
      since: when that time began, by `time.monotonic`.

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
        self._handlers.enter_context(_handled(self._note))
        return self

    def __exit__(self, *_) -> None:
        self._handlers.close()

    def _note(self, number: int, _) -> None:
        self.signal = signal.Signals(number)

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
