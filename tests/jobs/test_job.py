# SPDX-License-Identifier: Apache-2.0
"""Jobs: the same files for any runner, whatever interrupts them."""

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.jobs import job
from electra_tf.jobs.job import Runner
from electra_tf.paths import url_of
from electra_tf.storage import lock, remote
from electra_tf.storage.lock import Lock
from tests.helpers import letters, memory_bucket
from tests.helpers.building import content
from tests.helpers.process_tree import is_alive
from tests.helpers.runs import ROOT, refused


@pytest.fixture(params=["local", "bucket"])
def folder(request, tmp_path, monkeypatch):
    memory_bucket.empty(tmp_path, monkeypatch)
    if request.param == "bucket":
        return memory_bucket.place("folder")
    return str(tmp_path / "folder")


@pytest.fixture
def whole(tmp_path):
    letters.build(tmp_path / "whole")
    return content(tmp_path / "whole")


def put(folder, name, text):
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, name).write_text(text)
    remote.put(folder, [name])


def check_is_refused(folder, code, word, **settings):
    with pytest.raises(UserError, match=word) as caught:
        letters.build(folder, settings={**letters.SETTINGS, **settings})
    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    "runner",
    [Runner(3), pytest.param(Runner(beam_args=""), marks=pytest.mark.thorough)],
)
def test_output_is_independent_of_the_runner(tmp_path, whole, runner, capfd):
    if runner.beam_args is not None:
        pytest.importorskip("apache_beam")
    letters.build(tmp_path / "out", runner)
    assert content(tmp_path / "out") == whole
    assert whole.keys() == {"manifest.json", *(f"{n}.txt" for n in range(5))}
    if runner.beam_args is None:
        line = capfd.readouterr().err.splitlines()[-1]
        assert line.startswith("write: 5 of 5 parts, 0.0 of 0.0 MB, ")
        letters.build(tmp_path / "one", tasks=letters.TASKS[:1])
        assert capfd.readouterr().err.startswith("write: 0.0 of 0.0 MB, ")


def killed_at(step, path):
    """Whether a build in a child process is killed at a step that writes."""
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        made = 0

        def counted(function, *args, **kwargs):
            nonlocal made
            made += 1
            if made == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        for name in ("makedirs", "fsync", "replace", "unlink"):
            setattr(os, name, functools.partial(counted, getattr(os, name)))
        letters.build(path, tasks=letters.TASKS[:2])
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_a_job_killed_at_any_step_resumes(tmp_path):
    letters.build(tmp_path / "whole", tasks=letters.TASKS[:2])
    whole, step = content(tmp_path / "whole"), 1
    while killed_at(step, path := tmp_path / str(step)):
        made = {p.name: p.stat().st_mtime_ns for p in path.glob("*.txt")}
        letters.build(path, tasks=letters.TASKS[:2])
        # Nothing that had its name is made again.
        for name, changed in made.items():
            assert (path / name).stat().st_mtime_ns == changed
        shutil.rmtree(path / ".job", ignore_errors=True)
        for name in ("job.json", "run.lock"):  # of a kill after the manifest
            (path / name).unlink(missing_ok=True)
        assert content(path) == whole
        step += 1
    assert step > 20


def test_parts_that_are_lost_or_damaged_are_made_again(folder, capfd):
    def fail_at_3(task, place):
        if task[0] == 3:
            raise UserError("a mistake in the input", 65)
        return letters.write(task, place)

    refused(lambda: letters.build(folder, work=fail_at_3), "a mistake")
    assert not list(Path(folder, ".job").glob("*.partial"))
    if url_of(folder):
        remote.remove(folder, ["0.txt"])
    else:
        os.unlink(os.path.join(folder, "0.txt"))
        os.truncate(os.path.join(folder, "1.txt"), 5)
    made = []

    def counted(task, place):
        made.append(task[0])
        return letters.write(task, place)

    letters.build(folder, work=counted)
    lost = [0] if url_of(folder) else [0, 1]
    assert made == [*lost, 3, 4]
    assert f"write: {5 - len(made)} of 5 parts exist." in capfd.readouterr().err
    put(folder, "2.txt", "short")
    check_is_refused(folder, 2, "2.txt has 5 bytes, but the manifest")


def test_work_that_is_repeated_changes_nothing(tmp_path, whole):
    """Two workers have the same bundle, or one has it again."""

    def execute(work):
        return job._execute(str(tmp_path / "out"), "write", work, task)

    def slow(content, place):
        facts = letters.write(content, place)
        execute(letters.write)  # by another worker, meanwhile
        return facts

    with job.opened(str(tmp_path / "out"), letters.SETTINGS) as folder:
        folder.begin()
    for numbered in enumerate(letters.TASKS):
        task = json.dumps(numbered)
        assert execute(slow) == execute(None)
    letters.build(tmp_path / "out")
    assert content(tmp_path / "out") == whole


def test_other_folders_and_settings_are_refused(folder, tmp_path):
    letters.build(folder)
    assert letters.build(folder)["files"]
    check_is_refused(folder, 2, "seed is 1 there, 2 here", seed=2)
    put(f"{folder}2", "precious", "")
    check_is_refused(f"{folder}2", 2, r"already holds something \(precious\)")
    assert os.listdir(f"{folder}2") == ["precious"]
    (tmp_path / "file").write_text("")
    check_is_refused(tmp_path / "file" / "folder", 73, "cannot write")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "job.json").write_text("{")
    check_is_refused(tmp_path / "damaged", 65, "job.json cannot be read")


def test_a_second_start_touches_nothing(folder, tmp_path, monkeypatch):
    with job.opened(folder, letters.SETTINGS) as first:
        first.begin()
        put(folder, ".part-of-the-first", "")
        check_is_refused(folder, 75, "another --output-dir")
        assert Path(folder, ".part-of-the-first").exists()
        if url_of(folder):  # from another machine
            with monkeypatch.context() as patch:
                patch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "another"))
                # The first is refreshed every 10 seconds.
                patch.setattr(lock._BucketLock, "_wait", lambda _: False)
                place = memory_bucket.place("folder")
                check_is_refused(place, 75, "another --output-dir")
    letters.build(folder)
    assert not [name for name in os.listdir(folder) if name.startswith("run.lock")]


def test_the_first_finishes_while_the_second_waits(folder, monkeypatch):
    enter = Lock.__enter__

    def after_the_first(lock):
        with monkeypatch.context() as patch:
            patch.setattr(Lock, "__enter__", enter)
            letters.build(folder)
        return enter(lock)

    monkeypatch.setattr(Lock, "__enter__", after_the_first)
    assert letters.build(folder, work=None)["files"]


# Processes.


def die(number):
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_worker_is_an_error():
    refused(lambda: list(job._results(2, die, [1], ())), "fewer --num-processes")


def test_results_are_not_accumulated():
    """Each may be long, and there are thousands."""
    seen = []
    for found in job._results(2, functools.partial(np.full, 9), range(20), ()):
        assert sum(ref() is not None for ref in seen) <= 1
        seen.append(weakref.ref(found))
        del found
    assert len(seen) == 20


@pytest.fixture
def sleeping(tmp_path):
    """A job of two sleeping workers, as a terminal starts it; their pids."""
    process = subprocess.Popen(
        [sys.executable, letters.__file__, tmp_path / "out", "2"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell makes processes in the background ignore it.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    yield process, [int(process.stdout.readline()) for _ in range(2)]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_workers_of_a_killed_process_end(sleeping):
    process, workers = sleeping
    assert all(map(is_alive, workers))
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


def test_ctrl_c_ends_running_and_waiting_work(sleeping, tmp_path):
    process, workers = sleeping
    # A terminal sends it to all of the group, in any order.
    for pid in workers:
        os.kill(pid, signal.SIGINT)
    time.sleep(0.5)
    assert all(map(is_alive, workers)) and process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert (process.returncode, error) == (130, "error: interrupted\n")
    assert not any(map(is_alive, workers))
    assert not list((tmp_path / "out" / ".job").iterdir())
