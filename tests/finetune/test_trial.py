# SPDX-License-Identifier: Apache-2.0
"""The identity of an interrupted trial; scores during one."""

import io
import math
import os
import types
from pathlib import Path

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.finetune import run as run_module
from electra_tf.finetune import trial
from electra_tf.finetune.classification import RegressionScorer
from electra_tf.finetune.results import Results, TrialResult
from electra_tf.finetune.trial import Evaluations, main_score
from electra_tf.storage.lock import Lock
from electra_tf.storage.mirror import Outputs
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import own_tasks, write_files


def test_identity_includes_dropout_and_shape(tmp_path):
    write_files(tmp_path, {})
    vocab, store = Vocabulary.load(tmp_path / "vocab.txt"), types.SimpleNamespace()
    store.digest = "0"

    def identity(**overrides):
        hparams = {"model_hparam_overrides": overrides}
        config = FinetuningConfig.from_hparams(str(tmp_path), "m", hparams)
        run = trial.Run(config, vocab, [], None, None, None, None)
        return trial._identity(run, store)

    found = identity()
    assert found != identity(hidden_dropout_prob=0.2)
    assert found != identity(num_hidden_layers=3)


def test_identity_includes_the_dev_set_if_the_trial_is_scored_during_training(tmp_path):
    store = types.SimpleNamespace(digest="0")

    def identity(dev, **hparams):
        files = {"train.csv": "a,b\ndog,1\ncat,2\n", "dev.csv": dev}
        hparams |= {"eval_every_steps": 5}
        tasks = own_tasks(tmp_path, files, "regression", **hparams)
        vocab = tasks[0].tokenizer.vocab
        run = trial.Run(tasks[0].config, vocab, tasks, *[None] * 4)
        return trial._identity(run, store)

    dev = "a,b\nran,1\n"
    assert identity(dev, do_eval=False) == identity(dev)
    assert identity(dev, do_eval=False) != identity("a,b\nran,2\n", do_eval=False)


def test_others_keep_out_until_a_trial_is_written_and_removed(tmp_path, monkeypatch):
    hparams = {"num_trials": 2, "task_names": ["rte"], "keep_all_models": False}
    config = FinetuningConfig.from_hparams(str(tmp_path), "m", hparams)
    stop = types.SimpleNamespace(signal=None)
    shared = trial.Run(config, None, [], None, None, Console(io.StringIO()), stop)
    results = Results(config, {})

    def check_is_locked(number):
        with pytest.raises(UserError, match="is in use by process"):
            Lock(config.trial_dir(number)).__enter__()

    def run_trial(run, number, folder, done):
        Path(config.trial_dir(number), "weights").touch()
        check_is_locked(number)
        return TrialResult(number, 1, {"rte": {"accuracy": 1.0}}, [], 1, {})

    def add(result):
        check_is_locked(result.trial)
        Results.add(results, result)

    monkeypatch.setattr(trial, "run_trial", run_trial)
    monkeypatch.setattr(results, "add", add)
    outputs = Outputs(*os.path.split(config.results_stem))
    assert run_module.run_trials(shared, results, outputs) == 0
    assert os.listdir(config.trial_dir(1)) == ["weights"]
    assert not os.path.exists(config.trial_dir(2))


def test_best_step_and_patience(tmp_path):
    found = Evaluations(tmp_path, 0)
    assert not found.is_over()
    for step, score in ((10, 50.0), (20, 70.0), (30, 70.0), (40, math.nan)):
        scores = {"rte": {"accuracy": score}}
        assert found.is_better(score, scores) == (step in (10, 20))
        found.add(step, score, scores)
    assert found.best()["step"] == 20
    for patience in range(4):
        again = Evaluations(tmp_path, 40, patience)
        assert again.rows == found.rows and again.has(40)
        assert again.is_over() == (patience in (1, 2))
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
