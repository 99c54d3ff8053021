# SPDX-License-Identifier: Apache-2.0
"""A checkpoint beside the config of a run: what is compared for which purpose."""

import dataclasses
import json

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.interop import checkpoint
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.text.vocabulary import SPECIAL_TOKENS, TokenizerConfig, Vocabulary

SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "intermediate_size": 1024,
    "embedding_size": 128,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
}
OTHER = {"hidden_act": "relu", "max_position_embeddings": 600, "learning_rate": 1.0}
OTHER |= {"objective": "two_stage", "stage_one_steps": 7}
VOCAB = Vocabulary((*SPECIAL_TOKENS, "a"))


def info(sha256=VOCAB.sha256, cased=False, **known):
    tokenizer = TokenizerConfig(not cased, not cased)
    rest = (None, lambda: None)
    return CheckpointInfo("M", SMALL | known, tokenizer, *rest, recorded_sha256=sha256)


def config(cls=PretrainingConfig, **hparams):
    return cls.from_hparams("/nowhere", "m", {"vocab_size": len(VOCAB), **hparams})


@pytest.mark.parametrize(
    ("purpose", "names"),
    [
        (
            checkpoint.RESUME,
            "do_lower_case hidden_act max_position_embeddings objective",
        ),
        (
            checkpoint.EVALUATE,
            "do_lower_case hidden_act max_position_embeddings objective",
        ),
        (checkpoint.WARM_START, "hidden_act"),
        (checkpoint.FINETUNE, "do_lower_case hidden_act max_position_embeddings"),
    ],
)
def test_fields_that_count_for_a_purpose(purpose, names):
    cls = FinetuningConfig if purpose == checkpoint.FINETUNE else PretrainingConfig
    found = info(cased=True, **OTHER).compare(config(cls), purpose)
    assert [name for name, _, _ in found] == names.split()
    assert info().compare(config(cls), purpose) == []


def test_stages_count_for_a_resumed_run_alone():
    ours = config(objective="two_stage", stage_one_steps=9, num_train_steps=20)
    other = info(objective="two_stage", stage_one_steps=7, embedding_size=256)
    found = other.compare(ours, checkpoint.RESUME)
    assert [name for name, _, _ in found] == ["stage_one_steps"]
    assert other.compare(ours, checkpoint.EVALUATE) == []


def test_error_has_all_differences_and_the_hparams_that_fit():
    other = info(sha256="0" * 64, cased=True, **OTHER)
    with pytest.raises(UserError) as error:
        other.check(config(), VOCAB, checkpoint.RESUME)
    message = str(error.value)
    for text in (
        "hidden_act is 'relu' there, 'gelu' here",
        "do_lower_case is False there, True here",
        "objective is 'two_stage' there",
        "another vocabulary than vocabulary: sha256 0000000000000000...",
        "Set vocab_file",
    ):
        assert text in message, message
    assert len(message.splitlines()) <= 3
    fitting = json.loads(message.partition("These hparams fit it: ")[2])
    assert fitting["objective"] == "two_stage" and not fitting["do_lower_case"]
    assert fitting["model_hparam_overrides"]["hidden_act"] == "relu"
    info().check(config(), VOCAB, checkpoint.RESUME)


def test_accents_count_for_fine_tuning():
    other = dataclasses.replace(info(), tokenizer_config=TokenizerConfig(True, False))
    with pytest.raises(UserError, match="its text is .*\n.*strip_accents"):
        other.check(config(FinetuningConfig), VOCAB, checkpoint.FINETUNE)
    other.check(config(), VOCAB, checkpoint.WARM_START)
