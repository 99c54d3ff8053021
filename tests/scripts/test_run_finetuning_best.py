# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py with evaluations while it trains: best weights, an early end."""

import functools
import json
import signal

import pytest

from electra_tf.errors import EXIT_PREEMPTED
from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers import forked_runs
from tests.helpers.runs import by_default
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
    stored = json.loads(path.read_text())
    [alone] = stored["trials"]
    assert alone["weights"] == str(folder / f"model.ckpt-{best['step']}")
    assert "init_checkpoint" not in stored["settings"]  # null are random weights
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


WEIGHTS = "model.ckpt-{}.data-00000-of-00001"
STOPS = {
    "a signal in training": functools.partial(forked_runs.signal_at, 50),
    # The saves are those of the training and of the best weights, in turns.
    "a kill as weights are written": functools.partial(forked_runs.kill_in_save, 1, 0),
    "a kill before the best are there": functools.partial(
        forked_runs.kill_in_save, 3, 4
    ),
    "a kill as the best are exchanged": functools.partial(
        forked_runs.kill_in_save, 4, 7
    ),
}


@pytest.mark.parametrize("how", by_default(STOPS, ["a kill as the best are exchanged"]))
def test_interrupts_change_nothing(data, trained, how):
    """The best weights, the scores and the early end are those of the straight run."""
    _, straight, rows = trained
    name = how.replace(" ", "_")
    run = fork(data, name, HPARAMS, before=STOPS[how])
    stopped = EXIT_PREEMPTED if "signal" in how else -signal.SIGKILL
    assert run.returncode == stopped, run.stdout + run.stderr
    again = fork(data, name, HPARAMS)
    assert again.returncode == 0, again.stdout + again.stderr
    folder = data / "models" / name / "finetuning_models" / "cola_model_1"
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == rows
    [step] = Checkpoints(straight, read_only=True).steps()
    assert Checkpoints(folder, read_only=True).steps() == [step]
    found = (path / WEIGHTS.format(step) for path in (straight, folder))
    ours, theirs = (path.read_bytes() for path in found)
    assert ours == theirs
    assert not list(folder.glob("*.partial"))


def test_a_stopped_trial_goes_on_with_its_own_settings(data):
    """Others would be taken for those of the steps that are made already."""
    last = {k: v for k, v in HPARAMS.items() if k != "keep"}
    stop = functools.partial(forked_runs.signal_at, 50)
    run = fork(data, "other", last, before=stop)
    assert run.returncode == EXIT_PREEMPTED, run.stdout + run.stderr
    folder = data / "models" / "other" / "finetuning_models" / "cola_model_1"
    before = {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}
    for hparams, text in (
        (last | {"num_train_epochs": 1.0}, "num_train_epochs is 20.0 there, 1.0 here"),
        (last | {"seed": 1}, "seed is 42 there, 1 here"),
        # Its last weights would be taken for the best of another.
        (HPARAMS, 'keep is "last" there, "best" here'),
    ):
        run = fork(data, "other", hparams)
        assert run.returncode == 2 and "Traceback" not in run.stderr, run.stderr
        assert text in run.stderr
        assert f'set "model_dir" to a new place, or remove {folder}' in run.stderr
        assert run.stderr[run.stderr.index("error: ") :].count("\n") <= 3
    assert (
        before.items()
        <= {p: p.read_bytes() for p in folder.iterdir() if p.is_file()}.items()
    )
    run = fork(data, "other", last | {"log_steps": 7, "iterations_per_loop": 3})
    assert run.returncode == 0 and "Continuing from" in run.stdout, run.stderr


def test_pictures_are_drawn_where_asked(data, trained):
    """Of a finished trial, too."""
    run = fork(data, "m", HPARAMS | {"write_pictures": True})
    assert run.returncode == 0, run.stdout + run.stderr
    [folder] = (data / "models" / "m" / "results").glob("*_pictures/trial_1")
    assert f"Pictures of trial 1: {folder}" in run.stdout
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["confusion_cola.png", "learning_curves.png"]
    for path in folder.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_the_best_of_nothing(data):
    run = finetune(data, "m", {"task_names": ["cola"], "keep": "best"})
    assert run.returncode == 2 and "set eval_every_steps" in run.stderr
