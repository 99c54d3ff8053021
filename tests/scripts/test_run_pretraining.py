# SPDX-License-Identifier: Apache-2.0
"""run_pretraining.py as its users run it."""

import json
import os
import shutil

import pytest

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.storage.checkpoints import Checkpoints, of_checkpoint
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from tests.helpers import forked_runs
from tests.helpers.forked_runs import metrics_of
from tests.helpers.runs import OF_OBJECTIVE, TINY, by_default, pretrain, tiny
from tests.helpers.workers import tf_configs

EVALUATE = {"do_train": False, "do_eval": True}


@pytest.fixture(scope="module")
def data(pretrained, tmp_path_factory):
    """A data directory with models/electra, a finished run of TINY."""
    folder = tmp_path_factory.mktemp("run") / "data"
    return shutil.copytree(pretrained("electra"), folder)


@pytest.fixture
def no_tensorflow(tmp_path):
    """An environment in which importing TensorFlow or Keras fails."""
    for name in ("tensorflow", "keras"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('was imported')\n")
    return {"PYTHONPATH": str(tmp_path)}


def refused(run, code, *texts):
    """Checks that a run ended as a mistake of the user's should."""
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    message = run.stderr[f"\n{run.stderr}".rindex("\nerror: ") :]
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message


def final_state(run_directory, step):
    weights = run_directory / f"model.ckpt-{step}.data-00000-of-00001"
    return weights.read_bytes(), metrics_of(run_directory)


def eagerly():
    """For the forked process: tracing takes longer than a few eager steps."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)


def pretrain_eagerly(data, name, hparams):
    done = forked_runs.pretrain(data, name, hparams, before=eagerly).wait()
    assert done.returncode == 0, done.stderr
    return done


# Mistakes.


def test_mistakes_are_found_without_tensorflow(data, no_tensorflow):
    run = pretrain(data, "wrong", {}, "--dry-rum", env=no_tensorflow)
    refused(run, 1, "Did you mean: dry_run")
    run = pretrain(data, "electra", tiny(embedding_size=8), env=no_tensorflow)
    refused(run, 2, "embedding_size is 16 there, 8 here", "--model-name")


@pytest.mark.parametrize(
    ("name", "hparams", "text"),
    [
        ("wrong", {"vocab_size": 61}, "hparam vocab_size is 61"),
        ("wrong", {"vocab_file": "/nowhere/vocab.txt"}, "/nowhere/vocab.txt"),
        ("wrong", {"model_dir": "hdfs://host/run"}, "hdfs:// cannot be opened"),
        ("wrong", EVALUATE, "no checkpoint to evaluate"),
        ("wrong", tiny(pretrain_tfrecords="/nowhere/x*"), "/nowhere/x*"),
        ("../../elsewhere", TINY, "is not the name of a directory below"),
        ("electra", tiny(electra_objective=False), "objective is 'electra' there"),
    ],
)
def test_mistakes(data, name, hparams, text):
    refused(pretrain(data, name, hparams), 2, text)
    assert not (data / "models" / "wrong" / "config.json").exists()


def test_another_vocabulary_is_refused(data, tmp_path):
    words = (data / "vocab.txt").read_text().replace("w7\n", "x7\n")
    (tmp_path / "vocab.txt").write_text(words)
    changed = TINY | {"vocab_file": str(tmp_path / "vocab.txt")}
    refused(pretrain(data, "electra", changed), 2, "vocab_sha256")


def test_tpus_of_several_workers_are_refused(data):
    """Each would train alone, and the steps of all but one would be lost."""
    env = {"TF_CONFIG": tf_configs(2)[1]}
    run = forked_runs.pretrain(data, "pod", tiny(use_tpu=True), env=env).wait()
    refused(run, 2, "use_tpu", "TF_CONFIG names 2 workers")
    assert not (data / "models" / "pod").exists()


@pytest.mark.thorough
def test_names_may_contain_wildcards(data, tmp_path):
    """TensorFlow takes what it restores from for a pattern."""
    folder = tmp_path / "a,b[1] *?"
    shutil.copytree(data, folder, ignore=shutil.ignore_patterns("models"))
    for steps in (2, 4):
        done = pretrain_eagerly(folder, "m[1]", tiny(num_train_steps=steps))
    assert "Continuing from" in done.stdout
    rows = metrics_of(folder / "models" / "m[1]")
    assert [row["step"] for row in rows] == [1, 2, 3, 4]


# A whole run.


def test_a_saved_config_makes_the_same_run(data):
    models = data / "models"
    config = models / "electra" / "config.json"
    done = pretrain(data, "copy", {}, "--config", str(config))
    assert done.returncode == 0, done.stderr
    for text in (
        "Config:",
        "learning_rate: 0.002",
        "parameters",
        "0.96 epochs",
        "12/12",
    ):
        assert text in done.stdout
    run = models / "copy"
    assert final_state(run, 12) == final_state(models / "electra", 12)
    assert Checkpoints(run).steps() == [0, 5, 10, 12]
    assert [row["step"] for row in metrics_of(run)] == list(range(1, 13))
    assert (run / "loss_curves.png").read_bytes().startswith(b"\x89PNG")
    (events,) = (run / "tensorboard").iterdir()
    assert b"discriminator/loss" in events.read_bytes()
    saved = json.loads((run / "config.json").read_text())
    assert saved["learning_rate"] == 2e-3 and "data_dir" not in saved


def test_a_finished_run_is_not_changed(data):
    run = data / "models" / "electra"
    before = final_state(run, 12)
    (run / "loss_curves.png").unlink()  # as if it was killed before it drew them
    again = pretrain(data, "electra", TINY)
    assert again.returncode == 0 and "nothing to do" in again.stdout
    assert final_state(run, 12) == before
    assert (run / "loss_curves.png").exists()


def test_evaluation_has_the_originals_metrics(data):
    run = data / "models" / "electra"
    before = set(os.listdir(run))
    results = {}
    for devices in ("1", "2"):
        env = {CPU_DEVICES_VARIABLE: devices}
        done = forked_runs.pretrain(data, "electra", TINY | EVALUATE, env=env).wait()
        assert done.returncode == 0, done.stderr
        written = json.loads((run / "results" / "unsup_results.json").read_text())
        results[devices] = written["metrics"]
        assert written["global_step"] == 12 and written["is_training_data"]
    assert set(os.listdir(run)) - before == {"results"}
    names = {"loss", "masked_lm_accuracy", "masked_lm_loss", "disc_loss", "disc_auc"}
    names |= {"sampled_masked_lm_accuracy", "disc_auc_tokens", "disc_accuracy"}
    names |= {"disc_precision", "disc_recall"}
    assert set(results["1"]) == names
    text = (run / "results" / "unsup_results.txt").read_text()
    for name in names:
        assert f"  {name} = " in done.stdout and f"{name} = " in text
        if name != "loss":  # of a replica's batch, in the sum over replicas
            assert results["2"][name] == pytest.approx(results["1"][name], abs=1e-5)


def test_a_dry_run_writes_nothing(data, tmp_path):
    run = data / "models" / "electra"
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    longer = pretrain(data, "electra", TINY | {"num_train_steps": 50}, "--dry-run")
    assert longer.returncode == 0, longer.stderr
    assert f"Continuing from {run}/model.ckpt-12." in longer.stdout
    done = pretrain(data, "electra", TINY | EVALUATE, "--dry-run")
    assert f"to evaluate: {run}/model.ckpt-12\n" in done.stdout, done.stderr
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
    # A vocabulary that no SavedModel of texts can have is reported before the training.
    vocab, tokens = tmp_path / "vocab.txt", (data / "vocab.txt").read_text().split()
    vocab.write_text("\n".join([*tokens[:-1], "##" + "ก" * 86]))
    new = pretrain(data, "dry", TINY | {"vocab_file": str(vocab)}, "--dry-run")
    assert "Dry run: nothing" in new.stdout and "FLOPs" in new.stdout
    assert f"Note: {vocab}: token 59, " in new.stdout
    assert not (data / "models" / "dry").exists()


# Every objective but ELECTRA, which TINY is, and a metric that belongs to it.
METRIC_OF = {
    "two_stage": "disc_auc",
    "all_tokens_mlm": "replaced_token_accuracy",
    "adversarial": "generator_entropy",
    "electra_15": "disc_loss",
    "replace_mlm": "token_loss",
    "frozen_generator": "disc_auc",
    "corrective_lm": "token_loss",
    "multi_choice": "token_accuracy",
    "electric": "disc_recall",
    "mlm": "masked_lm_loss",
    "two_tower": "masked_lm_accuracy",
    "electra_tt": "sampled_masked_lm_accuracy",
}
ELECTRA_TT = {"objective": "electra", "two_tower_generator": True}


def test_all_objectives_are_tested():
    assert set(METRIC_OF) ^ set(OBJECTIVES) == {"electra", "electra_tt"}


@pytest.mark.parametrize("name", by_default(METRIC_OF, ["two_stage"]))
def test_an_objective_is_trained_and_evaluated(data, name):
    own = ELECTRA_TT if name == "electra_tt" else {"objective": name}
    steps = {"num_train_steps": 4, "num_eval_steps": 1}
    hparams = TINY | own | OF_OBJECTIVE.get(name, {}) | steps
    if name == "two_stage":
        hparams["eval_every_steps"] = 2
    if name == "frozen_generator":
        refused(pretrain(data, name, hparams), 2, "init_generator")
        hparams["init_generator"] = str(data / "models" / "electra")
    pretrain_eagerly(data, name, hparams)
    run = data / "models" / name
    rows = metrics_of(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    scopes = {v.partition("/")[0] for v in of_checkpoint(f"{run}/model.ckpt-4").shapes}
    assert set(OBJECTIVES[own["objective"]].heads) <= scopes
    towers = {"generator_ltr", "generator_rtl"}
    assert bool(towers & scopes) == (name in ("electric", "two_tower", "electra_tt"))
    if name == "two_stage":
        assert ["disc_loss" in row for row in rows] == [False] * 2 + [True] * 2
        # The stages of a run cannot be moved.
        other = pretrain(data, name, hparams | {"num_train_steps": 20})
        refused(other, 2, "stage_one_steps")
        # Another run's steps are not those of the stages here.
        hparams |= {"init_checkpoint": str(run), "num_train_steps": 1000}
        run = data / "models" / "evaluated"
    pretrain_eagerly(data, run.name, hparams | EVALUATE)
    results = json.loads((run / "results" / "unsup_results.json").read_text())
    assert METRIC_OF[name] in results["metrics"]


def test_weights_of_another_run_are_a_start(data):
    start = str(data / "models" / "electra")
    hparams = TINY | {"init_checkpoint": start, "num_train_steps": 1}
    done = pretrain_eagerly(data, "started", hparams)
    assert f"Weights initialised from {start}/model.ckpt-12" in done.stdout
    # Step 0 has learning rate 0: the weights of step 12, a fresh optimizer, new losses.
    first = metrics_of(data / "models" / "started")[0]
    fresh = metrics_of(data / "models" / "electra")[0]
    assert first["learning_rate"] == 0 and first["loss"] < 0.9 * fresh["loss"]


def test_a_rate_that_is_too_high_ends_the_run(data):
    hparams = tiny(learning_rate=1e30, num_warmup_steps=0)
    run = forked_runs.pretrain(data, "diverged", hparams, before=eagerly).wait()
    refused(run, 70, "diverged at step", "model.ckpt-0", "learning_rate")
    found = data / "models" / "diverged"
    assert Checkpoints(found).newest_intact().step == 0
    assert list(found.glob("nonfinite_step_*.npz"))
