# SPDX-License-Identifier: Apache-2.0
"""Builds by Apache Beam whose workers are killed, or whose work is done twice."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from electra_tf.data import beam_building, build_plan, shard_writing
from electra_tf.data.record_making import BuildSettings
from electra_tf.text import units
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary
from tests.helpers.beam_workers import TWO_PROCESSES, job_server, workers_below
from tests.helpers.building import SCRIPT, VOCAB, content, succeed, write_corpus
from tests.helpers.runs import ROOT


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text"), files=60, lines=1500)


@pytest.fixture(scope="module")
def local(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    succeed(text, folder, "--num-out-files=20")
    return content(folder)


def start(text, output, args):
    command = [sys.executable, SCRIPT, f"--corpus-dir={text}", f"--vocab-file={VOCAB}"]
    command += [f"--output-dir={output}", "--num-out-files=20", "--runner=beam"]
    return subprocess.Popen(
        [*command, f"--beam-args={args}"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_shards(process, output, count):
    deadline = time.monotonic() + 200
    while process.poll() is None and len(list(output.glob("pretrain*"))) < count:
        assert time.monotonic() < deadline, "no more shards"
        time.sleep(0.002)
    return process.poll() is None


def test_a_killed_worker_process(text, local, tmp_path):
    """The run ends at once, and says so; the next one goes on."""
    pytest.importorskip("apache_beam")
    output = tmp_path / "out"
    process = start(text, output, TWO_PROCESSES)
    assert wait_for_shards(process, output, 3)
    workers = workers_below(process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    error = process.communicate(timeout=120)[1]
    assert process.returncode == 69, error
    # The other worker complains of the end of this process in its own words.
    assert "error: a worker of Beam was killed or lost" in error
    done = {p.name: p.stat().st_mtime_ns for p in output.glob("pretrain*")}
    assert 3 <= len(done) < 20
    succeed(text, output, "--num-out-files=20", "--runner=beam")
    assert content(output) == local
    for name, changed in done.items():
        assert (output / name).stat().st_mtime_ns == changed


@pytest.mark.thorough
def test_a_killed_worker_of_a_job_server(text, local, tmp_path):
    """Beam's own job server waits for ever; who stops it and begins again goes on."""
    pytest.importorskip("apache_beam")
    output = tmp_path / "out"
    with job_server(tmp_path) as args:
        process = start(text, output, args)
        assert wait_for_shards(process, output, 3)
        (worker,) = workers_below(os.getpid())
        os.kill(worker, signal.SIGKILL)
        process.kill()
        process.wait()
        assert len(list(output.glob("pretrain*"))) < 20
    with job_server(tmp_path) as args:
        process = start(text, output, args)
        process.communicate(timeout=300)
        assert process.returncode == 0
    assert content(output) == local


def test_work_that_is_done_twice_changes_nothing(text, local, tmp_path):
    """Two workers have the same bundle, or one has it again after the other."""
    vocab = Vocabulary.load(VOCAB)
    settings = BuildSettings(str(VOCAB), TokenizerConfig())
    plan = shard_writing.Plan(str(tmp_path), settings, 20, False, vocab.sha256, "")
    groups = build_plan.deal(units.file_corpus(str(text)).units, 20, 42)
    tasks = [json.dumps([i, g.shards, g.units]) for i, g in enumerate(groups)]
    first = tasks[0]
    # One has written its part when the other finishes the whole group.
    path = shard_writing.part_path(plan, 0, 0)
    counts, tokens = shard_writing.make_part(plan, path, groups[0].units)
    beam_building._make_group(plan, first)
    written = content(tmp_path)
    shard_writing.finish_group(plan, 0, groups[0], [path], counts, tokens)
    beam_building._make_group(plan, first)
    del written[os.path.basename(path)]
    assert content(tmp_path) == written
    shard = "pretrain_data.tfrecord-00000-of-00020"
    assert written[shard] == local[shard]
    # A shard that was lost, or cut short, is made again.
    for damage in (os.unlink, lambda p: os.truncate(p, 5)):
        damage(tmp_path / shard)
        beam_building._make_group(plan, first)
        assert content(tmp_path) == written
