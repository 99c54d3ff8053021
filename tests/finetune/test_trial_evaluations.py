# SPDX-License-Identifier: Apache-2.0
"""Scores during a trial: the best step, and early stopping."""

import math
import types

import pytest

from electra_tf.finetune.classification import RegressionScorer
from electra_tf.finetune.trial import Evaluations, main_score


def test_best_step_and_patience(tmp_path):
    found = Evaluations(tmp_path, 0)
    assert not found.is_over(1)
    for step, score in ((10, 50.0), (20, 70.0), (30, 70.0), (40, math.nan)):
        scores = {"rte": {"accuracy": score}}
        assert found.is_better(score, scores) == (step in (10, 20))
        found.add(step, score, scores)
    assert found.best()["step"] == 20
    assert found.is_over(2) and not found.is_over(3) and not found.is_over(0)
    again = Evaluations(tmp_path, 40)
    assert again.rows == found.rows and again.has(40) and again.is_over(2)
    # Resumed from step 25: later scores are dropped.
    earlier = Evaluations(tmp_path, 25)
    assert [row["step"] for row in earlier.rows] == [10, 20] and not earlier.has(30)


def test_the_loss_decides_where_no_score_is_defined(tmp_path):
    found = Evaluations(tmp_path, 0)
    for step, loss in ((1, 3.0), (2, 1.0), (3, math.nan), (4, 2.0)):
        scores = {"a": {"pearson": math.nan, "loss": loss}}
        assert found.is_better(math.nan, scores) == (step in (1, 2))
        found.add(step, math.nan, scores)
    assert found.best()["step"] == 2 and found.best()["score"] is None
    assert found.is_better(-1.0, {"a": {"pearson": -1.0, "loss": 9.0}})


@pytest.mark.parametrize(
    ("targets", "predictions", "expected"),
    [
        ([0.5, 0.5, 0.5], [0.1, 0.2, 0.3], math.nan),
        ([0.5], [0.1], math.nan),
        ([0.5, 0.5], [0.1, 0.1], math.nan),
        ([0.1, 0.2], [0.3, 0.3], 0.0),
        ([0.1, 0.2], [0.3, 0.4], 100.0),
    ],
)
def test_correlation_without_anything_to_correlate(targets, predictions, expected):
    scorer = RegressionScorer()
    for target, prediction in zip(targets, predictions, strict=True):
        scorer.update({"targets": target, "predictions": prediction, "loss": 1.0})
    found = dict(scorer.get_results())
    for metric in ("pearson", "spearman"):
        assert found[metric] == pytest.approx(expected, nan_ok=True)


def test_main_metric_is_that_of_the_task():
    tasks = [
        types.SimpleNamespace(name="a", main_metric="accuracy"),
        types.SimpleNamespace(name="b", main_metric=None),
    ]
    scores = {"a": {"mcc": 90.0, "accuracy": 10.0}, "b": {"exact": 30.0, "f1": 80.0}}
    scores["a_mismatched"] = {"accuracy": 99.0}
    assert main_score(tasks, scores) == 20.0
