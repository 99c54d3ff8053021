# SPDX-License-Identifier: Apache-2.0
"""Nobody reads what a run prints any more: it goes on, or ends as it is asked to."""

import json
import os
import subprocess
import sys
import time

import pytest

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.forked_runs import metrics_of
from tests.helpers.runs import ROOT, tiny

LONG = tiny(num_train_steps=100_000, save_checkpoints_steps=100_000, log_steps=1)


def command(data, model, hparams):
    return [
        *(sys.executable, str(ROOT / "run_pretraining.py"), "--data-dir", str(data)),
        *("--model-name", model, "--hparams", json.dumps(hparams)),
    ]


def wait_for_steps(directory, count):
    deadline = time.monotonic() + 200
    while not (directory / "metrics.jsonl").exists() or (
        len(metrics_of(directory)) < count
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.thorough
def test_a_pipe_that_is_closed_does_not_end_a_run(tiny_data):
    hparams = LONG | {"num_train_steps": 300}
    run = subprocess.Popen(
        command(tiny_data, "piped", hparams),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    run.stdout.readline()
    run.stdout.close()  # as `| head -1` does
    error = run.stderr.read()
    assert run.wait(200) == 0, error
    assert "Traceback" not in error and "Exception ignored" not in error
    directory = tiny_data / "models" / "piped"
    assert Checkpoints(directory, read_only=True).newest_intact().step == 300


def test_a_terminal_that_is_closed_saves_the_step(tiny_data):
    directory = tiny_data / "models" / "hung_up"
    ours, theirs = os.openpty()
    run = subprocess.Popen(
        # The session leader of a terminal hears of its end, unless the suite is run
        # under nohup, which children inherit.
        [
            *("setsid", "--ctty", "--wait", "env", "--default-signal=HUP"),
            *command(tiny_data, "hung_up", LONG),
        ],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    wait_for_steps(directory, 5)
    os.close(ours)
    assert run.wait(60) == 42
    assert Checkpoints(directory, read_only=True).newest_intact().step >= 5
