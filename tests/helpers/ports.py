# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that a test starts."""

import contextlib
import itertools
import os
import socket

# Below those that the system gives to clients: what is free now is not taken by another
# test's connection before the server listens. Processes begin at other ones.
_FIRST, _COUNT = 15_000, 15_000
_offsets = itertools.count(37 * os.getpid())


def free_port() -> int:
    """A free port that no other call returns."""
    for offset in itertools.islice(_offsets, _COUNT):
        port = _FIRST + offset % _COUNT
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
