# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py with evaluations while it trains: best weights, early stopping."""

import functools
import json
import shutil
import signal

import pytest

from electra_tf.errors import EXIT_PREEMPTED
from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers import forked_runs
from tests.helpers.tiny_finetuning import fork, write_data

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
    return run.stdout, folder, evaluations(folder)


def evaluations(folder):
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def result(data):
    path = data / "models" / "m" / "results" / "cola_results.json"
    [trial] = json.loads(path.read_text())["trials"]
    return trial


def test_training_ends_early(data, trained):
    printed, _, rows = trained
    best = max(rows, key=lambda row: row["score"])
    assert [row["step"] for row in rows] == [24 * n for n in range(1, len(rows) + 1)]
    assert rows[-1]["step"] == best["step"] + 48 < 480
    assert f"Ended early at step {rows[-1]['step']}; step {best['step']}" in printed
    assert result(data)["steps"] == rows[-1]["step"]


def test_the_best_weights_are_those_of_the_results(data, trained):
    _, folder, rows = trained
    best = max(rows, key=lambda row: row["score"])
    assert Checkpoints(folder, read_only=True).steps() == [best["step"]]
    assert result(data)["scores"]["cola"] == pytest.approx(best["scores"]["cola"])
    run = fork(data, "m", HPARAMS | {"do_train": False})
    assert run.returncode == 0, run.stderr
    path = data / "models" / "m" / "results" / "cola_eval_results.json"
    stored = json.loads(path.read_text())
    [alone] = stored["trials"]
    assert alone["weights"] == str(folder / f"model.ckpt-{best['step']}")
    assert "init_checkpoint" not in stored["settings"]  # null: random weights
    assert alone["scores"]["cola"] == pytest.approx(best["scores"]["cola"])


@pytest.mark.thorough
def test_a_trial_that_ended_early_is_not_trained_on(data, trained, tmp_path):
    before = result(data)
    data = shutil.copytree(data, tmp_path / "data")
    (data / "models" / "m" / "results" / "cola_results.json").unlink()
    run = fork(data, "m", HPARAMS | {"write_pictures": True})
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Ended early" not in run.stdout
    folder = data / "models" / "m" / "finetuning_models" / "cola_model_1"
    assert evaluations(folder) == trained[2]
    assert result(data)["scores"] == before["scores"]
    # Its pictures are drawn all the same.
    [folder] = (data / "models" / "m" / "results").glob("*_pictures/trial_1")
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["confusion_cola.png", "learning_curves.png"]
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


STOPS = {
    "signal": functools.partial(forked_runs.signal_at, 50),
    # The saves are those of the training and of the best weights, in turns.
    "kill": functools.partial(forked_runs.kill_in_save, 4, 7),
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", STOPS)
def test_interrupts_change_nothing(data, trained, how):
    """The best weights, the scores and the early end are those of the straight run."""
    _, straight, rows = trained
    run = fork(data, how, HPARAMS, before=STOPS[how])
    stopped = EXIT_PREEMPTED if how == "signal" else -signal.SIGKILL
    assert run.returncode == stopped, run.stdout + run.stderr
    again = fork(data, how, HPARAMS)
    assert again.returncode == 0, again.stdout + again.stderr
    folder = data / "models" / how / "finetuning_models" / "cola_model_1"
    assert evaluations(folder) == rows
    [step] = Checkpoints(straight, read_only=True).steps()
    assert Checkpoints(folder, read_only=True).steps() == [step]
    name = f"model.ckpt-{step}.data-00000-of-00001"
    assert (straight / name).read_bytes() == (folder / name).read_bytes()
    assert not list(folder.glob("*.partial"))
