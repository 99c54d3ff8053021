# SPDX-License-Identifier: Apache-2.0
"""What makes two configs the same run, and what files say of it."""

import pytest

from electra_tf.config import same_run
from electra_tf.config.hparams import read_hparams
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.errors import UserError
from tests.config.test_pretraining import make

CONFIGS = {name: make({"objective": name}) for name in OBJECTIVES} | {
    "uniform": make({"uniform_generator": True}),
    "unigram": make({"generator": "unigram"}),
    "tied": make({"untied_generator": False}),
    "disentangled": make({"embedding_sharing": "disentangled"}),
    "base": make({"model_size": "base"}),
    "heads": make({"model_hparam_overrides": {"num_attention_heads": 8}}),
    "stages": make({"objective": "two_stage", "stage_one_steps": 7}),
}


def told(config, hparams):
    return same_run.identity_told(config, hparams, "hparams.json")


@pytest.mark.parametrize("name", CONFIGS)
def test_files_that_say_nothing_contradict_nothing(name):
    assert told(CONFIGS[name], {}) == CONFIGS[name].identity()


@pytest.mark.parametrize("there", CONFIGS)
def test_files_that_say_all(there, tmp_path):
    """Whatever the config: what they say is what holds, however it is written."""
    CONFIGS[there].save(str(tmp_path / "hparams.json"))
    hparams = read_hparams(str(tmp_path / "hparams.json"))
    for name, here in CONFIGS.items():
        assert told(here, hparams) == CONFIGS[there].identity(), name


@pytest.mark.parametrize("here", CONFIGS)
@pytest.mark.parametrize(
    "hparams",
    [
        {"model_hparam_overrides": {"num_attention_heads": 2}},
        {"model_hparam_overrides": {"hidden_act": "relu"}},
        {"model_size": "large"},
        {"vocab_size": 99},
        {"do_lower_case": False},
    ],
)
def test_files_that_say_little(here, hparams):
    config = CONFIGS[here]
    assert told(config, hparams) != config.identity()


def test_both_spellings_of_an_objective_are_one():
    config = make({"electric_objective": True})
    assert told(config, {"objective": "electric"}) == config.identity()
    assert told(make(), {"objective": "electric"}) != make().identity()


def test_fractions_that_give_one_size_are_equal():
    config = make({"model_size": "base"})
    assert config.generator_hidden_size != 256 / 768
    assert told(config, {"generator_hidden_size": 256 / 768}) == config.identity()
    assert told(config, {"generator_hidden_size": 0.5}) != config.identity()


def test_values_that_cannot_be_are_named_with_their_place():
    for wrong in ({"model_size": "huge"}, {"model_hparam_overrides": {"heads": 1}}):
        with pytest.raises(UserError, match="hparams.json"):
            told(make(), wrong)


def test_an_identity_as_hparams():
    hparams = {
        "objective": "electra_15",
        "vocab_size": 99,
        "model_hparam_overrides": {"num_attention_heads": 8, "hidden_act": "relu"},
    }
    identity = make(hparams | {"vocab_file": "/nowhere"}).identity()
    flat = {**hparams, **hparams["model_hparam_overrides"]}
    names = set(flat) & set(identity)
    assert len(names) == 4
    found = same_run.hparams_of((name, identity[name]) for name in names)
    assert found == hparams
