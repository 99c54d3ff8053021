# SPDX-License-Identifier: Apache-2.0
"""Runs of the scripts in many new processes, without importing TensorFlow each time.

A server process imports TensorFlow and what most runs need once, starts none of it,
and is forked for every run: a process of its own that can be killed, from the script's
first line on.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from absl import app

ROOT = Path(__file__).resolve().parents[2]

# TensorFlow reads it when it is imported: in the server, not in its copies.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
_context = multiprocessing.get_context("forkserver")
_PACKAGES = [
    "tensorflow",
    "keras",
    "electra_tf.pretrain.run",
    "electra_tf.finetune.trial",
]
_context.set_forkserver_preload(_PACKAGES)


class Finished(NamedTuple):
    """How a run ended: the names are those of subprocess.CompletedProcess."""

    returncode: int
    stdout: str
    stderr: str


def _run(script, args, env, before, stdin, stdout, stderr, folder):
    os.setsid()
    os.chdir(folder)
    for path, target in ((stdout, 1), (stderr, 2)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, target)
    if stdin is not None:
        os.dup2(os.open(stdin, os.O_RDONLY), 0)
        sys.stdin = open(0, encoding="utf-8", closefd=False)
    os.environ.clear()
    os.environ.update(env)
    # What TensorFlow asked absl for when it was imported; a script imports it later.
    app._init_callbacks.clear()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup ./test.sh` ignores
    sys.argv = [str(ROOT / script), *args]
    sys.path[:0] = [str((ROOT / script).parent), str(ROOT)]
    if before:
        before()
    runpy.run_path(sys.argv[0], run_name="__main__")


class Run:
    """A script at work.

    Args:
      before: called in the new process before the script begins, to inject faults.
      stdin: a file that it reads as its standard input.
    """

    def __init__(self, logs: Path, script, *args, env=None, before=None, stdin=None):
        logs.mkdir(parents=True, exist_ok=True)
        number = len(os.listdir(logs)) // 2
        self.stdout = logs / f"{number}.out"
        self.stderr = logs / f"{number}.err"
        for path in (self.stdout, self.stderr):
            path.touch()
        self.process = _context.Process(
            target=_run,
            args=(
                *(script, args, {**os.environ, **(env or {})}, before),
                *(stdin, self.stdout, self.stderr, os.getcwd()),
            ),
        )
        self.process.start()

    def wait(self, seconds=300) -> Finished:
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"still running: {self.stdout.read_text()}")
        return Finished(
            self.process.exitcode, self.stdout.read_text(), self.stderr.read_text()
        )


def run(script: str, *args: str, text: str | bytes = "", timeout: float) -> Finished:
    """Runs a script to its end, with `text` as its standard input."""
    with tempfile.TemporaryDirectory() as folder:
        stdin = Path(folder, "in")
        stdin.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Run(Path(folder, "logs"), script, *args, stdin=stdin).wait(timeout)


def pretrain(data: Path, model: str, hparams: dict, *flags, **kwargs) -> Run:
    """Starts run_pretraining.py."""
    return Run(
        data / "logs" / model,
        "run_pretraining.py",
        *("--data-dir", str(data), "--model-name", model),
        *("--hparams", json.dumps(hparams), *flags),
        **kwargs,
    )


def metrics_of(run_directory: Path) -> list[dict]:
    """The rows of metrics.jsonl without the time of day."""
    text = (run_directory / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def tensors_of(prefix: str | Path) -> dict[str, Any]:
    """The tensors of a checkpoint by name."""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(prefix))
    return {k: reader.get_tensor(k) for k in sorted(reader.get_variable_to_shape_map())}


def digest(run_directory: Path, step: int) -> str:
    """sha256 over weights, optimizer, step, loss scale and every row of the metrics.

    The position in the input is the step; the losses of the metrics show what was read.
    """
    prefix = run_directory / f"model.ckpt-{step}"
    found = hashlib.sha256()
    for suffix in ("data-00000-of-00001", "index"):
        found.update(prefix.with_name(f"{prefix.name}.{suffix}").read_bytes())
    found.update(json.dumps(metrics_of(run_directory), sort_keys=True).encode())
    return found.hexdigest()


# Functions to be called in the new process, to inject faults or to save time.


def before_steps(step: int, act: Callable[[], None]) -> None:
    """Calls a function each time before this process makes the steps up to `step`."""
    from electra_tf.train import step as training_step

    run = training_step.TrainingStep.run

    @functools.wraps(run)
    def disturbed(self, iterator, start, count):
        if start + count >= step:
            act()
        return run(self, iterator, start, count)

    training_step.TrainingStep.run = disturbed


def eagerly() -> None:
    """Traces no graph, which takes most of the time of a run of few steps."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)


def plainly() -> None:
    """Eagerly, and as if nothing were installed that only some uses need."""
    for name in ("tensorflow_text", "keras_hub", "tensorflow_datasets"):
        sys.modules[name] = None
    eagerly()


def signal_at(step: int, number: int = signal.SIGTERM) -> None:
    """Sends this process a signal while it makes the steps up to `step`."""
    before_steps(step, lambda: os.kill(os.getpid(), number))


def signal_in(place: str, number: int = signal.SIGTERM) -> None:
    """Sends this process a signal as the first call of a function begins.

    Args:
      place: of the function, as in "module:Class.method".
    """
    module, _, names = place.partition(":")
    *owners, name = names.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    function = getattr(owner, name)

    @functools.wraps(function)
    def call(*args, **kwargs):
        setattr(owner, name, function)
        os.kill(os.getpid(), number)
        return function(*args, **kwargs)

    setattr(owner, name, call)


def full_disk_at_save(step: int) -> None:
    """From the save of `step` on, no file can become as large as a checkpoint."""
    from electra_tf.storage import checkpoints

    save = checkpoints.Checkpoints.save

    def save_on_full_disk(self, now, variables):
        if now == step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        save(self, now, variables)

    checkpoints.Checkpoints.save = save_on_full_disk


def kill_in_save(save: int, operation: int) -> None:
    """kill -9 of this process before file operation `operation` of its n-th save.

    Operation 0 is the writing of the tensors: there the kill comes in its midst.
    """
    from electra_tf.storage import checkpoints

    state = {"saves": 0, "left": None}
    whole_save = checkpoints.Checkpoints.save
    write_tensors = checkpoints.write_tensors

    def counted_save(self, step, variables):
        if step != self.last_saved_step:
            state["saves"] += 1
            state["left"] = operation if state["saves"] == save else None
        whole_save(self, step, variables)
        state["left"] = None

    def timed_write(*args):
        if state["left"] == 0:
            threading.Thread(target=_die_after, args=(0.0005,), daemon=True).start()
        write_tensors(*args)

    def guarded(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            if state["left"]:
                state["left"] -= 1
                if not state["left"]:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    checkpoints.Checkpoints.save = counted_save
    checkpoints.write_tensors = timed_write
    for name in ("replace", "fsync", "mkdir", "rmdir", "unlink"):
        setattr(os, name, guarded(getattr(os, name)))
    checkpoints.shutil.rmtree = guarded(checkpoints.shutil.rmtree)


def _die_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def kill_when(run: Run, metrics: Path, rows: int, delay: float = 0.0) -> None:
    """kill -9 of a run once its metrics have that many rows, if it has not ended."""
    deadline = time.monotonic() + 200
    # Before that, the metrics are those of an earlier start.
    while "Running training" not in run.stdout.read_text() and run.process.is_alive():
        assert time.monotonic() < deadline, run.stdout.read_text()
        time.sleep(0.01)
    while run.process.is_alive():
        with contextlib.suppress(FileNotFoundError):
            if metrics.read_bytes().count(b"\n") >= rows:
                break
        assert time.monotonic() < deadline, run.stdout.read_text()
        time.sleep(0.005)
    time.sleep(delay)
    run.process.kill()
