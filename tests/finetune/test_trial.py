# SPDX-License-Identifier: Apache-2.0
"""What makes an interrupted trial the one that goes on."""

import types

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune import trial
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import write_files


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
