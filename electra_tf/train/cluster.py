# SPDX-License-Identifier: Apache-2.0
"""The workers of a run by TF_CONFIG, and how long they are waited for.

Standard library only: who writes is known before TensorFlow loads.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

from electra_tf.errors import EXIT_PEER_LOST, UserError


class Cluster(NamedTuple):
    """The processes of one run.

    Attributes:
      places: host:port of each, the chief first; empty without TF_CONFIG.
      index: which of them this process is.
      timeout: seconds that it waits for the others.
    """

    places: tuple[str, ...] = ()
    index: int = 0
    timeout: float = 600.0

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

    @classmethod
    def from_environment(cls, timeout: float = timeout) -> Cluster:
        """Reads TF_CONFIG; raises `UserError` (2) for one that is no TF_CONFIG."""
        text = os.environ.get("TF_CONFIG")
        if not text:
            return cls()
        try:
            content = json.loads(text)
            jobs, task = content["cluster"], content["task"]
            chiefs, workers = jobs.get("chief", []), jobs.get("worker", [])
            places = [str(place) for place in (*chiefs, *workers)]
            before = {"chief": 0, "worker": len(chiefs)}[task["type"]]
            index = before + int(task["index"])
            places[index]
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise UserError(
                f"TF_CONFIG is {text[:200]!r}, which names no worker.\nIt has the form "
                '{"cluster": {"worker": ["host0:port", "host1:port"]}, '
                '"task": {"type": "worker", "index": 0}}.'
            ) from None
        return cls(tuple(places), index, timeout)

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
        others = [i for i in range(len(self.places)) if i != self.index]
        silent = [i for i in others if not _answers(self.places[i])]
        names = ", ".join(self.name(i) for i in silent or others)
        found = "nothing listens there" if silent else "running, but not at this point"
        leave(
            f"waited {self.timeout:.0f} s for {names}: {found}.\n"
            "Start it again, then this one with the same command; the hparam "
            "peer_timeout is how long to wait."
        )


def leave(message: str) -> None:
    """Ends the process with 69 from any thread.

    TensorFlow's own end waits for the others, who may not come.
    """
    sys.stdout.flush()
    print(f"error: {message}", file=sys.stderr, flush=True)
    os._exit(EXIT_PEER_LOST)


def _answers(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except (OSError, ValueError):
        return False
    return True
