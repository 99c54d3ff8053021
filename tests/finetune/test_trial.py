# SPDX-License-Identifier: Apache-2.0
"""What makes an interrupted trial the one that goes on."""

import types

import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import trial
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import own_tasks, write_files


def test_a_trial_is_the_same_however_attention_is_computed(tmp_path):
    """And a version that did not know of it may have begun it."""
    write_files(tmp_path, {})
    vocab, store = Vocabulary.load(tmp_path / "vocab.txt"), types.SimpleNamespace()
    store.digest = "0"

    def identity(**overrides):
        hparams = {"model_hparam_overrides": overrides}
        config = FinetuningConfig.from_hparams(str(tmp_path), "m", hparams)
        run = trial.Run(config, vocab, [], None, None, None, None)
        return trial._identity(run, store)

    found = identity()
    assert found == identity(attention_chunk_size=8)
    assert "attention_chunk_size" not in found
    assert found != identity(hidden_dropout_prob=0.2)
    assert found != identity(num_hidden_layers=3)


def test_a_trial_that_is_scored_while_it_trains_has_its_dev_set(tmp_path):
    """Whether results are asked for at the end or not: that may change."""
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
    with pytest.raises(UserError, match="dev.csv has scores from 1 to 3"):
        identity("a,b\nran,3\ndog,1\n", do_eval=False)


def test_a_trial_goes_on_when_the_model_it_began_with_was_moved(tmp_path):
    """Only the weights count; of earlier versions the path is all there is."""
    store = types.SimpleNamespace(digest="0", former_digests=["1"])

    def checkpoints(path, digest, **settings):
        identity = {"init_checkpoint": path, "features": digest}
        return Checkpoints(tmp_path, identity=identity, settings=settings)

    known = {"init_sha256": "a", "task_names": ["x"], "tasks": {}}
    for settings in (known, {}):
        begun = checkpoints("data/m", "1", **settings)
        begun.save(5, {"global_step": tf.Variable(5)})
        saved, moved = begun.newest_intact(), checkpoints("/data/m", "0", **known)
        if settings:
            trial._check_is_same(moved, saved, store)
        else:
            with pytest.raises(UserError, match="init_checkpoint is 'data/m' there"):
                trial._check_is_same(moved, saved, store)
        for path in tmp_path.iterdir():
            path.unlink()
