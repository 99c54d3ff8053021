# SPDX-License-Identifier: Apache-2.0
"""Which processes live, and which are whose children; from /proc."""

import contextlib
import os
from pathlib import Path


def _status(pid: int) -> list[str]:
    # Behind the name in parentheses, which may hold anything: state, parent, ...
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return _status(pid)[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def children_of(pid: int) -> list[int]:
    """The processes that this one has started and that have not ended."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, IndexError):
            state, parent = _status(int(name))[:2]
            if int(parent) == pid and state not in ("Z", "X"):
                found.append(int(name))
    return found


def command_of(pid: int) -> list[str]:
    """The words of its command line; none where it has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return words.decode(errors="replace").rstrip("\0").split("\0")
