# SPDX-License-Identifier: Apache-2.0
"""Trials side by side on this machine, each in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from electra_tf.console import Console
from electra_tf.processes import Job, run_jobs


def run(
    trials: Sequence[int], count: int, log_of: Callable[[int], Path], console: Console
) -> int:
    """Starts this process's command with `--trial k` for each trial, `count` at a time.

    Args:
      log_of: the file for what a trial prints.

    Returns: what `processes.run_jobs` does.
    """
    # A list of flags ends with the last one of a name.
    command = [sys.executable, *sys.argv, "--parallel=0"]
    jobs = [Job(f"Trial {k}", [[*command, f"--trial={k}"]], log_of(k)) for k in trials]
    return run_jobs(jobs, count, console)
