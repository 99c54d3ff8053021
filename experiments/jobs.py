# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of an experiment, several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from electra_tf import processes
from electra_tf.console import Console
from electra_tf.errors import EXIT_OK, EXIT_PREEMPTED


class Commands(NamedTuple):
    """Commands that run one after the other, until one fails.

    Attributes:
      log: the file for their output.
    """

    name: str
    commands: Sequence[Sequence[str]]
    log: Path


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SHOWN = 5  # last lines of the log of a job that failed without an error message


def run_commands(
    jobs: Sequence[Commands],
    count: int,
    console: Console,
    keep_going: bool = False,
    on_end: Callable[[Commands], None] = lambda job: None,
) -> int:
    """Runs jobs, `count` at a time, in processes that end with this one.

    Each has a share of the processors and one GPU, if any. A signal is passed on to the
    running jobs, which save; no other job is started then.

    Args:
      keep_going: start the other jobs after one has failed.
      on_end: called with each job that has succeeded.

    Returns: 0; else the exit code of the first job that failed, 42 after a signal.
    """
    waiting, codes, signals, signalled = list(jobs), [], [], set()
    running: dict[int, tuple[Commands, Iterator[Sequence[str]], subprocess.Popen]] = {}
    before = {n: signal.signal(n, lambda n, _: signals.append(n)) for n in _SIGNALS}
    try:
        while True:
            stops = signals or (any(codes) and not keep_going)
            while waiting and len(running) < count and not stops:
                job = waiting.pop(0)
                place = min(set(range(count)) - running.keys())
                rest = iter(job.commands)
                job.log.unlink(missing_ok=True)
                running[place] = job, rest, _command(next(rest), job.log, place, count)
                console.log(f"{job.name} begins; its output: {job.log}")
            if not running:
                break
            time.sleep(0.1)  # Jobs take minutes.
            for place, (job, rest, process) in list(running.items()):
                if signals and process.pid not in signalled:
                    signalled.add(process.pid)
                    process.send_signal(signal.SIGTERM)
                if process.poll() is None:
                    continue
                del running[place]
                code, command = process.returncode, next(rest, None)
                if code == EXIT_OK and command and not signals:
                    process = _command(command, job.log, place, count)
                    running[place] = job, rest, process
                    continue
                codes.append(EXIT_PREEMPTED if command and code == EXIT_OK else code)
                _report(job, codes[-1], console)
                if codes[-1] == EXIT_OK:
                    on_end(job)
    finally:
        for _, _, process in running.values():
            process.kill()
        for number, handler in before.items():
            signal.signal(number, handler)
    return EXIT_PREEMPTED if signals else next(filter(None, codes), EXIT_OK)


def _command(
    command: Sequence[str], log: Path, place: int, count: int
) -> subprocess.Popen:
    environment = os.environ | {processes.ENDS_WITH_PARENT: str(os.getpid())}
    threads = str(max(1, len(os.sched_getaffinity(0)) // count))
    environment.setdefault("TF_NUM_INTRAOP_THREADS", threads)
    if own := processes.gpus():
        environment["CUDA_VISIBLE_DEVICES"] = own[place % len(own)]
    log.parent.mkdir(parents=True, exist_ok=True)
    # A link that somebody put there meanwhile is not followed.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with open(os.open(log, flags, 0o666), "ab") as f:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=f,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches this process alone.
        )


def _report(job: Commands, code: int, console: Console) -> None:
    if code == EXIT_OK:
        console.log(f"{job.name} is finished.")
        return
    lines = job.log.read_text("utf-8", errors="replace").splitlines()
    errors = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    shown = lines[errors[-1] :] if errors else lines[-_SHOWN:]
    console.log(f"{job.name} ended with code {code}: " + "\n".join(shown))
