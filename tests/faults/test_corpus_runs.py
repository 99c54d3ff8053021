# SPDX-License-Identifier: Apache-2.0
"""Corpus runs that are killed, whose workers are killed, or whose work is repeated."""

import json
import os
import signal
import time

import pytest

from electra_tf.data import build_plan
from electra_tf.inference import corpus_run, corpus_texts
from electra_tf.text import units
from tests.helpers.beam_workers import TWO_PROCESSES, workers_below
from tests.helpers.building import content
from tests.helpers.corpus_runs import (
    ELECTRIC,
    start,
    succeed,
    write_model,
    write_texts,
)
from tests.helpers.process_tree import children_of, command_of

SMALL = "--shard-mb=0.02"


@pytest.fixture(scope="module")
def model(tiny_data):
    return write_model(tiny_data, "killed_runs", **ELECTRIC)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_texts(folder, lines=1000, files=10)
    return folder


@pytest.fixture(scope="module")
def whole(model, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    return succeed("score", model, corpus, folder, SMALL, "--workers=1")[0]


def wait_for_shards(run, output, count):
    deadline = time.monotonic() + 200
    while len(list(output.glob("part-*"))) < count and run.process.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert run.process.is_alive(), run.wait()


def made(output):
    return {p.name: p.stat().st_mtime_ns for p in output.glob("part-*")}


def went_on(output, done, whole):
    """Nothing is missing, repeated or made again."""
    assert content(output) == whole
    assert 3 <= len(done) < len(whole) - 1
    for name, changed in done.items():
        assert (output / name).stat().st_mtime_ns == changed


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run(model, corpus, whole, tmp_path, workers):
    output, flags = tmp_path / "out", (SMALL, f"--workers={workers}")
    run = start(tmp_path / "logs", "score", model, corpus, output, *flags)
    wait_for_shards(run, output, 3)
    run.process.kill()
    run.process.join()
    done = made(output)
    _, result = succeed("score", model, corpus, output, SMALL, "--workers=1")
    assert "shards are there" in result.stderr
    went_on(output, done, whole)


@pytest.mark.thorough
def test_a_killed_worker(model, corpus, whole, tmp_path):
    output, flags = tmp_path / "out", (SMALL, "--workers=2")
    run = start(tmp_path / "logs", "score", model, corpus, output, *flags)
    wait_for_shards(run, output, 3)
    children = [
        pid
        for pid in children_of(run.process.pid)
        if any("spawn_main" in word for word in command_of(pid))
    ]
    assert len(children) == 2
    os.kill(children[0], signal.SIGKILL)
    result = run.wait()
    assert result.returncode == 2 and "a worker process was killed" in result.stderr
    done = made(output)
    succeed("score", model, corpus, output, SMALL, "--workers=2")
    went_on(output, done, whole)


@pytest.mark.thorough
def test_a_killed_worker_of_beam(model, corpus, whole, tmp_path):
    pytest.importorskip("apache_beam")
    output = tmp_path / "out"
    flags = (SMALL, "--runner=beam", f"--beam-args={TWO_PROCESSES}")
    run = start(tmp_path / "logs", "score", model, corpus, output, *flags)
    wait_for_shards(run, output, 3)
    workers = workers_below(run.process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    result = run.wait()
    assert result.returncode == 69, result.stderr
    assert "error: a worker of Beam was killed or lost" in result.stderr
    done = made(output)
    succeed("score", model, corpus, output, SMALL, "--runner=beam")
    went_on(output, done, whole)


def test_work_that_is_done_twice_changes_nothing(model, tmp_path, monkeypatch):
    """As a runner may repeat a bundle; damaged shards are made again."""
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")  # which a run would leave set
    source, folder = tmp_path / "in", tmp_path / "out"
    write_texts(source)
    folder.mkdir()
    options = {"model": str(model), "method": None, "overlap": 0, "tokens": False}
    options |= {"encoding_errors": "strict", "text_key": "text"}
    job = corpus_texts.Scores(options)
    shards = build_plan.portions(job.corpus(str(source), 4000).units, 4000)
    settings = {"options": job.options, "model": job.model}
    plan = corpus_run.Plan(str(folder), corpus_texts.Scores, len(shards), settings)
    task = json.dumps([1, shards[1]])
    record = corpus_run.make_shard(plan, task)
    assert record["counts"]["texts"] > 5
    before = content(folder)
    assert corpus_run.make_shard(plan, task) == record
    path = folder / record["file"]["name"]
    for damage in (os.unlink, lambda p: os.truncate(p, 5)):
        damage(path)
        assert corpus_run.make_shard(plan, task) == record
        assert content(folder) == before
    # So is text: here behind the end of what the shard begins in, in the same line.
    end = units.Unit(*json.loads(task)[1][-1])
    text = (source / end.name).read_bytes()
    assert text[end.end - 1 : end.end] != b"\n"
    at = text.index(b"\n", end.end) - 1
    (source / end.name).write_bytes(text[:at] + b"?" + text[at + 1 :])
    with pytest.raises(corpus_run.UserError, match="made from another text"):
        corpus_run.make_shard(plan, task)
    (source / end.name).write_bytes(text)
    # A model that has changed since the plan is refused.
    corpus_run._loaded.clear()
    other = plan._replace(settings=settings | {"model": {"sha256": "0" * 64}})
    os.unlink(path)
    with pytest.raises(corpus_run.UserError, match="another model than"):
        corpus_run.make_shard(other, task)
    assert units.Unit(*json.loads(task)[1][0]) == shards[1][0]
