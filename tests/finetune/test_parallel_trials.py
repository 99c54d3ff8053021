# SPDX-License-Identifier: Apache-2.0
"""Trials as processes of their own: side by side, or one by one and merged."""

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


def start(data, model, hparams, *flags):
    return forked_runs.Run(
        data / "logs" / model,
        "run_finetuning.py",
        *("--data-dir", str(data), "--model-name", model),
        *("--hparams", json.dumps(TINY | hparams), *flags),
    )


def test_side_by_side_after_a_signal_and_one_by_one(data, monkeypatch):
    # Side by side a trial has fewer threads, and sums end in another order.
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    done = finetune(data, "in_turn", HPARAMS)
    assert done.returncode == 0, done.stderr
    expected, folder = results(data, "in_turn")
    text = (folder / "sts_results.txt").read_text()

    run = start(data, "parallel", HPARAMS | {"num_train_epochs": 200.0}, "--parallel=2")
    folder = data / "models" / "parallel" / "results"
    log = folder / "sts_results.trial_2.log"
    deadline = time.monotonic() + 200
    while not log.exists() or "%" not in log.read_text():
        assert time.monotonic() < deadline, run.stdout.read_text()
        time.sleep(0.2)
    os.kill(run.process.pid, signal.SIGTERM)
    ended = run.wait()
    assert ended.returncode == EXIT_PREEMPTED, ended.stdout
    assert "saved at step" in log.read_text()
    assert "Trial 3 begins" not in ended.stdout

    done = finetune(data, "alone", HPARAMS, "--parallel=2")
    assert done.returncode == 0, done.stdout
    found, folder = results(data, "alone")
    assert found == expected
    names = {f"sts_results.trial_{k}.{e}" for k in (1, 2, 3) for e in ("json", "log")}
    assert names <= {path.name for path in folder.iterdir()}
    assert len(text.splitlines()) == 3

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
def test_what_fails_is_said(data):
    wrong = HPARAMS | {"on_nonfinite": "stop", "learning_rate": 1e30}
    done = finetune(data, "failing", wrong, "--parallel=3")
    assert done.returncode == 70, done.stdout
    assert "ended with code 70: error: diverged at step" in done.stdout


@pytest.mark.parametrize(
    ("flags", "hparams", "text"),
    [
        (["--trial=4"], {}, "num_trials is 3"),
        (["--trial=1", "--parallel=2"], {}, "exclude each other"),
        (["--merge"], {}, "there are no results"),
        (["--merge"], {"do_eval": False}, "needs do_train and do_eval"),
    ],
)
def test_mistakes(data, flags, hparams, text):
    done = finetune(data, "mistakes", HPARAMS | hparams, *flags)
    assert done.returncode in (1, 2) and text in done.stderr
    assert "Traceback" not in done.stderr
