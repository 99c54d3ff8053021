# SPDX-License-Identifier: Apache-2.0
"""run_pretraining.py as its users run it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.stored_tensors import of_checkpoint
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from tests.helpers.runs import (
    OF_OBJECTIVE,
    ROOT,
    TINY,
    each_objective,
    pretrain,
    run_script,
    tiny,
)
from tests.helpers.workers import tf_configs

EVALUATE = {"do_train": False, "do_eval": True}


@pytest.fixture(scope="session")
def no_tensorflow(tmp_path_factory):
    """An environment in which importing TensorFlow or Keras fails."""
    folder = tmp_path_factory.mktemp("no_tensorflow")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text("raise ImportError('was imported')\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture(scope="module")
def trained(tiny_data):
    """A finished run of TINY under the name "trained": its CompletedProcess."""
    run = pretrain(tiny_data, "trained", TINY)
    assert run.returncode == 0, run.stderr
    return run


def refused(run, code, *texts):
    """Checks that a run ended as a mistake of the user's should."""
    assert run.returncode == code, run.stderr
    assert "Traceback" not in run.stderr
    message = run.stderr[f"\n{run.stderr}".rindex("\nerror: ") :]
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message


def metrics_of(run_directory):
    """The rows of metrics.jsonl without the time of day."""
    text = (run_directory / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in row.items() if k != "time"} for row in rows]


def final_state(run_directory, step):
    data = run_directory / f"model.ckpt-{step}.data-00000-of-00001"
    return data.read_bytes(), metrics_of(run_directory)


# What is wrong is said at once.


@pytest.mark.parametrize(
    ("hparams", "code", "text"),
    [
        ({"learning_rat": 1}, 2, "learning_rate"),
        ({"do_train": True, "do_eval": True}, 2, "do_eval"),
        ({"vocab_size": 61}, 2, "vocab_size is 61, but"),
        ({"vocab_file": "/nowhere/vocab.txt"}, 2, "/nowhere/vocab.txt"),
        ({"model_dir": "hdfs://host/run"}, 2, "hdfs:// cannot be opened"),
        (EVALUATE, 2, "no checkpoint to evaluate"),
    ],
)
def test_config_errors_need_no_tensorflow(
    tiny_data, no_tensorflow, hparams, code, text
):
    run = pretrain(tiny_data, "wrong", hparams, env=no_tensorflow)
    refused(run, code, text)
    assert not (tiny_data / "models" / "wrong" / "config.json").exists()


def test_tpus_of_several_workers_are_refused(tiny_data, no_tensorflow):
    """Each would train alone, and the steps of all but one would be lost."""
    for config in tf_configs(2):
        env = no_tensorflow | {"TF_CONFIG": config}
        run = pretrain(tiny_data, "pod", tiny(use_tpu=True), env=env)
        refused(run, 2, "use_tpu", "TF_CONFIG names 2 workers", "Leave TF_CONFIG out")
    assert not (tiny_data / "models" / "pod").exists()


def test_flag_errors_need_no_tensorflow(tiny_data, no_tensorflow):
    run = run_script("run_pretraining.py", "--model-name", "x", env=no_tensorflow)
    refused(run, 1, "--data-dir")
    run = pretrain(tiny_data, "x", {}, "--dry-rum", env=no_tensorflow)
    refused(run, 1, "did you mean --dry-run")


def test_a_name_that_leads_elsewhere_is_refused(tiny_data, no_tensorflow):
    for name in ("../../elsewhere", "/elsewhere", "."):
        run = pretrain(tiny_data, name, TINY, env=no_tensorflow)
        refused(run, 2, "is not the name of a directory below")


@pytest.mark.thorough
def test_a_directory_may_have_any_name(tiny_data, tmp_path):
    data = tmp_path / "a,b[1] *?"
    shutil.copytree(tiny_data, data, ignore=shutil.ignore_patterns("models"))
    for steps in (2, 4):  # TensorFlow takes what it restores from for a pattern.
        run = pretrain(data, "m[1]", tiny(num_train_steps=steps))
        assert run.returncode == 0, run.stdout + run.stderr
    assert "Continuing from" in run.stdout
    model = data / "models" / "m[1]"
    assert [row["step"] for row in metrics_of(model)] == [1, 2, 3, 4]
    named = (f"--data-dir={data}", "--model-name=m[1]", f"--output-dir={data}/out?")
    what = ("--format=saved_model", "--what=detector")
    run = run_script("export_model.py", *named, *what)
    assert run.returncode == 0, run.stderr
    (data / "text?.txt").write_text("w1 w2\n")
    paths = (f"--input={data}/text?.txt", f"--output-dir={data}/found[1]")
    exported = f"--model={data}/out?/detector"
    run = run_script("run_inference.py", "detect", exported, *paths)
    assert run.returncode == 0, run.stderr
    (shard,) = (data / "found[1]").glob("part-*")
    tokens = json.loads(shard.read_text())["tokens"]
    assert [token["token"] for token in tokens] == ["w1", "w2"]


def test_a_directory_in_use_is_refused_without_tensorflow(tiny_data, no_tensorflow):
    code = (
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        "from electra_tf.storage.lock import RunLock\n"
        f"with RunLock({str(tiny_data / 'models' / 'busy')!r}):\n"
        "    print('locked', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        run = pretrain(tiny_data, "busy", TINY, env=no_tensorflow)
        refused(run, 75, f"in use by process {holder.pid}")
    finally:
        holder.kill()
        holder.wait()


def test_missing_data_are_named(tiny_data):
    run = pretrain(tiny_data, "missing-data", tiny(pretrain_tfrecords="/nowhere/x*"))
    refused(run, 2, "/nowhere/x*")


# A whole run.


def test_training_leaves_what_it_promises(tiny_data, trained):
    run = tiny_data / "models" / "trained"
    assert Checkpoints(run).steps() == [0, 5, 10, 12]
    assert [row["step"] for row in metrics_of(run)] == list(range(1, 13))
    assert (run / "loss_curves.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    for text in (
        "Config:",
        "learning_rate 0.002",
        "parameters",
        "0.96 epochs",
        "12/12",
    ):
        assert text in trained.stdout
    saved = json.loads((run / "config.json").read_text())
    assert saved["learning_rate"] == 2e-3 and "data_dir" not in saved


def test_the_same_command_again_has_nothing_to_do(tiny_data, trained):
    run = tiny_data / "models" / "trained"
    before = final_state(run, 12)
    picture = run / "loss_curves.png"
    drawn = picture.read_bytes()
    picture.unlink()  # as if it was killed before it drew them
    again = pretrain(tiny_data, "trained", TINY)
    assert again.returncode == 0
    assert "nothing to do" in again.stdout
    assert final_state(run, 12) == before
    assert picture.read_bytes() == drawn


def test_a_saved_config_makes_the_same_run(tiny_data, trained):
    config = tiny_data / "models" / "trained" / "config.json"
    run = pretrain(tiny_data, "copy", {}, "--config", str(config))
    assert run.returncode == 0, run.stderr
    models = tiny_data / "models"
    assert final_state(models / "copy", 12) == final_state(models / "trained", 12)


def test_evaluation_prints_and_writes_the_originals_metrics(tiny_data, trained):
    run = tiny_data / "models" / "trained"
    before = set(os.listdir(run))
    results = {}
    for devices in ("1", "2"):
        done = pretrain(
            tiny_data, "trained", TINY | EVALUATE, env={CPU_DEVICES_VARIABLE: devices}
        )
        assert done.returncode == 0, done.stderr
        written = json.loads((run / "results" / "unsup_results.json").read_text())
        results[devices] = written["metrics"]
        assert written["global_step"] == 12 and written["is_training_data"]
    assert set(os.listdir(run)) - before == {"results"}
    names = {
        "loss",
        "masked_lm_accuracy",
        "masked_lm_loss",
        "sampled_masked_lm_accuracy",
        "disc_loss",
        "disc_auc",
        "disc_auc_tokens",
        "disc_accuracy",
        "disc_precision",
        "disc_recall",
    }
    assert set(results["1"]) == names
    text = (run / "results" / "unsup_results.txt").read_text()
    for name in names:
        assert f"  {name} = " in done.stdout and f"{name} = " in text
        if name != "loss":  # of a replica's batch, in the sum over replicas
            assert results["2"][name] == pytest.approx(results["1"][name], abs=1e-5)


def test_a_dry_run_writes_nothing(tiny_data, trained):
    run = tiny_data / "models" / "trained"
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    longer = pretrain(tiny_data, "trained", TINY | {"num_train_steps": 50}, "--dry-run")
    assert longer.returncode == 0, longer.stderr
    assert "would continue at step 12" in longer.stdout
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
    done = pretrain(tiny_data, "trained", TINY, "--dry-run")
    assert "would do nothing: 12 of 12 steps are made" in done.stdout
    evaluation = TINY | {"do_train": False, "do_eval": True}
    flags = ("--dry-run", "--max-wall-time=1h")
    done = pretrain(tiny_data, "trained", evaluation, *flags)
    assert f"would evaluate {run}/model.ckpt-12. Nothing" in done.stdout, done.stderr
    assert "FLOPs" not in done.stdout and "--max-wall-time is for" in done.stdout
    new = pretrain(tiny_data, "dry", TINY, "--dry-run")
    assert "would start anew" in new.stdout and "FLOPs" in new.stdout
    assert not (tiny_data / "models" / "dry").exists()


def test_a_vocabulary_that_no_saved_model_can_have_is_told_before_the_first_step(
    tiny_data, tmp_path
):
    tokens = (tiny_data / "vocab.txt").read_text().split()
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join([*tokens[:-1], "##" + "ก" * 86]))
    named = TINY | {"vocab_file": str(vocab)}
    new = pretrain(tiny_data, "long_token", named, "--dry-run")
    assert new.returncode == 0, new.stderr
    note, _, after = new.stdout.partition("so that no SavedModel of texts can be ")
    assert f"Note: {vocab}: token 59, " in note and "has 258 bytes;" in note
    assert "Model:" in after and "would start anew" in after


# Every objective but ELECTRA, which TINY is, and a metric that belongs to it.
METRIC_OF = {
    "two_stage": "disc_auc",
    "all_tokens_mlm": "replaced_token_accuracy",
    "electra_sentence": "sentence_accuracy",
    "adversarial": "generator_entropy",
    "electra_15": "disc_loss",
    "replace_mlm": "token_loss",
    "electric": "disc_recall",
    "mlm": "masked_lm_loss",
    "two_tower": "masked_lm_accuracy",
    "electra_tt": "sampled_masked_lm_accuracy",
}
ELECTRA_TT = {"objective": "electra", "two_tower_generator": True}


def test_no_objective_is_forgotten():
    assert set(METRIC_OF) ^ set(OBJECTIVES) == {"electra", "electra_tt"}


@pytest.mark.parametrize("name", each_objective(METRIC_OF))
def test_an_objective_is_trained_and_evaluated(tiny_data, name):
    own = ELECTRA_TT if name == "electra_tt" else {"objective": name}
    hparams = TINY | own | OF_OBJECTIVE.get(name, {})
    if name == "two_stage":
        hparams["eval_every_steps"] = 6
    dry = pretrain(tiny_data, name, hparams, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "would start anew" in dry.stdout and "FLOPs" in dry.stdout
    done = pretrain(tiny_data, name, hparams)
    assert done.returncode == 0, done.stderr
    run = tiny_data / "models" / name
    assert (run / "loss_curves.png").exists()
    rows = metrics_of(run)
    assert [row["step"] for row in rows] == list(range(1, 13))
    scopes = {v.partition("/")[0] for v in of_checkpoint(f"{run}/model.ckpt-12").shapes}
    assert set(OBJECTIVES[own["objective"]].heads) <= scopes
    towers = {"generator_ltr", "generator_rtl"}
    assert bool(towers & scopes) == (name in ("electric", "two_tower", "electra_tt"))
    found = pretrain(tiny_data, name, hparams | EVALUATE)
    assert found.returncode == 0, found.stderr
    results = json.loads((run / "results" / "unsup_results.json").read_text())
    assert METRIC_OF[name] in results["metrics"]
    if name == "two_stage":
        assert ["disc_loss" in row for row in rows] == [False] * 6 + [True] * 6
        # The run remembers where its stages part.
        other = pretrain(tiny_data, name, hparams | {"num_train_steps": 20})
        refused(other, 2, "stage_one_steps")


def test_another_model_or_vocabulary_is_refused(tiny_data, trained, no_tensorflow):
    wider = tiny(overrides={"hidden_size": 64})
    run = pretrain(tiny_data, "trained", wider, env=no_tensorflow)
    refused(run, 2, "hidden_size is 32 there, 64 here", "--model-name")
    other = tiny(electra_objective=False)
    run = pretrain(tiny_data, "trained", other, env=no_tensorflow)
    refused(run, 2, "objective is 'electra' there, 'mlm' here")
    words = (tiny_data / "vocab.txt").read_text().replace("w7\n", "x7\n")
    (tiny_data / "other_vocab.txt").write_text(words)
    changed = TINY | {"vocab_file": str(tiny_data / "other_vocab.txt")}
    run = pretrain(tiny_data, "trained", changed, env=no_tensorflow)
    refused(run, 2, "vocab_sha256")


def test_weights_of_another_run_are_a_start(tiny_data, trained):
    start = str(tiny_data / "models" / "trained")
    run = pretrain(
        tiny_data, "started", TINY | {"init_checkpoint": start, "num_train_steps": 1}
    )
    assert run.returncode == 0, run.stderr
    assert f"Weights initialised from {start}/model.ckpt-12" in run.stdout
    # Step 0 has learning rate 0: the weights of step 12, a fresh optimizer, new losses.
    first = metrics_of(tiny_data / "models" / "started")[0]
    fresh = metrics_of(tiny_data / "models" / "trained")[0]
    assert first["learning_rate"] == 0 and first["loss"] < 0.9 * fresh["loss"]


def test_the_debug_run_of_the_original(tiny_data):
    """{"debug": true} on the default size, shortened to what a test may take."""
    hparams = {"debug": True, "max_seq_length": 32, "num_train_steps": 2}
    hparams |= {"model_hparam_overrides": {"num_hidden_layers": 1}}
    run = pretrain(tiny_data, "debug", hparams)
    assert run.returncode == 0, run.stderr
    assert "train_batch_size 8\n" in run.stdout
    assert "2/2 = 100.0%" in run.stdout


def test_a_rate_that_is_too_high_ends_the_run(tiny_data):
    run = pretrain(tiny_data, "diverged", tiny(learning_rate=1e30, num_warmup_steps=0))
    refused(run, 70, "diverged at step", "model.ckpt-0", "learning_rate")
    found = tiny_data / "models" / "diverged"
    assert Checkpoints(found).newest_intact().step == 0
    assert list(found.glob("nonfinite_step_*.npz"))
