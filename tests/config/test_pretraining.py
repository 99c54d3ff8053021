# SPDX-License-Identifier: Apache-2.0
"""Hparams of pre-training: precedence, checks, saving, the values of the original."""

import glob
import json
import os

import pytest

from electra_tf.config import run as recipes
from electra_tf.config.objectives import (
    GENERATORS,
    OBJECTIVES,
    ORIGINAL_NAMES,
    original_of_generator,
    original_of_objective,
)
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_CONFIG, UserError
from electra_tf.pretrain import flops as flops_lib
from tests.helpers.runs import GOLDEN, ROOT
from tests.parity import config as parity_config

CONFIGS = ROOT / "configs"

# The paper, Table 6, and where base and large differ from the original on purpose:
# there they keep the small model's values unless they are given by hand.
TABLE_6 = {
    "small": (256, 12, 1024, 4, 128, 64, 0.15, 5e-4, 128, 128, 1_000_000),
    "base": (768, 12, 3072, 12, 768, 256, 0.15, 2e-4, 256, 512, 766_000),
    "large": (1024, 24, 4096, 16, 1024, 256, 0.25, 2e-4, 2048, 512, 400_000),
}


def make(hparams=None, config=None, data_dir="D", name="m"):
    return PretrainingConfig.from_hparams(data_dir, name, hparams or {}, config)


def recipe(name):
    return read_hparams(str(CONFIGS / f"{name}.json"))


def refused(hparams, *expected, config=None):
    """Refused in three lines with `expected`, or else with each hparam or its value."""
    with pytest.raises(UserError) as caught:
        make(hparams, config)
    message = str(caught.value)
    for word in expected:
        assert word in message, message
    for name, value in () if expected else hparams.items():
        assert name in message or str(value) in message, message
    assert message.count("\n") <= 2
    assert caught.value.exit_code == EXIT_CONFIG


def test_equals_the_original():
    rows = list(parity_config.replay(str(GOLDEN / "misc")))
    assert len(rows) > 250
    assert [row for row in rows if row.deviation > row.tolerance] == []


@pytest.mark.parametrize("size", TABLE_6)
def test_model_size_implies_settings_of_the_paper(size):
    config = make({"model_size": size})
    shape = config.model_config()
    assert TABLE_6[size] == (
        shape.hidden_size,
        shape.num_hidden_layers,
        shape.intermediate_size,
        shape.num_attention_heads,
        config.embedding_size,
        config.generator_config().hidden_size,
        config.mask_prob,
        config.learning_rate,
        config.train_batch_size,
        config.max_seq_length,
        config.num_train_steps,
    )
    assert make(recipe(f"electra_{size}")) == config


def test_order_of_precedence():
    """Defaults < size < debug < --config < --hparams; nested keys are merged."""
    hparams = {"model_size": "base", "debug": True, "num_train_steps": 7}
    config = make(hparams | {"embedding_size": 64})
    assert (config.num_train_steps, config.embedding_size) == (7, 64)
    assert config.train_batch_size == 8
    overrides = {"hidden_size": 64, "num_hidden_layers": 3}
    config = {"model_hparam_overrides": overrides, "learning_rate": 1.0, "seed": 3}
    given = {"model_hparam_overrides": {"num_hidden_layers": 2}, "learning_rate": 2}
    resolved = make(given, config)
    assert resolved.learning_rate == 2.0 and type(resolved.learning_rate) is float
    assert resolved.seed == 3
    shape = resolved.model_config()
    assert (shape.hidden_size, shape.num_hidden_layers) == (64, 2)
    assert overrides == {"hidden_size": 64, "num_hidden_layers": 3}
    width = {"model_size": "base", "model_hparam_overrides": {"hidden_size": 576}}
    assert make(width).embedding_size == 576


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"learning_rat": 1}, ['did you mean "learning_rate"']),
        ({"qqq": 1}, ['"qqq"', "docs/hparams.md"]),
        ({"model_hparam_overrides": {"hiden_size": 3}}, ['mean "hidden_size"']),
        ({"model_hparam_overrides": {"hidden_size": 0}}, ["hidden_size", ">= 1"]),
        ({"model_hparam_overrides": {"vocab_size": 9}}, ["vocab_size"]),
        ({"learning_rate": "1e-4"}, ["learning_rate", '"1e-4"', "a number > 0"]),
        ({"learning_rate": float("inf")}, ["learning_rate", "Infinity"]),
        ({"train_batch_size": 2.5}, ["2.5", "integer"]),
        ({"train_batch_size": True}, ["true", "integer"]),
        ({"mask_prob": 1}, ["mask_prob", "< 1"]),
        ({"num_train_steps": 1e20}, ["num_train_steps", "1e+20", "2,147,483,647"]),
        ({"model_size": "bass"}, ['"bass"', '"base"']),
        ({"do_train": False}, ["do_train", "do_eval", "false"]),
        ({"model_name": "other"}, ["model_name"]),
        ({"mask_prob": 0.05, "max_seq_length": 16}, []),
        ({"max_seq_length": 513}, ["max_seq_length 513", "max_position_embeddings"]),
        ({"model_hparam_overrides": {"num_attention_heads": 3}}, ["256", "3"]),
        ({"model_size": "base", "generator_hidden_size": 0.3}, ["230", "3"]),
        ({"generator_layers": 0.01}, ["generator_layers 0.01"]),
        ({"schedule": "wsd", "lr_decay_power": 2}, ["lr_decay_power", '"original"']),
        ({"decay_proportion": 0.5}, ["decay_proportion", '"wsd"']),
        ({"local_window": 64}, ["local_window 64", 'block "bert"']),
        ({"block": "modern", "local_window": 65}, ["local_window 65", "even"]),
        (
            {"block": "modern", "model_hparam_overrides": {"num_attention_heads": 256}},
            ["heads of width 1", "even"],
        ),
    ],
)
def test_wrong_values_are_named(hparams, words):
    refused(hparams, *words)


@pytest.mark.parametrize(
    "hparams",
    [
        {"two_tower_generator": True, "electra_objective": False},
        {"electric_objective": True, "untied_generator": False},
        {"electric_objective": True, "electra_objective": True},
        {"electric_objective": True, "two_tower_generator": False},
        {"uniform_generator": True, "untied_generator": False},
        {"uniform_generator": True, "electric_objective": True},
        {"generator": "unigram", "uniform_generator": True},
        {"generator": "two_tower", "two_tower_generator": False},
        {"generator": "masked_lm", "untied_generator": False},
        {"generator": "uniform", "electra_objective": False},
        {"embedding_sharing": "disentangled", "untied_generator_embeddings": True},
        {"embedding_sharing": "untied", "untied_generator_embeddings": False},
        {"embedding_sharing": "disentangled", "electra_objective": False},
        {"embedding_sharing": "disentangled", "electric_objective": True},
        {"embedding_sharing": "disentangled", "generator": "unigram"},
        {"embedding_sharing": "disentangled", "untied_generator": False},
        {"embedding_sharing": "disentangled", "objective": "two_tower"},
    ],
    ids=str,
)
def test_contradictions_are_refused(hparams):
    with pytest.raises(UserError) as caught:
        make(hparams)
    assert caught.value.exit_code == EXIT_CONFIG
    assert any(name in str(caught.value) for name in hparams)


def test_hparams_of_the_block_may_stand_beside_the_others():
    own = {"block": "modern", "global_every": 2}
    config = make(own | {"max_seq_length": 8192})
    shape = config.model_config()
    assert (shape.block, shape.global_every) == ("modern", 2)
    assert shape.intermediate_size == 384
    assert config == make({"model_hparam_overrides": own, "max_seq_length": 8192})
    assert config.generator_config().intermediate_size == 96
    identity = config.identity()
    assert identity["block"] == "modern" and identity["global_every"] == 2
    # Runs of earlier versions lack what has no effect on them.
    assert not {"block", "local_window", "global_every"} & make({}).identity().keys()


def test_new_and_original_spellings_are_the_same_run():
    for name, kind in OBJECTIVES.items():
        config = make({"objective": name})
        assert config.objective == name
        if kind.is_original:
            assert config == make(original_of_objective(name))
    for name, kind in GENERATORS.items():
        config = make({"generator": name})
        assert (config.generator, config.objective) == (name, "electra")
        if kind.is_original:
            assert config == make(original_of_generator(name))
    untied = make({"untied_generator_embeddings": True})
    assert untied == make({"embedding_sharing": "untied"}) != make()
    assert make({"embedding_sharing": "shared"}) == make()
    electric = make({"electric_objective": True})
    kinds = electric.objective, electric.generator
    assert kinds == ("electric", "two_tower")
    assert not ORIGINAL_NAMES & electric.to_dict().keys()


@pytest.mark.parametrize("name", ["electra_base", "electric_small", "debug"])
def test_saved_config_is_a_config(tmp_path, name):
    config = make(recipe(name) | {"eval_tfrecords": "elsewhere*"})
    path = tmp_path / "config.json"
    config.save(str(path))
    saved = read_hparams(str(path))
    assert make(config=saved) == config
    moved = make(config=saved, data_dir="E", name="n")
    assert moved.model_dir == os.path.join("E", "models", "n")
    assert moved.vocab_file == os.path.join("E", "vocab.txt")
    assert moved.eval_tfrecords == "elsewhere*"
    (tmp_path / "file").write_text("in the way of a directory")
    with pytest.raises(UserError, match="config.json") as caught:
        config.save(str(tmp_path / "file" / "config.json"))
    assert caught.value.exit_code == EXIT_CANNOT_WRITE


def test_vocab_size_is_that_of_the_vocabulary(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n\n\n")
    config = make(data_dir=str(tmp_path))
    assert config.vocab_size == 3 and config.model_config().vocab_size == 3


RECIPES = sorted(os.path.basename(p)[:-5] for p in glob.glob(f"{CONFIGS}/*.json"))


def test_recipes_are_found_by_name():
    assert sorted(recipes.recipes()) == RECIPES
    by_path = recipes.read_config(str(CONFIGS / "electra_small.json"))
    assert recipes.read_config("electra_small") == by_path == recipe("electra_small")
    with pytest.raises(UserError, match="neither a recipe nor a file"):
        recipes.read_config("electra_smal")


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_load_and_state_what_makes_them(name):
    """A change of defaults must not change a recipe."""
    hparams = recipe(name)
    config = make(config=hparams)
    resolved = config.to_dict()
    parts = hparams.pop("phases", [])
    assert {k: resolved[k] for k in hparams} == hparams
    for part, found in zip(parts, config.phases, strict=bool(parts)):
        assert part.items() <= found.items()
    assert f"{name}.json" in (CONFIGS / "README.md").read_text()
    if name != "debug":
        stated = {"learning_rate", "num_warmup_steps", "max_seq_length"}
        stated |= {"train_batch_size", "num_train_steps"}
        assert all(stated <= set(part) for part in parts or [hparams])
        assert {"model_size", "mask_prob"} <= set(hparams)


def test_every_objective_has_a_recipe():
    objectives = {make(recipe(name)).objective for name in RECIPES}
    assert objectives == set(OBJECTIVES)


def test_electric_base_is_that_of_its_paper():
    """Table 3 of the Electric paper, and the positions of its algorithm."""
    config = make(config=recipe("electric_base"))
    shape, towers = config.model_config(), config.generator_config()
    assert (shape.num_hidden_layers, shape.hidden_size) == (12, 768)
    assert (shape.intermediate_size, shape.num_attention_heads) == (3072, 12)
    assert (towers.hidden_size, towers.intermediate_size) == (192, 768)
    assert towers.num_attention_heads == 3
    assert (config.embedding_size, config.mask_prob) == (768, 0.15)
    assert (config.learning_rate, config.num_warmup_steps) == (5e-4, 10_000)
    assert (config.train_batch_size, config.num_train_steps) == (256, 700_000)
    assert config.weight_decay_rate == 0.01
    assert shape.hidden_dropout_prob == shape.attention_probs_dropout_prob == 0.1
    assert config.repeated_masks == "fixed"


def test_two_towers_are_two_thirds_of_bert():
    """Appendix A of the Electric paper: about the compute of BERT-Base."""
    towers, bert = (make(config=recipe(n)) for n in ("two_tower_base", "mlm_base"))
    shape, whole = towers.generator_config(), bert.model_config()
    assert shape == towers.model_config()
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        assert 3 * getattr(shape, name) == 2 * getattr(whole, name), name
    assert shape.num_hidden_layers == whole.num_hidden_layers
    flops = [flops_lib.get_recipe_flops(config) for config in (towers, bert)]
    assert flops[0] == pytest.approx(flops[1], rel=0.1)


def mix(data, **more):
    return {"pretrain_tfrecords": data, **more}


@pytest.mark.parametrize(
    "hparams, words",
    [
        (mix([]), ["pretrain_tfrecords []", "patterns"]),
        (mix(3), ["text or a list or an object"]),
        (mix(["a", "a"]), ["twice", "{pattern: weight}"]),
        (mix({"a": 0, "b": 1}), ["weight", "above 0"]),
        ({"eval_tfrecords": {"a": -1}}, ["eval_tfrecords", "above 0"]),
        ({"sampling_alpha": 0.3}, ["sampling_alpha 0.3", "a list"]),
        (mix(["a"], sampling_alpha=0.3), ["sampling_alpha 0.3", "a list"]),
        (
            mix({"a": 1, "b": 2}, sampling_alpha=0.3),
            ["sampling_alpha", "without weights"],
        ),
        (mix(["a", "b"], sampling_alpha=1.5), ["<= 1"]),
    ],
)
def test_impossible_mixtures_are_refused(hparams, words):
    refused(hparams, *words)


def test_later_data_replace_earlier_data(tmp_path):
    """Unlike other objects, mixtures of --config and --hparams are not merged."""
    config = mix({"a": 1.0, "b": 2.0})
    assert make({}, config).eval_tfrecords == {"a": 1.0, "b": 2.0}
    for data in ({"c": 1.0}, "d"):
        assert make(mix(data), config).pretrain_tfrecords == data
    assert make(config, mix("d")).pretrain_tfrecords == {"a": 1.0, "b": 2.0}
    path = tmp_path / "config.json"
    bucket = make(mix(["s3://bucket/a*", "b"]))
    bucket.save(str(path))
    saved = json.loads(path.read_text())
    assert saved["pretrain_tfrecords"] == ["s3://bucket/a*", "b"]
    assert make({}, saved).pretrain_tfrecords == bucket.pretrain_tfrecords
