# SPDX-License-Identifier: Apache-2.0
"""The settings that results and trials depend on: hparams, weights, vocabulary."""

import json

import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import results, trial
from electra_tf.finetune.results import Results, TrialResult
from electra_tf.interop import readers
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import write_files

DESCRIPTION = {"type": "classification", "train": "a", "dev": "b", "text_a": "t"}


def settings(folder, **hparams):
    config = FinetuningConfig.from_hparams(str(folder), "m", hparams)
    return json.loads(json.dumps(results.settings_of(config, None, None)))


def changed(there, here, **ignored):
    return [name for name, *_ in results.differences(there, here, **ignored)]


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
    [difference] = results.differences(added, other)
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
        said = results.settings_of(config, source, vocab)
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
    trial._check_is_same(checkpoints(log_steps=7), saved)
    # After a number that was not finite, a trial may continue without it.
    trial._check_is_same(checkpoints(on_nonfinite="skip"), saved)
    for hparams in ({"seed": 1}, {"keep": "best", "eval_every_steps": 5}):
        with pytest.raises(UserError, match="model.ckpt-5") as caught:
            trial._check_is_same(checkpoints(**hparams), saved)
        for text in ("model_dir", "there", "here"):
            assert text in str(caught.value)
