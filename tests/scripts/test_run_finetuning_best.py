# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py with evaluations while it trains: best weights, an early end."""

import json

import pytest

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.tiny_finetuning import finetune, fork, write_data

# 24 steps are an epoch; with this learning rate nothing gets better after a while.
HPARAMS = {"task_names": ["cola"], "num_train_epochs": 20.0, "eval_every_steps": 24}
HPARAMS |= {"keep": "best", "early_stopping_patience": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("best"))


@pytest.fixture(scope="module")
def trained(data):
    run = fork(data, "m", HPARAMS)
    assert run.returncode == 0, run.stdout + run.stderr
    folder = data / "models" / "m" / "finetuning_models" / "cola_model_1"
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    return run.stdout, folder, [json.loads(line) for line in lines]


def result(data):
    path = data / "models" / "m" / "results" / "cola_results.json"
    [trial] = json.loads(path.read_text())["trials"]
    return trial


def test_the_training_ends_early(data, trained):
    said, _, rows = trained
    best = max(rows, key=lambda row: row["score"])
    assert [row["step"] for row in rows] == [24 * n for n in range(1, len(rows) + 1)]
    assert rows[-1]["step"] == best["step"] + 48 < 480
    assert f"Ended early at step {rows[-1]['step']}; step {best['step']}" in said
    assert result(data)["steps"] == rows[-1]["step"]


def test_the_best_weights_are_those_of_the_results(data, trained):
    _, folder, rows = trained
    best = max(rows, key=lambda row: row["score"])
    assert Checkpoints(folder, read_only=True).steps() == [best["step"]]
    assert result(data)["scores"]["cola"] == pytest.approx(best["scores"]["cola"])
    run = fork(data, "m", HPARAMS | {"do_train": False})
    assert run.returncode == 0, run.stderr
    path = data / "models" / "m" / "results" / "cola_eval_results.json"
    [alone] = json.loads(path.read_text())["trials"]
    assert alone["scores"]["cola"] == pytest.approx(best["scores"]["cola"])


def test_a_trial_that_ended_early_is_not_trained_on(data, trained):
    _, folder, rows = trained
    before = (folder / "evaluations.jsonl").read_bytes()
    results = data / "models" / "m" / "results" / "cola_results.json"
    kept = results.read_text()
    results.unlink()
    run = fork(data, "m", HPARAMS)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Ended early" not in run.stdout
    assert (folder / "evaluations.jsonl").read_bytes() == before
    assert result(data)["scores"] == json.loads(kept)["trials"][0]["scores"]


def test_the_best_of_nothing(data):
    run = finetune(data, "m", {"task_names": ["cola"], "keep": "best"})
    assert run.returncode == 2 and "set eval_every_steps" in run.stderr
