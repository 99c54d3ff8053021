# SPDX-License-Identifier: Apache-2.0
"""What makes results and trials those of other settings: hparams, weights, words."""

import json

import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import run_settings, trial
from electra_tf.finetune.results import Results, TrialResult
from electra_tf.interop import sources
from electra_tf.interop.stored_model import Settings
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import write_files

DESCRIPTION = {"type": "classification", "train": "a", "dev": "b", "text_a": "t"}


def settings(folder, **hparams):
    config = FinetuningConfig.from_hparams(str(folder), "m", hparams)
    return json.loads(json.dumps(run_settings.settings_of(config, None, None)))


def changed(there, here, **ignored):
    return [name for name, *_ in run_settings.differences(there, here, **ignored)]


def test_what_changes_numbers_counts_and_nothing_else(tmp_path):
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


def test_what_an_earlier_version_did_not_store_is_unknown(tmp_path):
    ours = settings(tmp_path) | {"init_sha256": "a", "vocab_sha256": "b"}
    theirs = {k: v for k, v in ours.items() if not k.startswith(("init_", "vocab_s"))}
    assert changed(theirs, ours) == []
    assert changed(ours | {"vocab_sha256": "c"}, ours) == ["vocab_sha256"]
    del theirs["keep"]
    assert changed(theirs, ours | {"keep": "best"}) == ["keep"]


def test_files_of_tasks_are_known_by_their_hashes_alone(tmp_path):
    """And a description of a task that is not trained says nothing."""
    two = {"dev": "d"}, {"text_a": "s"}
    tasks = [{"x": DESCRIPTION | more} for more in ({}, {"test": "c"}, *two)]
    tasks.append({"x": DESCRIPTION, "y": DESCRIPTION})
    hparams = [{"task_names": ["x"], "tasks": task} for task in tasks]
    first, added, moved, other, more = (settings(tmp_path, **h) for h in hparams)
    # As earlier versions stored them.
    whole = [
        s | h for s, h in zip((first, more), (hparams[0], hparams[4]), strict=True)
    ]
    for there in (first, added, moved, more, *whole):
        assert changed(there, first) == changed(first, there) == []
    assert changed(first, other) == ["tasks"]
    said = run_settings.said(run_settings.differences(added, other))
    assert said == 'tasks: x: text_a is "t" there, "s" here (1 in all)'
    several = [("keep", "last", "best"), ("init_sha256", "a", "b"), ("seed", 1, None)]
    said = run_settings.said(several)
    assert said == (
        'keep is "last" there, "best" here '
        "(3 in all: keep, the hash of the weights of init_checkpoint, seed)"
    )
    assert run_settings.said(several[2:]) == "seed is 1 there, null here (1 in all)"


def test_weights_count_and_not_where_they_are(tmp_path):
    ours = settings(tmp_path) | {"init_checkpoint": "data/m", "init_sha256": "a"}
    theirs = ours | {"init_checkpoint": "/abs/data/m"}
    assert changed(theirs, ours) == []
    assert changed(theirs | {"init_sha256": "b"}, ours) == ["init_sha256"]
    del theirs[
        "init_sha256"
    ]  # an earlier version, of which the path is all that is known
    assert changed(theirs, ours) == ["init_checkpoint"]
    assert changed(settings(tmp_path), ours) == ["init_checkpoint"]


def test_weights_of_each_trial_are_not_random_ones(tmp_path):
    for hparams, said in (({"do_train": False}, False), ({}, True)):
        found = settings(tmp_path, **hparams)
        assert ("init_checkpoint" in found) == said
        assert found.get("init_checkpoint") is None


def saved_model(folder, value):
    """A run's checkpoint of one variable, at the same step whatever its value."""
    variables = {"electra/x": tf.Variable([value]), "global_step": tf.Variable(5)}
    Checkpoints(folder, log=lambda line: None).save(5, variables)
    return sources.find(folder / "model.ckpt-5", lambda line: None)


@pytest.mark.parametrize("is_run", [True, False])
def test_weights_that_were_replaced_are_others(tmp_path, is_run):
    write_files(tmp_path, {})
    vocab = Vocabulary.load(tmp_path / "vocab.txt")
    config = FinetuningConfig.from_hparams(str(tmp_path), "m", {})
    found = []
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        source = saved_model(tmp_path / name, value)
        if not is_run:
            (tmp_path / name / "model.ckpt-5.json").unlink()
        said = run_settings.settings_of(config, source, vocab)
        found.append(said | {"init_checkpoint": "the same path"})
    assert changed(found[0], found[1]) == []
    assert changed(found[0], found[2]) == ["init_sha256"]
    paths = str(tmp_path / "r.json"), str(tmp_path / "r.txt")
    Results(*paths, found[0]).add(TrialResult(1, 42, {}, [], 1, {}))
    Results(*paths, found[1]).load()
    for others, name in (
        (found[2], "the weights of init_checkpoint"),
        (found[0] | {"vocab_sha256": "other"}, "the vocabulary"),
    ):
        with pytest.raises(UserError, match=f"other settings: the hash of {name} is"):
            Results(*paths, others).load()
    # Who only collects results does not look at the vocabulary, and keeps its hash.
    merged = Results(*paths, run_settings.settings_of(config, source, None))
    merged.settings |= {"init_checkpoint": "the same path"}
    merged.settings["init_sha256"] = found[0]["init_sha256"]
    merged.load()
    assert merged.settings["vocab_sha256"] == vocab.sha256


def test_weights_of_a_directory(tmp_path):
    """Those of any format; what else lies there does not matter."""
    written = Settings({}, None, None)
    found = sources.FoundModel(str(tmp_path), written, None, {}, lambda _: None)
    hashes = []
    for name, text in (
        ("discriminator/model.safetensors", "a"),
        ("README.md", "b"),
        ("discriminator/model.safetensors", "other"),
    ):
        write_files(tmp_path, {name: text})
        hashes.append(found.weights_sha256())
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_trial_goes_on_with_the_settings_it_began_with(tmp_path):
    def checkpoints(**hparams):
        advice = 'set "model_dir" to a new place'
        found = Checkpoints(
            tmp_path, settings=settings(tmp_path, **hparams), advice=advice
        )
        return found

    begun = checkpoints(learning_rate=1e-3)
    begun.save(5, {"global_step": tf.Variable(5)})
    saved = begun.newest_intact()
    trial._check_settings(checkpoints(learning_rate=1e-3, log_steps=7), saved)
    # A training that ended on a number that is not finite may go on without it.
    trial._check_settings(checkpoints(learning_rate=1e-3, on_nonfinite="skip"), saved)
    for name, value in (("learning_rate", 1e-4), ("seed", 1), ("keep", "best")):
        hparams = {"learning_rate": 1e-3, "eval_every_steps": 5, name: value}
        saved = begun.newest_intact()
        if name != "keep":
            del hparams["eval_every_steps"]
        with pytest.raises(UserError) as caught:
            trial._check_settings(checkpoints(**hparams), saved)
        for text in ("model.ckpt-5", "model_dir", "there", "here"):
            assert text in str(caught.value)
    trial._check_settings(checkpoints(), saved._replace(settings={}))
