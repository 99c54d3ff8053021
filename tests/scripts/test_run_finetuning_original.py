# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py evaluates what the original program has fine-tuned."""

import json
import shutil

import pytest

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.tiny_finetuning import fork, write_data

COLA = {"task_names": ["cola"], "num_trials": 2}
ALONE = COLA | {"do_train": False}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Data, and two trials of cola as the original keeps them, with their scores.

    It writes neither manifests nor config.json, but the graph beside its tensors.
    """
    data = write_data(tmp_path_factory.mktemp("finetuning"))
    run = fork(data, "ours", COLA | {"num_train_epochs": 1.0})
    assert run.returncode == 0, run.stdout + run.stderr
    for trial in (1, 2):
        name = f"finetuning_models/cola_model_{trial}"
        checkpoints = Checkpoints(data / "models" / "ours" / name, read_only=True)
        step = checkpoints.steps()[-1]
        folder = data / "models" / "theirs" / name
        folder.mkdir(parents=True)
        for end in ("index", "data-00000-of-00001"):
            shutil.copy(f"{checkpoints.prefix(step)}.{end}", folder)
        (folder / f"model.ckpt-{step}.meta").touch()
        pointer = f'model_checkpoint_path: "model.ckpt-{step}"\n'
        (folder / "checkpoint").write_text(pointer)
    return data, trials_of(data, "ours", "cola_results.json")


def trials_of(data, model, name):
    path = data / "models" / model / "results" / name
    return json.loads(path.read_text())["trials"]


def test_each_trial_is_evaluated_with_its_own_weights(trained, tmp_path):
    data, before = trained
    shutil.copytree(data, tmp_path / "data")
    data = tmp_path / "data"
    run = fork(data, "theirs", ALONE)
    assert run.returncode == 0, run.stdout + run.stderr
    after = trials_of(data, "theirs", "cola_eval_results.json")
    assert before[0]["scores"] != before[1]["scores"]
    for number in (0, 1):
        assert f"cola_model_{number + 1}/" in after[number]["weights"]
        for name, value in before[number]["scores"]["cola"].items():
            assert after[number]["scores"]["cola"][name] == pytest.approx(value)


def test_a_trial_that_is_not_there_is_said(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "data")
    shutil.rmtree(tmp_path / "data/models/theirs/finetuning_models/cola_model_2")
    run = fork(tmp_path / "data", "theirs", ALONE)
    assert run.returncode == 2, run.stdout + run.stderr
    assert "the model of trial 2" in run.stderr and "Traceback" not in run.stderr


def test_the_vocabulary_beside_the_model_is_taken(trained, tmp_path):
    """Another of as many tokens lies in the data directory: no shape would tell."""
    data, before = trained
    shutil.copytree(data, tmp_path / "data")
    data = tmp_path / "data"
    shutil.copy(data / "vocab.txt", data / "models" / "theirs" / "vocab.txt")
    *special, last = (data / "vocab.txt").read_text().splitlines(keepends=True)
    (data / "vocab.txt").write_text("".join([*special[:5], last, *special[5:]]))
    run = fork(data, "theirs", ALONE)
    assert run.returncode == 0, run.stdout + run.stderr
    for then, now in zip(
        before, trials_of(data, "theirs", "cola_eval_results.json"), strict=True
    ):
        for name, value in then["scores"]["cola"].items():
            assert now["scores"]["cola"][name] == pytest.approx(value)
