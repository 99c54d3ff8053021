# SPDX-License-Identifier: Apache-2.0
"""Results of trials: statistics and files."""

import json
import math
import statistics
import types

import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import results as files
from electra_tf.finetune.results import Results, Statistics, TrialResult, summary
from electra_tf.finetune.trial import _check_is_same
from electra_tf.interop import readers
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import write_files

SETTINGS = {"learning_rate": 1e-4, "task_names": ["rte", "sts"]}


def trial(number, accuracy, degenerate=()):
    scores = {
        "rte": {"accuracy": accuracy, "loss": 0.5},
        "sts": {"pearson": 80.0 + number, "spearman": 79.0},
    }
    return TrialResult(number, 41 + number, scores, list(degenerate), 10, {"train": 1})


def results_in(directory, settings=SETTINGS):
    return Results(config_of(directory / "r"), settings)


def config_of(folder, num_trials=9):
    places = {"results_json": folder / "x.json", "results_txt": folder / "x.txt"}
    return types.SimpleNamespace(num_trials=num_trials, **places)


def test_statistics_are_those_of_the_trials(tmp_path):
    results = results_in(tmp_path)
    values = [60.0, 70.0, 50.0, 66.0]
    for number, value in enumerate(values, start=1):
        results.add(trial(number, value))
    found = results.statistics()["rte"]["accuracy"]
    assert found == Statistics(63.0, 61.5, statistics.stdev(values), 70.0, 4)
    stored = json.loads((tmp_path / "r" / "x.json").read_text())
    assert stored["statistics"]["rte"]["accuracy"]["median"] == 63.0
    assert [t["trial"] for t in stored["trials"]] == [1, 2, 3, 4]
    assert [t["seed"] for t in stored["trials"]] == [42, 43, 44, 45]


def test_trials_beyond_num_trials_are_kept_and_not_counted(tmp_path):
    places, values = (tmp_path / "x.json", tmp_path / "x.txt"), [60.0, 70.0, 50.0]
    before = Results(config_of(tmp_path, 3), SETTINGS)
    for number, value in enumerate(values, start=1):
        before.add(trial(number, value, ["rte"] if number == 3 else []))
    again = Results(config_of(tmp_path, 2), SETTINGS)
    again.load()
    again.write()
    assert again.statistics()["rte"]["accuracy"].mean == 65.0
    assert again.statistics()["rte"]["accuracy"].trials == 2
    assert "Trial 3" not in again.table()
    assert places[1].read_text().count("rte") == 2
    stored = json.loads(places[0].read_text())
    assert [t["trial"] for t in stored["trials"]] == [1, 2, 3]
    assert stored["statistics"]["rte"]["accuracy"]["median"] == 65.0


def test_only_results_of_the_same_settings_are_loaded(tmp_path):
    """Hparams that an older version did not have are those of their defaults."""
    results = results_in(tmp_path)
    results.add(trial(1, 60.0))
    added = {"keep": "last", "eval_every_steps": 0}
    newer = results_in(tmp_path, SETTINGS | added)
    newer.load()
    assert newer.trials == results.trials
    # Those that have left do not count with their defaults.
    stored = SETTINGS | {"data_source": "files", "class_weights": {}}
    assert not files.differences(stored, SETTINGS)
    weighted = stored | {"class_weights": {"rte": "balanced"}}
    [(name, *_)] = files.differences(weighted, SETTINGS)
    assert name == "class_weights: rte"
    for word in ("learning_rate is", "0.0001", "0.0003", "model_dir"):
        other = results_in(tmp_path, SETTINGS | {"learning_rate": 3e-4})
        with pytest.raises(UserError, match=word):
            other.load()
        assert not other.trials
    with pytest.raises(UserError, match="keep is 'last' there, 'best' here"):
        results_in(tmp_path, SETTINGS | {"keep": "best"}).load()


def test_one_trial_has_no_deviation():
    assert summary([5.0]) == Statistics(5.0, 5.0, None, 5.0, 1)
    assert summary([float("nan"), 4.0]).trials == 1


def test_text_is_that_of_the_original(tmp_path):
    results = results_in(tmp_path)
    results.add(trial(2, 66.42599277978339))
    results.add(trial(1, 50.0))
    assert (tmp_path / "r" / "x.txt").read_text() == (
        "rte: accuracy: 50.00 - loss: 0.50\n"
        "sts: pearson: 81.00 - spearman: 79.00\n"
        "rte: accuracy: 66.43 - loss: 0.50\n"
        "sts: pearson: 82.00 - spearman: 79.00\n"
    )


def test_nan_is_null_in_json(tmp_path):
    results = results_in(tmp_path)
    result = trial(1, float("nan"))._replace(details={"rte": {"f1": float("inf")}})
    results.add(result)
    text = (tmp_path / "r" / "x.json").read_text()
    stored = json.loads(text, parse_constant=pytest.fail)
    assert stored["trials"][0]["scores"]["rte"]["accuracy"] is None
    assert stored["statistics"]["rte"]["accuracy"]["median"] is None
    again = results_in(tmp_path)
    again.load()
    assert math.isnan(again.trials[1].scores["rte"]["accuracy"])
    assert again.table().splitlines()[1].split()[:3] == ["rte", "accuracy", "nan"]


# The settings that results and trials depend on: hparams, weights, vocabulary.

DESCRIPTION = {"type": "classification", "train": "a", "dev": "b", "text_a": "t"}


def settings(folder, **hparams):
    config = FinetuningConfig.from_hparams(str(folder), "m", hparams)
    return json.loads(json.dumps(files.settings_of(config, None, None)))


def changed(there, here, **ignored):
    return [name for name, *_ in files.differences(there, here, **ignored)]


def test_settings_that_influence_results(tmp_path):
    ours = settings(tmp_path, learning_rate=1e-3)
    for hparams, names in (
        ({"seed": 7, "num_train_epochs": 1.0}, ["num_train_epochs", "seed"]),
        ({"train_batch_size": 16}, ["train_batch_size"]),
        ({"log_steps": 3, "iterations_per_loop": 2, "tpu_name": "other"}, []),
        ({"save_checkpoints_steps": 9, "eval_batch_size": 1, "debug": False}, []),
    ):
        theirs = settings(tmp_path, learning_rate=1e-3, **hparams)
        assert changed(theirs, ours) == names
    assert changed(ours | {"seed": 7}, ours, ignored=("seed",)) == []
    earlier = {"model_hparam_overrides": {"attention_chunk_size": 8}}
    assert changed(ours | earlier, ours) == []


def test_files_of_tasks_are_identified_by_their_hashes(tmp_path):
    """Descriptions of other tasks do not matter."""
    two = {"dev": "d"}, {"text_a": "s"}
    tasks = [{"x": DESCRIPTION | more} for more in ({}, {"test": "c"}, *two)]
    tasks.append({"x": DESCRIPTION, "y": DESCRIPTION})
    hparams = [{"task_names": ["x"], "tasks": task} for task in tasks]
    first, added, moved, other, more = (settings(tmp_path, **h) for h in hparams)
    for there in (first, added, moved, more):
        assert changed(there, first) == changed(first, there) == []
    assert changed(first, other) == ["tasks: x: text_a"]
    [difference] = files.differences(added, other)
    assert difference == ("tasks: x: text_a", "t", "s")


def test_path_of_the_weights_does_not_count(tmp_path):
    ours = settings(tmp_path) | {"init_checkpoint": "data/m", "init_sha256": "a"}
    theirs = ours | {"init_checkpoint": "/abs/data/m"}
    assert changed(theirs, ours) == []
    assert changed(theirs | {"init_sha256": "b"}, ours) == ["init_sha256"]
    assert changed(settings(tmp_path), ours) == ["init_checkpoint", "init_sha256"]
    # Without training, the weights are those of the trials.
    for hparams, is_known in (({"do_train": False}, False), ({}, True)):
        found = settings(tmp_path, **hparams)
        assert ("init_checkpoint" in found) == is_known
        assert found.get("init_checkpoint") is None
    # Of a directory, only the files of the weights count.
    found = CheckpointInfo(str(tmp_path), {}, None, None, lambda: None)
    name, hashes = "discriminator/model.safetensors", []
    for file, text in ((name, "a"), ("README.md", "b"), (name, "other")):
        write_files(tmp_path, {file: text})
        hashes.append(found.weights_sha256())
    assert hashes[0] == hashes[1] != hashes[2]


def saved_model(folder, value):
    """A run's checkpoint of one variable, at the same step whatever its value."""
    variables = {"electra/x": tf.Variable([value]), "global_step": tf.Variable(5)}
    Checkpoints(folder, log=lambda line: None).save(5, variables)
    return readers.find(folder / "model.ckpt-5", lambda line: None)


@pytest.mark.parametrize("is_run", [True, False])
def test_replaced_weights_differ(tmp_path, is_run):
    write_files(tmp_path, {})
    vocab = Vocabulary.load(tmp_path / "vocab.txt")
    config = FinetuningConfig.from_hparams(str(tmp_path), "m", {})
    found = []
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        source = saved_model(tmp_path / name, value)
        if not is_run:
            (tmp_path / name / "model.ckpt-5.json").unlink()
        said = files.settings_of(config, source, vocab)
        found.append(said | {"init_checkpoint": "the same path"})
    assert changed(found[0], found[1]) == []
    assert changed(found[0], found[2]) == ["init_sha256"]
    Results(config, found[0]).add(TrialResult(1, 42, {}, [], 1, {}))
    Results(config, found[1]).load()
    for others, name in (
        (found[2], "init_sha256"),
        (found[0] | {"vocab_sha256": "other"}, "vocab_sha256"),
    ):
        with pytest.raises(UserError, match=f"other settings: {name} is"):
            Results(config, others).load()


def test_trial_continues_with_the_same_settings(tmp_path):
    def checkpoints(**hparams):
        return Checkpoints(
            tmp_path,
            settings=settings(tmp_path, learning_rate=1e-3, **hparams),
            advice='set "model_dir" to a new place',
        )

    begun = checkpoints()
    begun.save(5, {"global_step": tf.Variable(5)})
    saved = begun.newest_intact()
    _check_is_same(checkpoints(log_steps=7), saved)
    # After a number that was not finite, a trial may continue without it.
    _check_is_same(checkpoints(on_nonfinite="skip"), saved)
    for hparams in ({"seed": 1}, {"keep": "best", "eval_every_steps": 5}):
        with pytest.raises(UserError, match="model.ckpt-5") as caught:
            _check_is_same(checkpoints(**hparams), saved)
        for text in ("model_dir", "there", "here"):
            assert text in str(caught.value)
