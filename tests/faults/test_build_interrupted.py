# SPDX-License-Identifier: Apache-2.0
"""Builds of data that are killed, run twice, or run out of disk."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from electra_tf.storage.lock import RunLock
from tests.helpers.building import SCRIPT, VOCAB, content, fail, succeed, write_corpus
from tests.helpers.process_tree import children_of, is_alive
from tests.helpers.runs import ROOT


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text"))


def test_a_killed_build_goes_on(tmp_path):
    folder = write_corpus(tmp_path / "in", files=60, lines=1500)
    flags = ["--num-out-files=20"]
    succeed(folder, tmp_path / "whole", *flags, "--num-processes=2")
    output = tmp_path / "killed"
    command = [
        sys.executable,
        SCRIPT,
        f"--corpus-dir={folder}",
        f"--vocab-file={VOCAB}",
    ]
    command += [f"--output-dir={output}", *flags]
    kills = 0
    finished = {}
    for attempt in range(20):
        process = subprocess.Popen(
            [*command, f"--num-processes={1 + attempt % 2}"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        goal = len(finished) + 3
        deadline = time.monotonic() + 100
        while process.poll() is None and len(list(output.glob("pretrain*"))) < goal:
            assert time.monotonic() < deadline, "no more shards"
            time.sleep(0.002)
        children = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        kills += 1
        # A shard that is there is whole, and no later run writes it again.
        now = {p.name: p.stat().st_mtime_ns for p in output.glob("pretrain*")}
        assert now.items() >= finished.items()
        finished = now
        deadline = time.monotonic() + 10
        while any(map(is_alive, children)):
            assert time.monotonic() < deadline, "workers outlive their parent"
            time.sleep(0.01)
    assert kills >= 3
    assert "20 shards" in succeed(folder, output, *flags)
    assert content(output) == content(tmp_path / "whole")
    for name, changed in finished.items():
        assert (output / name).stat().st_mtime_ns == changed


def test_an_unfinished_build_of_other_settings(text, tmp_path):
    output = tmp_path / "out"
    folder = write_corpus(tmp_path / "in", files=2)
    (folder / "1.txt").write_bytes(b"\xff\n")
    fail(folder, output, "--num-out-files=2")
    assert "build.json" in content(output)
    error, code = fail(folder, output, "--num-out-files=2", "--seed=1")
    assert "seed 42, now 1" in error and code == 2
    assert "corpus" in fail(text, output, "--num-out-files=2")[0]
    # The file is fixed with as many bytes: the build goes on.
    (folder / "1.txt").write_bytes(b"a\n")
    succeed(folder, output, "--num-out-files=2")
    assert "build.json" not in content(output)


def test_two_builds_in_one_directory(text, tmp_path):
    output = tmp_path / "out"
    with RunLock(output):
        error, code = fail(text, output)
        assert f"{output} is in use by process {os.getpid()}" in error and code == 75
        assert "choose another --output-dir" in error
    succeed(text, output)  # though the lock's file was left there
    assert not [name for name in content(output) if name.startswith("run.lock")]


@pytest.mark.parametrize("processes", [1, 2])
def test_no_room_left(tmp_path, processes):
    folder = write_corpus(tmp_path / "in", files=3, lines=3000)

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    flags = (f"--num-processes={processes}", "--num-out-files=2")
    command = [
        sys.executable,
        SCRIPT,
        f"--corpus-dir={folder}",
        f"--vocab-file={VOCAB}",
    ]
    result = subprocess.run(
        [*command, f"--output-dir={tmp_path / 'out'}", *flags],
        cwd=ROOT,
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 73, result.stderr
    assert "cannot write" in result.stderr and "Traceback" not in result.stderr
    assert content(tmp_path / "out").keys() == {"build.json"}
    succeed(folder, tmp_path / "out", *flags)
    succeed(folder, tmp_path / "whole", *flags)
    assert content(tmp_path / "out") == content(tmp_path / "whole")
