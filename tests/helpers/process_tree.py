# SPDX-License-Identifier: Apache-2.0
"""The processes that a process has started."""

import contextlib

import psutil


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def children_of(pid: int) -> list[int]:
    """The running processes that this one has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [c.pid for c in psutil.Process(pid).children() if is_alive(c.pid)]
    return []


def command_of(pid: int) -> list[str]:
    """The words of its command line; none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).cmdline()
    return []
