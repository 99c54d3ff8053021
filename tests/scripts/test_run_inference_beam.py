# SPDX-License-Identifier: Apache-2.0
"""run_inference.py --runner beam writes the bytes of a local run."""

from pathlib import Path

import pytest

from electra_tf.export import finetuned_task, saved_model
from electra_tf.inference.finetuned import read_trial
from tests.helpers import tiny_finetuning
from tests.helpers.beam_workers import job_server
from tests.helpers.corpus_runs import fail, rows_in, succeed, write_texts

pytest.importorskip("apache_beam")
pytestmark = pytest.mark.thorough

SMALL, ONE, BEAM = "--shard-mb=0.004", "--workers=1", "--runner=beam"


@pytest.fixture(scope="module")
def electric(pretrained):
    return pretrained("electric") / "models" / "electric"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_texts(folder)
    return folder


@pytest.fixture(scope="module")
def local(electric, corpus, tmp_path_factory):
    output = tmp_path_factory.mktemp("local") / "out"
    return succeed("score", electric, corpus, output, SMALL, ONE)[0]


def test_with_a_job_server_and_its_workers(electric, corpus, local, tmp_path):
    """The protocol of Flink and Spark carries models and errors."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "w1"}\n{"text": \n')
    with job_server(tmp_path) as args:
        flags = (SMALL, BEAM, f"--beam-args={args}")
        assert succeed("score", electric, corpus, tmp_path / "o", *flags)[0] == local
        error, code = fail("score", electric, tmp_path / "in", tmp_path / "e", *flags)
    assert f"{tmp_path}/in/a.jsonl line 2 is not JSON" in error and code == 65


def test_a_saved_model_predicts(finetuned, tmp_path):
    """Its graph has ops of tensorflow_text, which has to be imported first."""
    place = "models/tiny/finetuning_models/cola,sts,chunk_model_1"
    trial = read_trial(Path(finetuned / place), "cola")
    served = finetuned_task.servable(trial)
    [model] = saved_model.write_saved_models({"cola": served}, trial, tmp_path / "e")
    words = tiny_finetuning.WORDS
    lines = [" ".join(words[i % 40 : i % 40 + i % 7]) for i in range(200)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    local, beam = (
        succeed("predict", model, tmp_path / "in.txt", tmp_path / flag, *flags)[0]
        for flag in (ONE, BEAM)
        for flags in [("--shard-mb=0.001", flag)]
    )
    assert local == beam and len(local) > 2
    rows = rows_in(tmp_path / BEAM)
    assert [row["text"] for row in rows] == lines
    assert {"label", "probabilities"} < set(rows[0])
