# SPDX-License-Identifier: Apache-2.0
"""run_finetuning.py as its users run it."""

import functools
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers import forked_runs
from tests.helpers.forked_runs import metrics_of
from tests.helpers.runs import NO_DROPOUT, ROOT, tiny, write_tiny_data
from tests.helpers.tiny_finetuning import TINY, finetune, fork, write_data


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("finetuning"))


@pytest.fixture(scope="session")
def no_tensorflow(tmp_path_factory):
    """An environment in which importing TensorFlow or Keras fails."""
    folder = tmp_path_factory.mktemp("no_tensorflow")
    for name in ("tensorflow", "keras"):
        (folder / f"{name}.py").write_text("raise ImportError('was imported')\n")
    return {"PYTHONPATH": str(folder)}


def refused(run, code, *texts):
    """Checks that a run ended as a mistake of the user's should."""
    assert run.returncode == code, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    message = run.stderr[f"\n{run.stderr}".rindex("\nerror: ") :]
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message


def final(run_directory):
    """The names and values of a trial's last checkpoint."""
    checkpoints = Checkpoints(run_directory, read_only=True)
    reader = tf.train.load_checkpoint(checkpoints.prefix(checkpoints.steps()[-1]))
    names = sorted(reader.get_variable_to_shape_map())
    return {name: reader.get_tensor(name) for name in names}


@pytest.mark.parametrize(
    ("hparams", "code", "text"),
    [
        ({"task_nams": ["cola"]}, 2, "task_names"),
        ({"task_names": ["coal"]}, 2, "did you mean"),
        ({"task_names": ["cola"], "init_checkpoint": "/nowhere/x"}, 2, "/nowhere/x"),
        ({"task_names": ["rte"]}, 2, "rte"),
        ({"max_seq_length": 64, "task_names": ["cola"]}, 2, "max_position_embeddings"),
    ],
)
def test_mistakes_are_said_before_tensorflow_loads(
    data, no_tensorflow, hparams, code, text
):
    refused(finetune(data, "wrong", hparams, env=no_tensorflow), code, text)


@pytest.fixture(scope="module")
def several(data):
    """Two trials of two tasks in one model, with everything that can be written."""
    run = finetune(
        data,
        "several",
        {
            "task_names": ["cola", "sts"],
            "num_trials": 2,
            "write_test_outputs": True,
            "log_examples": True,
            "num_train_epochs": 12.0,
        },
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return data / "models" / "several", run.stdout


def test_several_tasks_are_learnt_together(several):
    directory, output = several
    stored = json.loads((directory / "results" / "cola,sts_results.json").read_text())
    assert [t["trial"] for t in stored["trials"]] == [1, 2]
    assert [t["seed"] for t in stored["trials"]] == [42, 43]
    for trial in stored["trials"]:
        assert trial["scores"]["cola"]["mcc"] > 50
        assert trial["scores"]["sts"]["pearson"] > 50
    text = (directory / "results" / "cola,sts_results.txt").read_text().splitlines()
    assert [line.partition(":")[0] for line in text] == ["cola", "sts"] * 2
    assert "median" in output and "trials" in output
    paths = final(directory / "finetuning_models" / "cola,sts_model_1")
    assert {"task_specific/cola/dense/kernel", "task_specific/sts/dense/kernel"} <= set(
        paths
    )


def test_examples_are_shown_with_what_is_learnt_from_them(several):
    lines = several[1].splitlines()
    for task, label in (("cola", "label_ids: "), ("sts", "targets: ")):
        shown = [n for n, line in enumerate(lines) if line.startswith(f"{task}: [CLS]")]
        assert shown
        for n in shown:
            below = itertools.takewhile(lambda s: s.startswith("  "), lines[n + 1 :])
            assert any(line.startswith(f"  {label}") for line in below)


def test_trials_differ_by_their_seed(several):
    directory, _ = several
    first, second = (
        final(directory / "finetuning_models" / f"cola,sts_model_{n}") for n in (1, 2)
    )
    key = "task_specific/cola/dense/kernel"
    assert not np.allclose(first[key], second[key])


def test_metrics_are_written_as_in_pretraining(several):
    directory, output = several
    run = directory / "finetuning_models" / "cola,sts_model_1"
    rows = [json.loads(s) for s in (run / "metrics.jsonl").read_text().splitlines()]
    steps = rows[-1]["step"]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    # 192 and twice 192 examples (sts in both orders), 12 epochs of batches of 8.
    assert steps == 12 * (192 + 2 * 192) // 8
    assert {"loss", "cola_loss", "sts_loss", "learning_rate", "global_norm"} <= set(
        rows[0]
    )
    assert list((run / "tensorboard").glob("events.out.tfevents.*"))
    assert f"{steps}/{steps} = 100.0%" in output


def test_predictions_carry_their_ids(several):
    directory, _ = several
    for trial in (1, 2):
        written = list((directory / "results").rglob(f"trial_{trial}/*"))
        assert written
        folder = directory / "results" / "cola,sts_test_predictions"
        submitted = {path.name for path in (folder / f"trial_{trial}").iterdir()}
        assert {"CoLA.tsv", "CoLA.zip", "STS-B.tsv", "STS-B.zip"} <= submitted


def test_finished_trials_are_kept_and_others_refused(data, several):
    directory, _ = several
    before = (directory / "results" / "cola,sts_results.json").read_bytes()
    again = {"task_names": ["cola", "sts"], "num_trials": 2, "num_train_epochs": 12.0}
    run = fork(data, "several", again)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("is finished") == 2
    assert (directory / "results" / "cola,sts_results.json").read_bytes() == before
    run = fork(data, "several", again | {"learning_rate": 1e-3})
    refused(run, 2, "learning_rate", "0.003", "0.001", "model_dir")


def test_a_fine_tuned_model_is_evaluated_alone(data, several):
    directory, _ = several
    run = fork(
        data,
        "several",
        {
            "task_names": ["cola", "sts"],
            "do_train": False,
            "init_checkpoint": str(
                directory / "finetuning_models" / "cola,sts_model_2"
            ),
        },
    )
    assert run.returncode == 0, run.stdout + run.stderr
    trained = json.loads((directory / "results" / "cola,sts_results.json").read_text())
    alone = json.loads(
        (directory / "results" / "cola,sts_eval_results.json").read_text()
    )
    for name, scores in trained["trials"][1]["scores"].items():
        assert alone["trials"][0]["scores"][name] == pytest.approx(scores)


def stop_in_the_second_trial():
    """SIGTERM while it makes step 70, when step 70 has been made once before."""
    from electra_tf.train import step

    run, seen = step.TrainingStep.run, []

    def interrupted(self, iterator, start, count):
        if start < 70 <= start + count:
            seen.append(start)
            if len(seen) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
        return run(self, iterator, start, count)

    step.TrainingStep.run = interrupted


def test_a_stopped_run_goes_on_where_it_was(data):
    """SIGTERM in the second of two trials; the whole equals a run without it."""
    hparams = {"task_names": ["chunk"], "num_trials": 2, "num_train_epochs": 40.0}
    hparams |= {"log_steps": 10}
    run = fork(data, "straight", hparams)
    assert run.returncode == 0, run.stdout + run.stderr
    run = fork(data, "stopped", hparams, before=stop_in_the_second_trial)
    assert run.returncode == 42, run.stdout + run.stderr
    assert "saved at step" in run.stdout
    run = fork(data, "stopped", hparams)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Trial 1 is finished" in run.stdout
    assert "Continuing from" in run.stdout
    whole, parts = (data / "models" / name for name in ("straight", "stopped"))
    for trial in (1, 2):
        model = f"finetuning_models/chunk_model_{trial}"
        for name, value in final(whole / model).items():
            np.testing.assert_array_equal(value, final(parts / model)[name], name)
    texts = [(d / "results" / "chunk_results.txt").read_text() for d in (whole, parts)]
    assert texts[0] == texts[1]


def stop_in(module, name, number):
    """A signal in the midst of a function of a module, or of a class's method."""
    *outer, name = name.split(".")
    owner = importlib.import_module(f"electra_tf.finetune.{module}")
    owner = getattr(owner, outer[0]) if outer else owner
    function = getattr(owner, name)

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), number)
        return function(*args, **kwargs)

    setattr(owner, name, interrupted)


@pytest.mark.parametrize(
    ("place", "number", "made"),
    [
        # When the last batch is scored, the trial is finished, and no other begins.
        (("classification", "ClassificationScorer.get_results"), signal.SIGTERM, 1),
        (("preprocessing", "features"), signal.SIGINT, 0),
        (("trial", "write_facts"), signal.SIGHUP, 0),
    ],
)
def test_a_signal_at_any_time_is_answered(data, place, number, made):
    hparams = {"task_names": ["cola"], "num_trials": 2, "num_train_epochs": 0.1}
    model = f"signal_in_{place[0]}"
    stop = functools.partial(stop_in, *place, number)
    run = fork(data, model, hparams, before=stop)
    assert run.returncode == 42, run.stdout + run.stderr
    assert "Run the same command again" in run.stdout
    assert "Trial 2 of 2" not in run.stdout
    path = data / "models" / model / "results" / "cola_results.json"
    trials = json.loads(path.read_text())["trials"] if path.exists() else []
    assert len(trials) == made


@pytest.fixture(scope="session")
def pretrained(data, tmp_path_factory):
    """A data directory with the pre-training run "m"."""
    source = tmp_path_factory.mktemp("pretrained")
    write_tiny_data(source)
    shutil.copy(data / "vocab.txt", source / "vocab.txt")
    hparams = tiny(overrides=TINY["model_hparam_overrides"], num_train_steps=5)
    run = forked_runs.pretrain(source, "m", hparams).wait()
    assert run.returncode == 0, run.stderr
    shutil.copytree(data / "finetuning_data", source / "finetuning_data")
    return source


def test_weights_come_from_pretraining(pretrained):
    """The encoder's, exactly."""
    given = {"task_names": ["cola"], "num_train_epochs": 0.01, "learning_rate": 1e-12}
    given["init_checkpoint"] = str(pretrained / "models" / "m")
    run = fork(pretrained, "m", given)
    assert run.returncode == 0, run.stdout + run.stderr
    before = final(pretrained / "models" / "m")
    after = final(pretrained / "models" / "m" / "finetuning_models" / "cola_model_1")
    encoder = [name for name in after if name.startswith("electra/")]
    encoder = [name for name in encoder if not name.endswith(("adam_m", "adam_v"))]
    assert len(encoder) > 15
    for name in encoder:
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)


@pytest.mark.parametrize(
    ("overrides", "original", "texts"),
    [
        ({"hidden_size": 64}, False, ("hidden_size is 32 there, 64 here",)),
        # Seen by no shape of a weight.
        ({"num_attention_heads": 4}, False, ("num_attention_heads is 2 there, 4",)),
        ({"hidden_act": "relu"}, False, ("hidden_act is 'gelu' there, 'relu' here",)),
        ({"num_hidden_layers": 3}, True, ("num_hidden_layers is 1 there, 3 here",)),
    ],
)
def test_weights_of_another_shape(
    pretrained, no_tensorflow, tmp_path, overrides, original, texts
):
    """Refused before any work, with hparams that fit; the original's too."""
    source = pretrained / "models" / "m"
    if original:  # It writes no JSON.
        names = [f"model.ckpt-5.{end}" for end in ("index", "data-00000-of-00001")]
        for name in names:
            shutil.copy(source / name, tmp_path / name)
        source = tmp_path / "model.ckpt-5"
    wrong = {"task_names": ["cola"], "init_checkpoint": str(source)}
    wrong["model_hparam_overrides"] = TINY["model_hparam_overrides"] | overrides
    env = {} if original else no_tensorflow
    run = finetune(pretrained, tmp_path.name, wrong, env=env)
    refused(run, 2, *texts)
    fitting = json.loads("{" + run.stderr.split("These hparams fit it: ")[1] + "}")
    right = {**wrong, "num_train_epochs": 0.01} | fitting
    run = fork(pretrained, tmp_path.name, right)
    assert run.returncode == 0, run.stdout + run.stderr


def edit_in_training(path, text):
    """Gives a file another text when the training has begun."""
    from electra_tf.train import step

    run = step.TrainingStep.run

    def edited(self, *args):
        path.write_text(text)
        return run(self, *args)

    step.TrainingStep.run = edited


def test_trials_on_other_data_are_not_mixed(tmp_path):
    """A dev set that was corrected: neither its old score nor a median of both."""
    data = write_data(tmp_path)
    given = {"task_names": ["cola"], "num_train_epochs": 0.1}
    dev = data / "finetuning_data" / "cola" / "dev.tsv"
    before = dev.read_text()
    corrected = before.replace("x\t1\t", "x\t0\t", 1).partition("\n")[2]
    edit = functools.partial(edit_in_training, dev, corrected)
    run = fork(data, "m", given, before=edit)
    assert run.returncode == 0, run.stdout + run.stderr
    assert dev.read_text() == corrected
    # It has scored what it had read.
    folder = data / "models" / "m" / "results" / "cola_predictions" / "trial_1"
    lines = (folder / "cola_dev.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    assert texts == [line.split("\t")[3] for line in before.splitlines()]
    refused(fork(data, "m", given | {"num_trials": 2}), 2, "dev of cola", "model_dir")
    dev.write_text(before)
    run = fork(data, "m", given | {"num_trials": 2})
    assert run.returncode == 0 and "Trial 1 is finished" in run.stdout
    # Results of earlier versions do not say it.
    path = data / "models" / "m" / "results" / "cola_results.json"
    stored = json.loads(path.read_text())
    del stored["settings"]["data"]
    path.write_text(json.dumps(stored))
    run = fork(data, "m", given | {"num_trials": 2})
    assert run.returncode == 0 and "Trial 2 is finished" in run.stdout


def test_models_that_nothing_was_scored_by_are_kept(data):
    given = {"task_names": ["cola"], "num_train_epochs": 0.1, "num_trials": 2}
    given |= {"keep_all_models": False}
    models = data / "models" / "unscored" / "finetuning_models"
    alone = given | {"do_train": False}
    refused(fork(data, "unscored", alone), 2, "the model of trial 1", "Train it first")
    run = fork(data, "unscored", given | {"do_eval": False})
    assert run.returncode == 0, run.stdout + run.stderr
    assert {path.name for path in models.iterdir()} == {"cola_model_1", "cola_model_2"}
    run = fork(data, "unscored", given)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [path.name for path in models.iterdir()] == ["cola_model_1"]
    run = fork(data, "unscored", alone)
    refused(run, 2, "the model of trial 2", "cola_model_2", "set num_trials to 1")


def test_a_file_where_a_later_trial_is_to_be(data):
    folder = data / "models" / "blocked" / "finetuning_models"
    folder.mkdir(parents=True)
    (folder / "cola_model_2").write_text("")
    run = fork(data, "blocked", {"task_names": ["cola"], "num_trials": 2})
    refused(run, 73, "cola_model_2 is a file")
    assert "Trial 1 of" not in run.stdout


@pytest.mark.parametrize("config", [None, '{"model_type": "electra"}'])
def test_a_folder_of_the_users_where_a_later_trial_is_to_be(
    data, no_tensorflow, tmp_path, config
):
    """A trial whose model is not to stay would be removed with all that lies there."""
    folder = tmp_path / "exp_2"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "notes.txt").write_text("mine")
    if config:
        (folder / "config.json").write_text(config)
    given = {"task_names": ["cola"], "num_trials": 2, "keep_all_models": False}
    given |= {"model_dir": str(tmp_path / "exp"), "num_train_epochs": 0.1}
    run = finetune(data, "theirs", given, env=no_tensorflow)
    refused(run, 2, str(folder), "model_dir")
    assert (folder / "data" / "notes.txt").read_text() == "mine"
    assert not config or (folder / "config.json").read_text() == config


@pytest.mark.slow
def test_a_sweep_scores_every_checkpoint(data, several):
    directory, _ = several
    source = data / "models" / "swept"
    source.mkdir()
    model = directory / "finetuning_models" / "cola,sts_model_1"
    newest = Checkpoints(model, read_only=True).steps()[-1]
    for path in model.glob(f"model.ckpt-{newest}.*"):
        shutil.copy(path, source / path.name)
    given = {"task_names": ["cola"], "num_train_epochs": 0.1}
    given["init_checkpoint"] = str(source)
    run = fork(data, "swept", given, "--sweep")
    assert run.returncode == 0, run.stdout + run.stderr
    swept = source / "results" / "sweep"
    scores = json.loads((swept / "cola_sweep.json").read_text())
    assert list(scores["cola: mcc"]) == [str(newest)]
    assert (swept / "cola_sweep.png").read_bytes().startswith(b"\x89PNG")
    # Of several tasks each has places of its own, below what is given, too.
    given |= {"task_names": ["cola", "sts"], "label_smoothing": 0.1}
    given |= {"class_weights": {"cola": "balanced"}}
    file = data / "places.json"
    file.write_text(json.dumps({"model_dir": str(source / "own")}))
    run = fork(data, "swept", given, "--sweep", f"--config={file}")
    assert run.returncode == 0, run.stdout + run.stderr
    path = source / "own_results" / "sweep" / "cola,sts_sweep.json"
    scores = json.loads(path.read_text())
    assert list(scores) == ["cola: mcc", "sts: pearson"]


def test_short_batches_are_cut_into_parts_too(data):
    """Accumulation with batches of several lengths learns what it does with one."""
    given = {"task_names": ["cola"], "num_train_epochs": 2.0, "seed": 3}
    given["model_hparam_overrides"] = TINY["model_hparam_overrides"] | NO_DROPOUT
    losses = {}
    given["gradient_accumulation_steps"] = 2
    for name, buckets in (("whole", []), ("parts", [8])):
        run = fork(data, name, given | {"length_buckets": buckets})
        assert run.returncode == 0, run.stdout + run.stderr
        trial = data / "models" / name / "finetuning_models" / "cola_model_1"
        losses[name] = [row["loss"] for row in metrics_of(trial)]
    np.testing.assert_allclose(losses["parts"], losses["whole"], rtol=1e-4)


def test_nobody_else_writes_into_a_trial(data):
    directory = data / "models" / "busy" / "finetuning_models" / "cola_model_1"
    code = (
        f"import sys, time; sys.path.insert(0, {str(ROOT)!r})\n"
        "from electra_tf.storage.lock import RunLock\n"
        f"with RunLock({str(directory)!r}):\n"
        "    print('locked', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        time.sleep(0.1)
        run = finetune(data, "busy", {"task_names": ["cola"]})
        refused(run, 75, f"in use by process {holder.pid}")
    finally:
        holder.kill()
        holder.wait()
