# SPDX-License-Identifier: Apache-2.0
"""A run that is asked to stop does not wait for the end of an evaluation."""

import time

import pytest

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.forked_runs import pretrain
from tests.helpers.runs import tiny


@pytest.mark.thorough
def test_a_run_that_evaluates_stops_at_once(tiny_data):
    hparams = tiny(num_train_steps=8, eval_every_steps=5, num_eval_steps=10**6)
    run = pretrain(tiny_data, "evaluating", hparams)
    directory = tiny_data / "models" / "evaluating"
    deadline = time.monotonic() + 200
    while 5 not in Checkpoints(directory, read_only=True).steps():
        assert time.monotonic() < deadline and run.process.is_alive()
        time.sleep(0.1)
    time.sleep(2)  # in the evaluation
    run.process.terminate()
    ended = run.wait()
    assert ended.returncode == 42, ended.stderr
    assert "Evaluation at step 5 is left to the next start." in ended.stdout
    hparams["num_eval_steps"] = 2
    ended = pretrain(tiny_data, "evaluating", hparams).wait()
    assert ended.returncode == 0, ended.stderr
    assert "Evaluation at step 5: " in ended.stdout
