# SPDX-License-Identifier: Apache-2.0
"""Corpus runs that are killed, whose workers are killed, or whose work is repeated."""

import os
import signal
import time

import pytest

from electra_tf.errors import UserError
from electra_tf.inference import corpus_run
from electra_tf.text import units
from tests.helpers.building import content
from tests.helpers.corpus_runs import start, succeed, write_texts
from tests.helpers.process_tree import children_of, command_of

SMALL = "--shard-mb=0.02"


@pytest.fixture(scope="module")
def model(pretrained):
    return pretrained("electric") / "models" / "electric"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_texts(folder, lines=600, files=8)
    return folder


@pytest.fixture(scope="module")
def whole(model, corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "out"
    return succeed("score", model, corpus, folder, SMALL, "--workers=1")[0]


def made(output):
    return {p.name: p.stat().st_mtime_ns for p in output.glob("part-*")}


@pytest.mark.thorough
@pytest.mark.parametrize("killed", ["run", "worker"])
def test_a_killed_run_is_continued(model, corpus, whole, tmp_path, killed):
    output, flags = tmp_path / "out", (SMALL, "--workers=2")
    run = start(tmp_path / "logs", "score", model, corpus, output, *flags)
    deadline = time.monotonic() + 200
    while len(made(output)) < 3 and run.process.is_alive():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    children = [
        pid
        for pid in children_of(run.process.pid)
        if any("spawn_main" in word for word in command_of(pid))
    ]
    assert len(children) == 2
    os.kill(run.process.pid if killed == "run" else children[0], signal.SIGKILL)
    result = run.wait()
    if killed == "worker":
        assert result.returncode == 2
        assert "a worker process was killed" in result.stderr
    done = made(output)
    _, result = succeed("score", model, corpus, output, SMALL, "--workers=1")
    assert "parts exist" in result.stderr
    # Nothing is missing, repeated or made again.
    assert content(output) == whole
    assert 3 <= len(done) < len(whole) - 1
    assert made(output).items() >= done.items()


@pytest.mark.thorough
def test_workers_notice_other_text_and_another_model(model, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")  # which a run would leave set
    source, folder = tmp_path / "in", tmp_path / "out"
    write_texts(source)
    folder.mkdir()
    options = {"model": str(model), "method": None, "overlap": 0, "tokens": False}
    options |= {"encoding_errors": "strict", "text_key": "text"}
    scores = corpus_run.Scores(options)
    shards = units.portions(scores.corpus(str(source), 4000).units, 4000)
    settings = {"options": scores.options, "model": scores.model}
    plan = corpus_run.Plan(str(folder), corpus_run.Scores, len(shards), settings)
    record = corpus_run.write_shard(plan, (1, shards[1]), str(folder))
    assert record["counts"]["texts"] > 5
    records = [None, record, *[None] * (len(shards) - 2)]
    corpus_run._check_same_text(str(folder), records, shards)
    # Changed text behind the end of the shard's range, in the same line, is noticed.
    end = shards[1][-1]
    text = (source / end.name).read_bytes()
    assert text[end.end - 1 : end.end] != b"\n"
    at = text.index(b"\n", end.end) - 1
    (source / end.name).write_bytes(text[:at] + b"?" + text[at + 1 :])
    with pytest.raises(UserError, match="part-00001.*made from another text"):
        corpus_run._check_same_text(str(folder), records, shards)
    # A model that has changed since the plan is refused.
    corpus_run._models.clear()
    other = plan._replace(settings=settings | {"model": {"sha256": "0" * 64}})
    with pytest.raises(UserError, match="another model than"):
        corpus_run.write_shard(other, (1, shards[1]), str(folder))
