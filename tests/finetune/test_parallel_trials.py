# SPDX-License-Identifier: Apache-2.0
"""Trials in processes of their own, merged afterwards."""

import json
import os
import signal
import time

import pytest

from electra_tf.errors import EXIT_PREEMPTED
from tests.helpers import forked_runs
from tests.helpers.tiny_finetuning import TINY, finetune, write_data

HPARAMS = {"task_names": ["sts"], "num_trials": 3, "num_train_epochs": 2.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def results(data, model):
    folder = data / "models" / model / "results"
    trials = json.loads((folder / "sts_results.json").read_text())["trials"]
    return {trial["trial"]: trial["scores"] for trial in trials}, folder


@pytest.mark.thorough
def test_trials_side_by_side_and_one_by_one_give_the_same_results(data, monkeypatch):
    # With fewer threads, sums are computed in another order.
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    done = finetune(data, "in_turn", HPARAMS)
    assert done.returncode == 0, done.stderr
    expected, _ = results(data, "in_turn")
    done = finetune(data, "alone", HPARAMS, "--parallel=2")
    assert done.returncode == 0, done.stdout
    found, folder = results(data, "alone")
    assert found == expected
    names = {f"sts_results.trial_{k}.{e}" for k in (1, 2, 3) for e in ("json", "log")}
    assert names <= {path.name for path in folder.iterdir()}
    for trial in (3, 1):
        done = finetune(data, "array", HPARAMS, f"--trial={trial}")
        assert done.returncode == 0, done.stderr
    merged = finetune(data, "array", HPARAMS, "--merge")
    assert merged.returncode == 0, merged.stderr
    assert "not made yet: trial 2" in merged.stdout
    assert results(data, "array")[0] == {k: expected[k] for k in (1, 3)}
    whole = finetune(data, "array", HPARAMS)
    assert "Trial 1 is finished" in whole.stdout and whole.returncode == 0
    assert results(data, "array")[0] == expected


@pytest.mark.thorough
def test_signal_ends_all_trials(data):
    hparams = TINY | HPARAMS | {"num_train_epochs": 200.0}
    run = forked_runs.Run(
        *(data / "logs" / "parallel", "run_finetuning.py", "--data-dir", str(data)),
        *("--model-name", "parallel", "--hparams", json.dumps(hparams), "--parallel=2"),
    )
    log = data / "models" / "parallel" / "results" / "sts_results.trial_2.log"
    deadline = time.monotonic() + 200
    while not log.exists() or "seq/s" not in log.read_text():
        assert time.monotonic() < deadline, run.stdout.read_text()
        time.sleep(0.2)
    os.kill(run.process.pid, signal.SIGTERM)
    ended = run.wait()
    assert ended.returncode == EXIT_PREEMPTED, ended.stdout
    assert "saved at step" in log.read_text()
    assert "Trial 3 begins" not in ended.stdout


@pytest.mark.thorough
def test_error_of_a_trial_is_reported(data):
    wrong = HPARAMS | {"on_nonfinite": "stop", "learning_rate": 1e30}
    done = finetune(data, "failing", wrong | {"num_trials": 2}, "--parallel=2")
    assert done.returncode == 70, done.stdout
    assert "ended with code 70: error: diverged at step" in done.stdout


def test_one_trial_alone_and_merged(data):
    hparams = HPARAMS | {"num_trials": 2, "num_train_epochs": 0.2}
    done = finetune(data, "one", hparams, "--trial=2")
    assert done.returncode == 0, done.stderr
    merged = finetune(data, "one", hparams, "--merge")
    assert "not made yet: trial 1" in merged.stdout
    assert list(results(data, "one")[0]) == [2]


@pytest.mark.parametrize(
    ("flags", "hparams", "text"),
    [
        (["--trial=4"], {}, "num_trials is 3"),
        (["--trial=1", "--parallel=2"], {}, "exclude each other"),
        (["--merge"], {}, "no results in"),
        (["--merge"], {"do_eval": False}, "needs do_train and do_eval"),
    ],
)
def test_wrong_flags_are_refused(data, flags, hparams, text):
    done = finetune(data, "mistakes", HPARAMS | hparams, *flags)
    assert done.returncode in (1, 2) and text in done.stderr
