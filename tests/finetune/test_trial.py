# SPDX-License-Identifier: Apache-2.0
"""The identity of an interrupted trial."""

import types

import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import trial
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import own_tasks, write_files


def test_identity_is_independent_of_attention_chunk_size(tmp_path):
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
    with pytest.raises(UserError, match="dev.csv has scores from 1 to 3"):
        identity("a,b\nran,3\ndog,1\n", do_eval=False)


def test_trial_continues_when_its_initial_model_was_moved(tmp_path):
    known = {"init_sha256": "a", "task_names": ["x"], "tasks": {}}

    def checkpoints(path, digest):
        settings = known | {"init_checkpoint": path}
        return Checkpoints(tmp_path, identity={"features": digest}, settings=settings)

    begun = checkpoints("data/m", "1")
    begun.save(5, {"global_step": tf.Variable(5)})
    saved = begun.newest_intact()
    trial._check_is_same(checkpoints("/data/m", "1"), saved)
