# SPDX-License-Identifier: Apache-2.0
"""Scores during a trial: the best step, and early stopping."""

import math
import types

from electra_tf.finetune.evaluations import Evaluations, main_score


def test_best_step_and_patience(tmp_path):
    found = Evaluations(tmp_path, 0)
    assert not found.is_over(1)
    for step, score in ((10, 50.0), (20, 70.0), (30, 70.0), (40, math.nan)):
        assert found.is_better(score) == (step in (10, 20))
        found.add(step, score, {"rte": {"accuracy": score}})
    assert found.best()["step"] == 20
    assert found.is_over(2) and not found.is_over(3) and not found.is_over(0)
    again = Evaluations(tmp_path, 40)
    assert again.rows == found.rows and again.has(40) and again.is_over(2)
    # Resumed from step 25: later scores are dropped.
    earlier = Evaluations(tmp_path, 25)
    assert [row["step"] for row in earlier.rows] == [10, 20] and not earlier.has(30)


def test_main_metric_is_that_of_the_task():
    tasks = [
        types.SimpleNamespace(name="a", main_metric="accuracy"),
        types.SimpleNamespace(name="b", main_metric=None),
    ]
    scores = {"a": {"mcc": 90.0, "accuracy": 10.0}, "b": {"exact": 30.0, "f1": 80.0}}
    scores["a_mismatched"] = {"accuracy": 99.0}
    assert main_score(tasks, scores) == 20.0
