# SPDX-License-Identifier: Apache-2.0
"""run_inference.py --runner beam: RunInference writes the bytes of a local run."""

from pathlib import Path

import pytest

from electra_tf.export import finetuned, saved_models
from tests.helpers import tiny_trials
from tests.helpers.beam_workers import TWO_PROCESSES, job_server
from tests.helpers.corpus_runs import (
    ELECTRIC,
    fail,
    rows_in,
    succeed,
    write_model,
    write_texts,
)

pytest.importorskip("apache_beam")

SMALL = "--shard-mb=0.004"
BEAM = (SMALL, "--runner=beam")


@pytest.fixture(scope="module")
def electric(tiny_data):
    return write_model(tiny_data, "beam_electric", **ELECTRIC)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def local(electric, corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("local") / "out"
    return succeed("score", electric, corpus, output, SMALL, "--workers=1")[0]


def test_in_this_process(electric, corpus, local, tmp_path):
    files, done = succeed("score", electric, corpus, tmp_path / "o", *BEAM)
    assert files == local
    assert f"{len(files) - 1} shards with Beam" in done.stdout
    assert "Resource module" not in done.stderr
    again = succeed("score", electric, corpus, tmp_path / "o", *BEAM)[1]
    assert "is complete already" in again.stdout


@pytest.mark.thorough
def test_in_two_processes(electric, corpus, local, tmp_path):
    args = f"--beam-args={TWO_PROCESSES}"
    assert succeed("score", electric, corpus, tmp_path / "o", *BEAM, args)[0] == local


@pytest.mark.thorough
def test_by_a_job_server_and_its_workers(electric, corpus, local, tmp_path):
    """The protocol that Flink and Spark speak; errors and models come through it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "w1"}\n{"text": \n')
    with job_server(tmp_path) as args:
        flags = (*BEAM, f"--beam-args={args}")
        assert succeed("score", electric, corpus, tmp_path / "o", *flags)[0] == local
        error, code = fail("score", electric, tmp_path / "in", tmp_path / "e", *flags)
    assert f"{tmp_path}/in/a.jsonl line 2 is not JSON" in error and code == 65


def test_a_saved_model_predicts(tmp_path):
    """Its graph has ops of tensorflow_text, which is imported first."""
    data = tiny_trials.write_data(tmp_path)
    config, _, _ = tiny_trials.write_run(data, {"task_names": ["cola"]})
    trial = finetuned.read_task(Path(config.trial_dir(1)), "cola")
    model = saved_models.write_saved_model(
        saved_models.TASKS[trial.facts.kind](trial),
        trial.source,
        "cola",
        tmp_path / "e",
    )
    lines = [" ".join(tiny_trials.WORDS[i % 40 : i % 40 + i % 7]) for i in range(200)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    written = [
        succeed("predict", model, tmp_path / "in.txt", tmp_path / name, *flags)[0]
        for name, flags in (
            ("local", ("--shard-mb=0.001", "--workers=1")),
            ("beam", ("--shard-mb=0.001", "--runner=beam")),
        )
    ]
    assert written[0] == written[1] and len(written[0]) > 3
    rows = rows_in(tmp_path / "beam")
    assert [row["text"] for row in rows] == lines
    assert {"label", "probabilities"} < set(rows[0])


def test_errors_are_those_of_a_local_run(electric, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"w1\ncaf\xe9\n")
    source, output = tmp_path / "in", tmp_path / "out"
    errors = [
        fail("score", electric, source, output, *flags)
        for flags in (("--workers=1",), ("--runner=beam",))
    ]
    assert errors[0] == errors[1] and errors[0][1] == 65
    (tmp_path / "in" / "a.txt").write_bytes(b"w1\ncafe\n")
    succeed("score", electric, source, output, "--runner=beam")


@pytest.mark.parametrize(
    ("args", "problem", "code"),
    [
        ("--runner=NoSuchRunner", "Beam runner failed: ", 2),
        ("nonsense", "--beam-args: 'nonsense' is no option", 1),
    ],
)
def test_what_prevents_a_run(electric, corpus, tmp_path, args, problem, code):
    flags = (*BEAM, f"--beam-args={args}")
    error, found = fail("score", electric, corpus, tmp_path / "out", *flags)
    assert problem in error and found == code
