# SPDX-License-Identifier: Apache-2.0
"""Trials side by side on this machine, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from electra_tf import processes
from electra_tf.console import Console
from electra_tf.errors import EXIT_OK, EXIT_PREEMPTED

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def run(
    trials: Sequence[int], count: int, log_of: Callable[[int], Path], console: Console
) -> int:
    """Starts this process's command with `--trial k` for each trial, `count` at a time.

    Each has a share of the processors and, where there are GPUs, one of them in turn. A
    signal is passed on to all of them, who save; no other is started then.

    Args:
      log_of: the file for what a trial prints.

    Returns: 0; else the exit code of the first trial that failed, 42 after a signal.
    """
    waiting, running, codes = list(trials), {}, []
    places = list(range(count))
    asked: list[int] = []

    def pass_on(number, frame):
        asked.append(number)
        for process, _ in running.values():
            process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        while running or (waiting and not asked and not any(codes)):
            while waiting and places and not asked and not any(codes):
                trial, place = waiting.pop(0), places.pop(0)
                running[trial] = _start(trial, place, count, log_of(trial)), place
                console.log(f"Trial {trial} begins; what it prints: {log_of(trial)}")
            time.sleep(0.1)  # Trials take minutes; a signal ends the sleep.
            for trial in [t for t, (p, _) in running.items() if p.poll() is not None]:
                process, place = running.pop(trial)
                places.append(place)
                codes.append(process.returncode)
                _report(trial, process.returncode, log_of(trial), console)
    finally:
        for process, _ in running.values():
            process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        return EXIT_PREEMPTED
    return next((code for code in codes if code != EXIT_OK), EXIT_OK)


def _start(trial: int, place: int, count: int, log: Path) -> subprocess.Popen:
    # A list of flags ends with the last one of a name.
    command = [sys.executable, *sys.argv, f"--trial={trial}", "--parallel=0"]
    environment = os.environ | {processes.ENDS_WITH_PARENT: str(os.getpid())}
    threads = str(max(1, len(os.sched_getaffinity(0)) // count))
    environment.setdefault("TF_NUM_INTRAOP_THREADS", threads)
    if gpus := processes.gpus():
        environment["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as f:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=f,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process alone.
        )


def _report(trial: int, code: int, log: Path, console: Console) -> None:
    if code == EXIT_OK:
        console.log(f"Trial {trial} is finished.")
        return
    lines = log.read_text("utf-8", errors="replace").splitlines()
    errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    said = lines[errors[-1] :] if errors else lines[-1:]
    console.log(f"Trial {trial} ended with code {code}: " + "\n".join(said))
