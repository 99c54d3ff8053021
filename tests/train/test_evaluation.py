# SPDX-License-Identifier: Apache-2.0
"""Evaluations while a run trains: right, beside the training, and made once."""

import functools
import json
import os
import signal

import pytest

from electra_tf.train.reporting import EVALUATIONS
from tests.helpers.forked_runs import digest, metrics_of, pretrain
from tests.helpers.runs import check_ok, tiny


def rows(folder):
    return [json.loads(line) for line in (folder / EVALUATIONS).open()]


def kill_at_evaluation(first=0):
    """kill -9 at the first evaluation from that step on, when its step is saved."""
    from electra_tf.pretrain.run import PeriodicEvaluation

    evaluate = PeriodicEvaluation.__call__

    def killed(self, step):
        if step >= first:
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluate(self, step)

    PeriodicEvaluation.__call__ = killed


@pytest.mark.thorough
def test_it_equals_do_eval_and_does_not_change_the_run(tiny_data):
    hparams = tiny(num_train_steps=10)
    models = tiny_data / "models"
    check_ok(pretrain(tiny_data, "not_evaluated", hparams).wait())

    at_times = hparams | {"eval_every_steps": 5}
    at_end = functools.partial(kill_at_evaluation, 10)
    run = pretrain(tiny_data, "evaluated", at_times, before=at_end).wait()
    assert run.returncode == -signal.SIGKILL
    assert "Evaluation at step 5: loss " in run.stdout
    run = check_ok(pretrain(tiny_data, "evaluated", at_times).wait())
    assert "Evaluation at step 10: loss " in run.stdout

    found = rows(models / "evaluated")
    assert [row["step"] for row in found] == [5, 10]
    assert digest(models / "evaluated", 10)  # both are there
    assert metrics_of(models / "evaluated") == metrics_of(models / "not_evaluated")
    assert os.listdir(models / "evaluated" / "tensorboard" / "eval")

    evaluate = hparams | {"do_train": False, "do_eval": True}
    check_ok(pretrain(tiny_data, "evaluated", evaluate).wait())
    path = models / "evaluated" / "results" / "unsup_results.json"
    results = json.loads(path.read_text())
    assert results["metrics"] | {"step": 10} == found[-1]


def test_missing_evaluation_data_are_found_before_the_first_step(tiny_data):
    hparams = tiny(eval_every_steps=5, eval_tfrecords=str(tiny_data / "nothing*"))
    run = pretrain(tiny_data, "no_data_to_evaluate", hparams).wait()
    assert run.returncode == 2 and "no file matches" in run.stderr
    folder = tiny_data / "models" / "no_data_to_evaluate"
    assert not (folder / "metrics.jsonl").exists()
