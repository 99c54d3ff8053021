# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py as its users run it."""

import functools
import json
import os
import re
import shutil
import signal

import numpy as np
import pytest

from electra_tf.errors import EXIT_PREEMPTED
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.lock import Lock
from tests.helpers import forked_runs
from tests.helpers.forked_runs import eagerly, metrics_of, tensors_of
from tests.helpers.runs import NO_DROPOUT, ROOT, check_ok, check_refused, run_script
from tests.helpers.shared import OWN
from tests.helpers.tiny_finetuning import (
    EARLY,
    TINY,
    finetune,
    fork,
    own_sentences,
    write_data,
)

TASKS = ["cola", "sts", "chunk"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("finetuning"))


def succeed(*args, before=None):
    return check_ok(fork(*args, before=before))


def final(run_directory):
    """The names and values of a trial's last checkpoint."""
    checkpoints = Checkpoints(run_directory, read_only=True)
    return tensors_of(checkpoints.prefix(checkpoints.steps()[-1]))


def trials_of(data, model, name):
    path = data / "models" / model / "results" / name
    return json.loads(path.read_text())["trials"]


def test_only_hparams_name_code_to_run(data, tmp_path):
    """A --config may be the config.json of a downloaded model."""
    (tmp_path / "payload.py").write_text("raise SystemExit('was run')")
    (tmp_path / "config.json").write_text('{"task_names": ["payload:X"]}')
    flags = ("--data-dir", data, "--model-name", "m")
    flags += ("--config", tmp_path / "config.json")
    run = run_script("run_finetuning.py", *map(str, flags))
    check_refused(run, 2, "payload:X", "--hparams")


# One model of several tasks.


def test_several_tasks_are_learnt_together(finetuned):
    directory = finetuned / "models" / "tiny"
    [trial] = trials_of(finetuned, "tiny", "cola,sts,chunk_results.json")
    assert (trial["trial"], trial["seed"]) == (1, 42)
    assert trial["scores"]["cola"]["mcc"] > 50
    assert trial["scores"]["sts"]["pearson"] > 50
    text = (directory / "results" / "cola,sts,chunk_results.txt").read_text()
    assert [line.partition(":")[0] for line in text.splitlines()] == TASKS
    trained = finetuned / "models/tiny/finetuning_models/cola,sts,chunk_model_1"
    paths = {f"task_specific/{task}/dense/kernel" for task in ("cola", "sts")}
    assert paths <= set(final(trained))
    rows = metrics_of(trained)
    steps = rows[-1]["step"]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    # 192, 40 and twice 192 examples (sts in both orders), 6 epochs of batches of 8.
    assert steps == 6 * (192 + 40 + 2 * 192) // 8
    metrics = {"loss", "cola_loss", "sts_loss", "learning_rate", "global_norm"}
    assert metrics <= set(rows[0])
    assert list((trained / "tensorboard").glob("events.out.tfevents.*"))


def test_finished_trials_are_kept_and_other_settings_refused(finetuned, tmp_path):
    data, name = shutil.copytree(finetuned, tmp_path / "data"), "cola,sts,chunk"
    results = data / "models" / "tiny" / "results"
    before = (results / f"{name}_results.json").read_bytes()
    again = {"task_names": TASKS}
    run = succeed(data, "tiny", again)
    assert run.stdout.count("is finished") == 1
    assert (results / f"{name}_results.json").read_bytes() == before
    run = fork(data, "tiny", again | {"learning_rate": 1e-3})
    check_refused(run, 2, "learning_rate", "0.003", "0.001", "model_dir")
    # Evaluated without training: the same scores, in a file of their own.
    trained = data / "models/tiny/finetuning_models" / f"{name}_model_1"
    alone = {"do_train": False, "init_checkpoint": str(trained)}
    succeed(data, "tiny", again | alone)
    [now] = trials_of(data, "tiny", f"{name}_eval_results.json")
    [then] = json.loads(before)["trials"]
    for task, scores in then["scores"].items():
        assert now["scores"][task] == pytest.approx(scores)
    # A corrected dev set: no median over scores of both.
    dev = data / "finetuning_data" / "cola" / "dev.tsv"
    dev.write_text(dev.read_text().replace("x\t1\t", "x\t0\t", 1))
    run = fork(data, "tiny", again | {"num_trials": 2})
    check_refused(run, 2, "data: cola: dev", "model_dir")


# Several trials.

CHUNK = {"task_names": ["chunk"], "num_trials": 2, "num_train_epochs": 4.0}


@pytest.mark.thorough
def test_trials_of_the_original_are_evaluated_with_their_own_weights(data):
    """It writes neither manifests nor config.json, but the graph beside its tensors."""
    run = succeed(data, "straight", CHUNK)
    assert "median" in run.stdout and "trials" in run.stdout
    straight = data / "models" / "straight"
    for trial in (1, 2):
        name = f"finetuning_models/chunk_model_{trial}"
        prefix = Checkpoints(straight / name, read_only=True).prefix(20)
        theirs = data / "models" / "theirs" / name
        theirs.mkdir(parents=True)
        for end in ("index", "data-00000-of-00001"):
            shutil.copy(f"{prefix}.{end}", theirs)
        (theirs / "model.ckpt-20.meta").touch()
        (theirs / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-20"\n')
    succeed(data, "theirs", CHUNK | {"do_train": False})
    before = trials_of(data, "straight", "chunk_results.json")
    after = trials_of(data, "theirs", "chunk_eval_results.json")
    assert before[0]["scores"] != before[1]["scores"]
    for number in (0, 1):
        assert f"chunk_model_{number + 1}/" in after[number]["weights"]
        expected = before[number]["scores"]["chunk"]
        assert after[number]["scores"]["chunk"] == pytest.approx(expected)


@pytest.mark.thorough
def test_models_without_scores_are_kept(data):
    given = {"task_names": ["cola"], "num_train_epochs": 0.1, "num_trials": 2}
    given |= {"keep_all_models": False}
    models = data / "models" / "unscored" / "finetuning_models"
    alone = given | {"do_train": False}
    check_refused(fork(data, "unscored", alone), 2, "cola_model_1")
    succeed(data, "unscored", given | {"do_eval": False})
    assert {path.name for path in models.iterdir()} == {"cola_model_1", "cola_model_2"}
    succeed(data, "unscored", given)
    assert [path.name for path in models.iterdir()] == ["cola_model_1"]
    run = fork(data, "unscored", alone)
    check_refused(run, 2, "cola_model_2")


def test_folders_of_the_user_are_not_used_for_a_trial(data, tmp_path):
    """A trial whose model is not kept would be removed with all that lies there."""
    folder = tmp_path / "exp_2"
    folder.mkdir()
    for name in ("notes.txt", "config.json"):
        (folder / name).write_text('{"model_type": "electra"}')
        given = {"task_names": ["cola"], "num_trials": 2, "keep_all_models": False}
        run = fork(data, "theirs", given | {"model_dir": str(tmp_path / "exp")})
        check_refused(run, 2, str(folder), "model_dir")
        assert (folder / name).exists()


def test_a_locked_trial_is_not_trained(data):
    folder = data / "models" / "busy" / "finetuning_models" / "cola_model_1"
    with Lock(folder):
        run = fork(data, "busy", {"task_names": ["cola"]})
    check_refused(run, 75, f"in use by process {os.getpid()}")


# Initial weights.


@pytest.fixture(scope="module")
def initial(pretrained, data, tmp_path_factory):
    """A data directory with the pre-training run "electra"."""
    folder = tmp_path_factory.mktemp("initial") / "data"
    shutil.copytree(pretrained("electra"), folder)
    shutil.copytree(data / "finetuning_data", folder / "finetuning_data")
    return folder


def test_the_encoder_begins_with_the_pretrained_weights(initial):
    given = {"task_names": ["cola"], "num_train_epochs": 0.01, "learning_rate": 1e-12}
    model = initial / "models" / "electra"
    given["init_checkpoint"] = str(model)
    succeed(initial, "electra", given, before=eagerly)
    before, after = final(model), final(model / "finetuning_models" / "cola_model_1")
    encoder = [name for name in after if name.startswith("electra/")]
    encoder = [name for name in encoder if not name.endswith(("adam_m", "adam_v"))]
    assert len(encoder) > 15
    for name in encoder:
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)


def _without_dropout():
    from electra_tf.model import dropout

    dropout.dropout = lambda hidden, *_: hidden


@pytest.mark.thorough
@pytest.mark.parametrize(("block", "parts"), [("bert", 2), ("modern", 1)])
def test_batches_by_length_learn_the_same(data, block, parts):
    given = {"task_names": ["cola"], "num_train_epochs": 1.0, "seed": 3}
    shape = TINY["model_hparam_overrides"] | NO_DROPOUT | {"block": block}
    given["model_hparam_overrides"] = shape
    given["gradient_accumulation_steps"] = parts

    losses = {}
    for name, buckets in (("whole", []), ("cut", [8])):
        hparams = given | {"length_buckets": buckets}
        run = succeed(data, f"{name}_{block}", hparams, before=_without_dropout)
        in_parts = name == "cut" and parts > 1
        assert ("in 2 parts by length" in run.stdout) == in_parts
        trial = data / f"models/{name}_{block}/finetuning_models/cola_model_1"
        losses[name] = [row["loss"] for row in metrics_of(trial)]
    np.testing.assert_allclose(losses["cut"], losses["whole"], rtol=1e-4)


# Best weights and early stopping.

# 24 steps are an epoch; with this learning rate nothing gets better after a while.
HPARAMS = {"task_names": ["cola"], "num_train_epochs": 20.0, "eval_every_steps": 24}
HPARAMS |= {"keep": "best", "early_stopping_patience": 2}


@pytest.fixture(scope="module")
def trained(data):
    run = succeed(data, "best", HPARAMS)
    folder = data / "models" / "best" / "finetuning_models" / "cola_model_1"
    return run.stdout, folder, evaluations(folder)


def evaluations(folder):
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def result(data):
    [trial] = trials_of(data, "best", "cola_results.json")
    return trial


def test_training_ends_early(data, trained):
    printed, _, rows = trained
    best = max(rows, key=lambda row: row["score"])
    assert [row["step"] for row in rows] == [24 * n for n in range(1, len(rows) + 1)]
    assert rows[-1]["step"] == best["step"] + 48 < 480
    assert f"Ended early at step {rows[-1]['step']}; step {best['step']}" in printed
    assert result(data)["steps"] == rows[-1]["step"]


def test_the_best_weights_are_those_of_the_results(data, trained):
    _, folder, rows = trained
    best = max(rows, key=lambda row: row["score"])
    assert Checkpoints(folder, read_only=True).steps() == [best["step"]]
    assert result(data)["scores"]["cola"] == pytest.approx(best["scores"]["cola"])
    succeed(data, "best", HPARAMS | {"do_train": False})
    path = data / "models" / "best" / "results" / "cola_eval_results.json"
    stored = json.loads(path.read_text())
    [alone] = stored["trials"]
    assert alone["weights"] == str(folder / f"model.ckpt-{best['step']}")
    assert "init_checkpoint" not in stored["settings"]  # null: random weights
    assert alone["scores"]["cola"] == pytest.approx(best["scores"]["cola"])


@pytest.mark.thorough
def test_a_trial_that_ended_early_is_not_trained_on(data, trained, tmp_path):
    before = result(data)
    data = shutil.copytree(data, tmp_path / "data")
    (data / "models" / "best" / "results" / "cola_results.json").unlink()
    run = succeed(data, "best", HPARAMS)
    assert "Ended early" not in run.stdout
    folder = data / "models" / "best" / "finetuning_models" / "cola_model_1"
    assert evaluations(folder) == trained[2]
    assert result(data)["scores"] == before["scores"]


STOPS = {
    "signal": functools.partial(forked_runs.signal_at, 50),
    # The saves are those of the training and of the best weights, in turns.
    "kill": functools.partial(forked_runs.kill_in_save, 4, 7),
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", STOPS)
def test_interrupts_change_nothing(data, trained, how):
    """The best weights, the scores and the early end are those of the straight run."""
    _, straight, rows = trained
    run = fork(data, f"best_{how}", HPARAMS, before=STOPS[how])
    stopped = EXIT_PREEMPTED if how == "signal" else -signal.SIGKILL
    assert run.returncode == stopped, run.stdout + run.stderr
    succeed(data, f"best_{how}", HPARAMS)
    folder = data / "models" / f"best_{how}" / "finetuning_models" / "cola_model_1"
    assert evaluations(folder) == rows
    [step] = Checkpoints(straight, read_only=True).steps()
    assert Checkpoints(folder, read_only=True).steps() == [step]
    name = f"model.ckpt-{step}.data-00000-of-00001"
    assert (straight / name).read_bytes() == (folder / name).read_bytes()
    assert not list(folder.glob("*.partial"))


# Own tasks.

NAME = ",".join(OWN["task_names"])


def test_a_finished_run_predicts_its_test_sets(finetuned_own):
    printed = (finetuned_own / "test_stdout.txt").read_text()
    assert "is finished" in printed and "training examples" not in printed
    results = finetuned_own / "models" / "own" / "results"
    folder = results / f"{NAME}_test_predictions" / "trial_1"
    answers = json.loads((folder / "faq_test_preds.json").read_text())
    texts = {f"test{n}": " ".join(s) for n, s in enumerate(own_sentences(6))}
    assert set(answers) == set(texts)
    assert all(answers[name] and answers[name] in texts[name] for name in texts)
    rows = (folder / "scores_test.jsonl").read_text().splitlines()
    assert all(0 <= json.loads(row)["value"] <= 23 for row in rows)
    tags = (folder / "names_test.txt").read_text().split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in tags] == own_sentences(1)[0]
    assert (folder / "STS-B.tsv").is_file()


@pytest.mark.thorough
def test_the_task_class_of_the_docs_is_trained(tmp_path):
    page = (ROOT / "docs" / "fine_tuning.md").read_text()
    [code] = re.findall(r"```python\n(.*?class Reviews.*?)```", page, re.DOTALL)
    data = write_data(tmp_path / "data")
    (data / "mytask.py").write_text(code)
    lines = [
        f"{'pos' if s[0] < EARLY else 'neg'} {' '.join(s)}" for s in own_sentences(16)
    ]
    for split in ("train", "dev"):
        (data / f"{split}.txt").write_text("\n".join(lines))
    hparams = {"task_names": ["mytask:Reviews"], "num_train_epochs": 1.0}
    check_ok(finetune(data, "m", hparams, env={"PYTHONPATH": str(data)}))
