# SPDX-License-Identifier: Apache-2.0
"""Builds of data whose worker is killed, run twice, or run out of disk.

Builds that are killed: tests/jobs/test_job.py, and test_object_store.py.
"""

import os
import resource
import signal
import time

import pytest

from tests.helpers.beam_workers import TWO_PROCESSES, workers_below
from tests.helpers.building import SCRIPT, VOCAB, content, fail, succeed, write_corpus
from tests.helpers.forked_runs import Run

SHARDS = ("--num-out-files=8",)


def start(text, output, *flags, before=None):
    paths = (f"--corpus-dir={text}", f"--vocab-file={VOCAB}", f"--output-dir={output}")
    return Run(output.parent / "logs", SCRIPT, *paths, *SHARDS, *flags, before=before)


def shards_in(output):
    return {p.name: p.stat().st_mtime_ns for p in output.glob("pretrain*-of-*")}


def wait_for_shards(run, output, count):
    deadline = time.monotonic() + 200
    while run.process.is_alive() and len(shards_in(output)) < count:
        assert time.monotonic() < deadline, "no more shards"
        time.sleep(0.002)
    assert run.process.is_alive()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A corpus whose build takes long enough to be killed."""
    return write_corpus(tmp_path_factory.mktemp("large"), files=32, lines=1500)


@pytest.mark.thorough
def test_a_killed_worker_of_beam(large, tmp_path):
    pytest.importorskip("apache_beam")
    output = tmp_path / "out"
    run = start(large, output, "--runner=beam", f"--beam-args={TWO_PROCESSES}")
    wait_for_shards(run, output, 2)
    workers = workers_below(run.process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    ended = run.wait()
    assert ended.returncode == 69, ended.stderr
    assert "error: a worker of Beam was killed or lost" in ended.stderr
    finished = shards_in(output)
    succeed(large, output, *SHARDS, "--runner=beam")
    succeed(large, tmp_path / "whole", *SHARDS)
    assert content(output) == content(tmp_path / "whole")
    assert shards_in(output).items() >= finished.items()


def test_an_unfinished_build_keeps_its_settings(tmp_path):
    output = tmp_path / "out"
    folder = write_corpus(tmp_path / "in", files=2)
    (folder / "1.txt").write_bytes(b"\xff\n")
    fail(folder, output, "--num-out-files=2")
    error, code = fail(folder, output, "--num-out-files=2", "--seed=1")
    assert "seed is 42 there, 1 here" in error and code == 2
    # The file is fixed with as many bytes: the build goes on.
    (folder / "1.txt").write_bytes(b"a\n")
    succeed(folder, output, "--num-out-files=2")
    assert "job.json" not in content(output)


def limit_file_size():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_no_room_left(tmp_path, processes):
    folder = write_corpus(tmp_path / "in", files=3, lines=3000)
    flag = f"--num-processes={processes}"
    result = start(folder, tmp_path / "out", flag, before=limit_file_size).wait()
    assert result.returncode == 73, result.stderr
    assert "cannot write" in result.stderr and "Traceback" not in result.stderr
    assert not list((tmp_path / "out" / ".job").glob(".*.partial"))
    assert not (tmp_path / "out" / "manifest.json").exists()
    succeed(folder, tmp_path / "out", *SHARDS, flag)
    succeed(folder, tmp_path / "whole", *SHARDS, flag)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
