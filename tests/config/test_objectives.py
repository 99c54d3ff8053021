# SPDX-License-Identifier: Apache-2.0
"""The hparam `objective`: what it implies, and what contradicts it."""

import pytest

from electra_tf.config.objectives import OBJECTIVES, original_of_objective
from electra_tf.config.pretraining import read_hparams
from electra_tf.pretrain import flops as flops_lib
from tests.config.test_pretraining import make, refused


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("flag", ["electra_objective", "electric_objective"])
def test_original_hparams_that_contradict_an_objective(name, flag):
    value = original_of_objective(name)[flag]
    refused({"objective": name, flag: not value}, f'objective "{name}"', flag)
    assert make({"objective": name, flag: value}).objective == name


@pytest.mark.parametrize(
    ("saved", "changes", "expected"),
    [
        ({}, {"electra_objective": False}, ("mlm", "tied", "shared")),
        ({}, {"electric_objective": True}, ("electric", "two_tower", "shared")),
        ({}, {"untied_generator": False}, ("electra", "tied", "shared")),
        ({}, {"uniform_generator": True}, ("electra", "uniform", "shared")),
        (
            {"objective": "electra_15"},
            {"untied_generator_embeddings": True},
            ("electra_15", "masked_lm", "untied"),
        ),
        (
            {"objective": "mlm"},
            {"electra_objective": True},
            ("electra", "masked_lm", "shared"),
        ),
    ],
)
def test_booleans_in_hparams_override_a_saved_config(
    saved, changes, expected, tmp_path
):
    make(saved).save(str(tmp_path / "c.json"))
    config = make(changes, read_hparams(str(tmp_path / "c.json")))
    assert (config.objective, config.generator, config.embedding_sharing) == expected


@pytest.mark.parametrize(
    ("original", "changes", "generator"),
    [
        (
            {"electra_objective": False, "untied_generator": False},
            {"electra_objective": True},
            "tied",
        ),
        (
            {"electric_objective": True, "two_tower_generator": True},
            {"objective": "electra"},
            "two_tower",
        ),
        ({"untied_generator": False}, {"generator": "unigram"}, "unigram"),
    ],
)
def test_generator_of_an_original_config_stays(original, changes, generator):
    assert make(changes, original).generator == generator


def test_switch_of_stages_is_saved(tmp_path):
    """Continuing with more steps does not move it."""
    config = make({"objective": "two_stage", "num_train_steps": 11})
    assert config.stage_one_steps == 5
    assert config.generator_config() == config.model_config()
    assert config.embedding_size == config.model_config().hidden_size
    config.save(str(tmp_path / "c.json"))
    saved = read_hparams(str(tmp_path / "c.json"))
    assert make({"num_train_steps": 99}, saved).stage_one_steps == 5


def test_towers_without_a_main_network_have_its_shape():
    """Heads and feed-forward width that were set by hand, too."""
    overrides = {"hidden_size": 128, "num_attention_heads": 4}
    wide = {"objective": "two_tower", "model_hparam_overrides": overrides}
    narrow = wide | {"model_hparam_overrides": overrides | {"intermediate_size": 256}}
    config = make(narrow)
    assert config.generator_config() == config.model_config()
    assert config.generator_config().intermediate_size == 256
    assert config.generator_config().num_attention_heads == 4
    flops = [flops_lib.get_recipe_flops(c) for c in (config, make(wide))]
    assert flops[0] < flops[1]


TWO_STAGE, ADVERSARIAL = {"objective": "two_stage"}, {"objective": "adversarial"}
TWO_TOWER, ELECTRIC = {"objective": "two_tower"}, {"electric_objective": True}
FROZEN = {"objective": "frozen_generator"}


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"objective": "elektra"}, ['"electra"']),
        ({"mask_token_share": 0.9, "random_token_share": 0.2}, ["at most 1"]),
        ({"random_token_share": 0.1} | ELECTRIC, ["random_token_share", "two_tower"]),
        ({"mask_unit": "words"}, ['"token" or "word"']),
        ({"mask_unit": "word"} | ELECTRIC, ["mask_unit", "two_tower"]),
        ({"mask_unit": "word", "repeated_masks": "original"}, []),
        ({"mask_unit": "word", "generator": "unigram"}, []),
        ({"mask_unit": "word", "uniform_generator": True}, ["mask_unit", "uniform"]),
        (TWO_STAGE | {"generator_hidden_size": 0.25}, ["needs 1.0"]),
        (TWO_STAGE | {"embedding_size": 128}, ["needs 256"]),
        (TWO_STAGE | {"untied_generator_embeddings": False}, ["embedding_sharing"]),
        (TWO_STAGE | {"num_train_steps": 9, "stage_one_steps": 9}, ["num_train_steps"]),
        (TWO_STAGE | {"num_train_steps": 1}, ["num_train_steps 1"]),
        (TWO_STAGE | {"generator": "unigram"}, []),
        (TWO_STAGE | {"phases": [{"num_train_steps": 3}] * 2}, ["phases", "stages"]),
        (TWO_TOWER | {"generator_hidden_size": 0.25}, ["needs 1.0"]),
        (TWO_TOWER | {"two_tower_generator": False}, []),
        (TWO_TOWER | {"repeated_masks": "fixed"}, ["repeated_masks"]),
        (ADVERSARIAL | {"repeated_masks": "original"}, ["needs", "fixed"]),
        (ADVERSARIAL | {"disallow_correct": True}, ["needs false"]),
        (ADVERSARIAL | {"two_tower_generator": True}, ["masked_lm"]),
        # Without effect.
        ({"stage_one_steps": 5}, ["stage_one_steps 5", "two_stage"]),
        ({"init_discriminator": False}, ["init_discriminator", "two_stage"]),
        ({"token_weight": 2.0}, ["token_weight 2.0", "electra"]),
        ({"num_candidates": 3, "objective": "corrective_lm"}, ["num_candidates 3"]),
        ({"objective": "multi_choice", "num_candidates": 1}, ["num_candidates"]),
        ({"init_generator": "m"}, ["init_generator", "frozen_generator"]),
        (FROZEN | {"embedding_sharing": "shared"}, ["needs", "untied"]),
        (FROZEN | {"generator": "unigram"}, []),
        (FROZEN | {"generator_learning_rate": 1e-4}, ["no effect"]),
        (FROZEN | {"clip_by": "network"}, ["no effect"]),
        (FROZEN | {"gen_weight": 2.0}, ["no effect"]),
    ],
)
def test_bad_combinations_are_refused(hparams, words):
    refused(hparams, *words)


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"electra_objective": False, "temperature": 2.0}, "temperature"),
        ({"electra_objective": False, "disallow_correct": True}, "disallow_correct"),
        ({"uniform_generator": True, "temperature": 2.0}, "no effect"),
        (TWO_TOWER | {"temperature": 2.0}, "no effect"),
        ({"untied_generator": False, "untied_generator_embeddings": True}, "tied"),
        ({"electra_objective": False, "embedding_sharing": "untied"}, '"tied"'),
        ({"electric_objective": True, "temperature": 2.0}, "log p"),
        ({"temperature": 2.0}, None),
    ],
)
def test_hparams_that_the_original_accepts_without_effect_are_noted(hparams, words):
    notes = make(hparams).notes()
    assert len(notes) == (words is not None)
    assert all(words in note for note in notes)
