# SPDX-License-Identifier: Apache-2.0
"""The hparam `objective`: what it implies, and what contradicts it."""

import pytest

import flops_computation
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.pretraining import read_hparams
from tests.config.test_pretraining import make, refused


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_and_the_originals_hparams_are_the_same_run(name):
    config, kind = make({"objective": name}), OBJECTIVES[name]
    assert config.objective_kind == name
    assert kind.original.items() <= config.to_dict().items()
    if kind.is_originals:
        assert config == make(kind.original)
        assert config.objective is None and "objective" not in config.identity()
    else:
        assert config.identity()["objective"] == name


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("flag", ["electra_objective", "electric_objective"])
def test_an_objective_that_the_original_hparams_contradict(name, flag):
    said = OBJECTIVES[name].original[flag]
    refused({"objective": name, flag: not said}, f'objective "{name}"', flag)
    assert make({"objective": name, flag: said}).objective_kind == name


def test_the_switch_of_stages_is_written_down(tmp_path):
    """Going on with more steps does not move it."""
    config = make({"objective": "two_stage", "num_train_steps": 11})
    assert config.stage_one_steps == config.identity()["stage_one_steps"] == 5
    assert config.generator_config() == config.model_config()
    assert config.embedding_size == config.model_config().hidden_size
    config.save(str(tmp_path / "c.json"))
    saved = read_hparams(str(tmp_path / "c.json"))
    assert make({"num_train_steps": 99}, saved).stage_one_steps == 5
    assert "stage_one_steps" not in make().identity()


def test_towers_that_are_the_whole_model_have_its_shape():
    """Heads and feed-forward width that were set by hand, too."""
    overrides = {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 256,
    }
    hparams = {"objective": "two_tower", "model_hparam_overrides": overrides}
    config = make(hparams)
    assert config.generator_config() == config.model_config()
    shape = vars(config.generator_config())
    assert {name: shape[name] for name in overrides} == overrides
    # Fewer operations than with the usual 4 x 128.
    hparams["model_hparam_overrides"] = {"hidden_size": 128, "num_attention_heads": 4}
    flops = [flops_computation.get_recipe_flops(c) for c in (config, make(hparams))]
    assert flops[0] < flops[1]


@pytest.mark.parametrize(
    "hparams, words",
    [
        (
            {"mask_token_share": 0.9, "random_token_share": 0.2},
            ["mask_token_share 0.9", "random_token_share 0.2", "at most 1"],
        ),
        (
            {"random_token_share": 0.1, "electric_objective": True},
            ["random_token_share 0.1: no", "two_tower", "Leave random_token_share out"],
        ),
        (  # What is not set is not named.
            {"mask_unit": "word", "electric_objective": True},
            ['mask_unit "word": no', "two_tower", "Leave mask_unit out"],
        ),
        (
            {"objective": "two_stage", "generator_hidden_size": 0.25},
            ["two_stage", "one size", "generator_hidden_size is 0.25", "needs 1.0"],
        ),
        (
            {"objective": "two_stage", "embedding_size": 128},
            ["two_stage", "embedding_size is 128", "needs 256"],
        ),
        (
            {"objective": "two_stage", "untied_generator_embeddings": False},
            ["two_stage", "untied_generator_embeddings is false"],
        ),
        (
            {"objective": "two_stage", "num_train_steps": 9, "stage_one_steps": 9},
            ["stage_one_steps 9", "num_train_steps 9"],
        ),
        ({"objective": "two_stage", "num_train_steps": 1}, ["num_train_steps 1"]),
        (
            {"objective": "two_tower", "generator_hidden_size": 0.25},
            ["generator_hidden_size is 0.25", "two_tower needs 1.0", "model_size"],
        ),
        (
            {"objective": "two_tower", "two_tower_generator": False},
            ["masked_lm", "two_tower"],
        ),
        ({"stage_one_steps": 5}, ["stage_one_steps 5", "two_stage", "electra"]),
        ({"init_discriminator": False}, ["init_discriminator false", "two_stage"]),
        (
            {"electra_15_positions": "other"},
            ['electra_15_positions "other"', "electra_15"],
        ),
        (
            {"objective": "two_stage", "generator": "unigram"},
            ["unigram", "two_stage", "masked_lm"],
        ),
        (
            {"objective": "adversarial", "repeated_masks": "original"},
            ["adversarial", 'repeated_masks "original"', "twice"],
        ),
        (
            {"objective": "adversarial", "disallow_correct": True},
            ["adversarial", "disallow_correct true"],
        ),
        (
            {"objective": "adversarial", "disc_weight": 0},
            ["adversarial", "disc_weight 0", "discriminator"],
        ),
        ({"objective": "adversarial", "gen_weight": 0}, ["adversarial", "gen_weight"]),
        ({"objective": "two_stage", "gen_weight": 0}, ["two_stage", "gen_weight 0"]),
        ({"objective": "two_stage", "disc_weight": 0}, ["two_stage", "disc_weight 0"]),
        ({"objective": "electra_15", "disc_weight": 0}, ["electra_15", "disc_weight"]),
        ({"objective": "replace_mlm", "disc_weight": 0}, ["the main network"]),
        ({"objective": "all_tokens_mlm", "disc_weight": 0}, ["the main network"]),
        ({"objective": "two_tower", "gen_weight": 0}, ["two_tower", "gen_weight 0"]),
        ({"electra_objective": False, "gen_weight": 0}, ["gen_weight 0 with", "mlm"]),
        (
            {"uniform_generator": True, "disc_weight": 0},
            ["disc_weight 0 with", "uniform", "nothing would be learned"],
        ),
        (
            {"generator": "unigram", "disc_weight": 0, "gen_weight": 1},
            ["disc_weight 0 with", "unigram"],
        ),
        ({"gen_weight": 0, "disc_weight": 0}, ["gen_weight 0 and disc_weight 0 with"]),
        (
            {
                "objective": "two_stage",
                "stage_one_steps": 5,
                "phases": [{"num_train_steps": 3}, {"num_train_steps": 4}],
            },
            ["two_stage and phases exclude each other"],
        ),
        (
            {"objective": "electra_sentence", "intact_share": 1.0},
            ["intact_share 1.0", "ever be replaced"],
        ),
        ({"objective": "two_tower", "temperature": 2.0}, ["temperature 2.0"]),
        ({"objective": "two_tower", "disallow_correct": True}, ["disallow_correct"]),
        ({"objective": "two_tower", "repeated_masks": "fixed"}, ["repeated_masks"]),
        (
            {"objective": "adversarial", "two_tower_generator": True},
            ["adversarial", "two_tower", "masked_lm"],
        ),
        ({"intact_share": 0.1}, ["intact_share 0.1", "electra_sentence"]),
        ({"sentence_weight": 2.0}, ["sentence_weight 2.0", "electra_sentence"]),
        ({"rare_mask_power": 0.5}, ["rare_mask_power 0.5", "repeated_masks", "fixed"]),
        (
            {"rare_mask_power": 0.5, "electric_objective": True}
            | {"repeated_masks": "fixed"},
            ["rare_mask_power 0.5", "electric", "equally often"],
        ),
        (
            {"rare_mask_power": 0.5, "objective": "two_tower"}
            | {"repeated_masks": "fixed"},
            ["rare_mask_power 0.5", "two_tower", "masks nothing"],
        ),
        ({"objective": "elektra"}, ['"elektra"', '"electra"']),
    ],
)
def test_bad_combinations_say_why(hparams, words):
    refused(hparams, *words)


def test_a_verdict_alone_can_be_learned():
    make({"objective": "electra_sentence", "disc_weight": 0})
    hparams = {"objective": "electra_sentence", "disc_weight": 0, "sentence_weight": 0}
    refused(hparams, "disc_weight 0", "the discriminator")


def test_samples_that_are_not_of_q_are_told():
    (note,) = make({"electric_objective": True, "temperature": 2.0}).notes()
    assert "temperature is 2.0" in note and "log p" in note
    assert make({"temperature": 2.0}).notes() == []


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"electra_objective": False, "temperature": 2.0}, ["temperature is 2.0"]),
        (
            {"electra_objective": False, "disallow_correct": True},
            ["disallow_correct is true"],
        ),
        ({"uniform_generator": True, "temperature": 2.0}, ["drawn alike"]),
        (
            {"untied_generator": False, "untied_generator_embeddings": True},
            ["untied_generator_embeddings is true", "tied"],
        ),
        (
            {"electra_objective": False, "untied_generator_embeddings": True},
            ["untied_generator_embeddings is true", "no encoder of its own"],
        ),
    ],
)
def test_what_the_original_takes_without_effect_is_told(hparams, words):
    (note,) = make(hparams).notes()
    for word in [*words, "without effect"]:
        assert word in note


def test_networks_that_learn_by_one_loss_alone():
    make({"disc_weight": 0})
    make({"untied_generator": False, "gen_weight": 0})
    make({"electra_objective": False, "disc_weight": 0})
    make({"uniform_generator": True, "gen_weight": 0})
