# SPDX-License-Identifier: Apache-2.0
"""Settings: order of precedence, checks, saving, and equality with the original."""

import dataclasses
import glob
import json
import os

import pytest

import flops_computation
from electra_tf.config.generators import GENERATORS
from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_CONFIG, UserError
from tests.helpers.runs import GOLDEN, ROOT
from tests.parity import config as parity_config

CONFIGS = str(ROOT / "configs")

# The paper, Table 6, and where base and large differ from the original on purpose:
# there they keep the small model's values unless they are given by hand.
TABLE_6 = {
    "small": (256, 12, 1024, 4, 128, 64, 0.15, 5e-4, 128, 128, 1_000_000),
    "base": (768, 12, 3072, 12, 768, 256, 0.15, 2e-4, 256, 512, 766_000),
    "large": (1024, 24, 4096, 16, 1024, 256, 0.25, 2e-4, 2048, 512, 400_000),
}


def make(hparams=None, config=None, data_dir="D", name="m"):
    return PretrainingConfig.from_hparams(data_dir, name, hparams or {}, config)


def refused(hparams, *words, config=None):
    with pytest.raises(UserError) as caught:
        make(hparams, config)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert message.count("\n") <= 2
    assert caught.value.exit_code == EXIT_CONFIG


def test_equals_the_original():
    rows = list(parity_config.replay(str(GOLDEN / "misc")))
    assert len(rows) > 250
    assert [row for row in rows if row.deviation > row.tolerance] == []


@pytest.mark.parametrize("size", TABLE_6)
def test_model_size_implies_the_papers_settings(size):
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


def test_explicit_values_win_over_presets():
    config = make(
        {
            "model_size": "base",
            "debug": True,
            "learning_rate": 1e-3,
            "num_train_steps": 7,
            "embedding_size": 64,
        }
    )
    assert (config.learning_rate, config.num_train_steps) == (1e-3, 7)
    assert config.embedding_size == 64
    assert config.train_batch_size == 8  # debug comes after the size


def test_hparams_win_over_config_and_nested_keys_are_joined():
    overrides = {"hidden_size": 64, "num_hidden_layers": 3}
    config = {"model_hparam_overrides": overrides, "learning_rate": 1.0, "seed": 3}
    resolved = make(
        {"model_hparam_overrides": {"num_hidden_layers": 2}, "learning_rate": 2},
        config,
    )
    assert resolved.learning_rate == 2.0 and type(resolved.learning_rate) is float
    assert resolved.seed == 3
    shape = resolved.model_config()
    assert (shape.hidden_size, shape.num_hidden_layers) == (64, 2)
    assert overrides == {"hidden_size": 64, "num_hidden_layers": 3}


def test_electric_needs_no_second_flag():
    config = make({"electric_objective": True})
    assert config.two_tower_generator and not config.electra_objective


def test_embedding_size_follows_an_overridden_width():
    overrides = {"hidden_size": 576}
    config = make({"model_size": "base", "model_hparam_overrides": overrides})
    assert config.embedding_size == 576


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"learning_rat": 1}, ["learning_rat", 'did you mean "learning_rate"']),
        ({"Learning_Rate": 1}, ['did you mean "learning_rate"']),
        ({"qqq": 1}, ['"qqq"', "docs/hparams.md"]),
        (
            {"model_hparam_overrides": {"hiden_size": 3}},
            ["model_hparam_overrides", 'did you mean "hidden_size"'],
        ),
        ({"model_hparam_overrides": {"hidden_size": 0}}, ["hidden_size", "0", ">= 1"]),
        ({"model_hparam_overrides": {"hidden_dropout_prob": 1.0}}, ["< 1"]),
        ({"model_hparam_overrides": {"vocab_size": 9}}, ["vocab_size"]),
        ({"model_hparam_overrides": None}, ["model_hparam_overrides", "null"]),
        ({"max_predictions_per_seq": 20}, ["mask_prob", "max_seq_length"]),
        ({"learning_rate": "1e-4"}, ["learning_rate", '"1e-4"', "a number > 0"]),
        ({"learning_rate": 0}, ["learning_rate", "0", "> 0"]),
        ({"learning_rate": float("inf")}, ["learning_rate", "Infinity"]),
        ({"train_batch_size": 2.5}, ["2.5", "whole number"]),
        ({"train_batch_size": True}, ["true", "whole number"]),
        ({"do_train": 1}, ["do_train", "1", "true or false"]),
        ({"do_train": "false"}, ["true or false"]),
        ({"mask_prob": 1}, ["mask_prob", "< 1"]),
        ({"embedding_size": -1}, ["embedding_size", ">= 1"]),
        ({"seed": 2**31}, ["seed", "<= 2147483647"]),
        ({"num_train_steps": 1e20}, ["num_train_steps", "1e+20", "2,147,483,647"]),
        ({"num_warmup_steps": 2**31}, ["num_warmup_steps", "at most 2,147,483,647"]),
        (
            {"model_hparam_overrides": {"hidden_size": 2**40}},
            ["hidden_size", "at most 2,147,483,647"],
        ),
        (
            {"train_batch_size": 2**26},
            ["train_batch_size 67108864", "max_seq_length 128", "2,147,483,647 tokens"],
        ),
        (
            {"eval_batch_size": 2**26},
            ["eval_batch_size 67108864", "max_seq_length 128", "2,147,483,647 tokens"],
        ),
        ({"model_size": "bass"}, ['"bass"', '"base"']),
        ({"precision": "float16"}, ["mixed_float16"]),
        ({"do_eval": True}, ["do_train", "do_eval", "true"]),
        ({"do_train": False}, ["do_train", "do_eval", "false"]),
        ({"model_name": "other"}, ["model_name"]),
        ({"mask_prob": 0.05, "max_seq_length": 16}, ["mask_prob", "max_seq_length"]),
        (
            {"train_batch_size": 10, "gradient_accumulation_steps": 4},
            ["gradient_accumulation_steps 4", "train_batch_size 10"],
        ),
        ({"max_seq_length": 513}, ["max_seq_length 513", "max_position_embeddings"]),
        (
            {"model_hparam_overrides": {"num_attention_heads": 3}},
            ["256", "3", "model_hparam_overrides"],
        ),
        (
            {"model_size": "base", "generator_hidden_size": 0.3},
            ["generator", "230", "3", "generator_hidden_size"],
        ),
        ({"generator_layers": 0.01}, ["generator_layers", "num_hidden_layers 12"]),
        ({"generator_hidden_size": 0.001}, ["generator_hidden_size", "256"]),
    ],
)
def test_wrong_values_are_named(hparams, words):
    refused(hparams, *words)


@pytest.mark.parametrize(
    "hparams, first, second",
    [
        ({"schedule": "wsd", "lr_decay_power": 2}, "lr_decay_power", '"original"'),
        ({"decay_proportion": 0.5}, "decay_proportion", '"wsd"'),
        (
            {"two_tower_generator": True, "electra_objective": False},
            "two_tower_generator",
            "electra_objective",
        ),
        (
            {"two_tower_generator": True, "untied_generator": False},
            "two_tower_generator",
            "untied_generator",
        ),
        (
            {"electric_objective": True, "untied_generator": False},
            "electric_objective",
            "untied_generator",
        ),
        (
            {"uniform_generator": True, "untied_generator": False},
            "uniform_generator",
            "untied_generator",
        ),
        (
            {"uniform_generator": True, "electric_objective": True},
            "uniform_generator",
            "electric_objective",
        ),
        (
            {"uniform_generator": True, "two_tower_generator": True},
            "uniform_generator",
            "two_tower_generator",
        ),
        (
            {"uniform_generator": True, "electra_objective": False},
            "uniform_generator",
            "electra_objective",
        ),
        (
            {"electric_objective": True, "electra_objective": True},
            "electric_objective",
            "electra_objective",
        ),
        (
            {"generator": "unigram", "uniform_generator": True},
            "generator",
            "uniform_generator",
        ),
        (
            {"generator": "two_tower", "two_tower_generator": False},
            "generator",
            "two_tower_generator",
        ),
        (
            {"generator": "masked_lm", "untied_generator": False},
            "generator",
            "untied_generator",
        ),
        (
            {"generator": "uniform", "electra_objective": False},
            "generator",
            "electra_objective",
        ),
        (
            {"generator": "masked_lm", "electric_objective": True},
            "generator",
            "electric_objective",
        ),
        (
            {"electric_objective": True, "two_tower_generator": False},
            "electric_objective",
            "two_tower_generator",
        ),
    ],
)
def test_impossible_settings_name_both_hparams(hparams, first, second):
    refused(hparams, first, second)


@pytest.mark.parametrize(
    "hparams",
    [
        {"two_tower_generator": True},
        {"uniform_generator": True},
        {"generator": "unigram"},
        {"mask_token_share": 0.7, "random_token_share": 0.3},
        {"mask_token_share": 0, "electra_objective": False},
        {"generator": "unigram", "electric_objective": True},
        {"untied_generator": False, "untied_generator_embeddings": True},
        {"electra_objective": False, "generator_hidden_size": 0.001},
        {"do_train": False, "do_eval": True},
        {"num_train_steps": 1e6, "init_checkpoint": None, "jit_compile": None},
    ],
)
def test_unusual_settings_are_possible(hparams):
    make(hparams)


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_kind_of_generator_is_what_the_original_hparams_say(kind):
    """`generator` and the original's hparams choose the same run."""
    config, original = make({"generator": kind}), GENERATORS[kind].original
    assert config.generator_kind == kind
    assert config.objective_kind == "electra"
    if original is None:
        assert config.generator == kind
    else:
        assert config == make(original)


def test_generator_is_not_checked_where_there_is_none():
    make(
        {"model_size": "base", "generator_hidden_size": 0.3, "untied_generator": False}
    )


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"seed": 1,\n "debug" true}', ["line 2, column 10"]),
        ('{"seed": 1,}', ["line 1, column 1"]),  # 11 or, before Python 3.13, 12
        ("{'seed': 1}", ["line 1, column 2", "double quotes"]),
        ('{"debug": True}', ["line 1, column 11"]),
        ('{"seed": 1\n', ["line 2, column 1"]),
        ('{"seed": 1, "seed": 2}', ["seed", "twice", "1", "2"]),
        (
            '{"model_hparam_overrides": {"hidden_size": 1, "hidden_size": 2}}',
            ["hidden_size", "twice"],
        ),
        ('{"learning_rate": NaN}', ["NaN"]),
        ('{"learning_rate": -Infinity}', ["-Infinity"]),
        ("[1]", ["[1]", "object"]),
        ("", ["JSON text"]),
        ("missing.json", ["missing.json", "exists"]),
    ],
)
def test_json_errors_say_where(text, words):
    with pytest.raises(UserError) as caught:
        read_hparams(text)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_hparams_nested_without_end():
    with pytest.raises(UserError, match="nested too deeply"):
        read_hparams('{"a": ' + "[" * 100_000)


def test_hparams_from_a_file(tmp_path):
    path = tmp_path / "h.json"
    path.write_text('\ufeff{"seed": 5}', encoding="utf-8")
    assert read_hparams(str(path)) == {"seed": 5}
    path.write_text('{"seed": }', encoding="utf-8")
    with pytest.raises(UserError, match=r"h\.json, line 1, column 10"):
        read_hparams(str(path))
    path.write_bytes(b'{"seed": "\xff"}')
    with pytest.raises(UserError, match=r"h\.json"):
        read_hparams(str(path))


@pytest.mark.parametrize("name", ["electra_base", "electric_small", "debug"])
def test_a_saved_config_is_a_config(tmp_path, name):
    hparams = read_hparams(os.path.join(CONFIGS, f"{name}.json"))
    config = make({**hparams, "eval_tfrecords": "elsewhere*"})
    path = tmp_path / "config.json"
    config.save(str(path))
    again = make(config=read_hparams(str(path)))
    assert again == config
    moved = make(config=read_hparams(str(path)), data_dir="E", name="n")
    assert moved.model_dir == os.path.join("E", "models", "n")
    assert moved.vocab_file == os.path.join("E", "vocab.txt")
    assert moved.eval_tfrecords == "elsewhere*"
    assert os.listdir(tmp_path) == ["config.json"]


def test_saving_where_one_cannot_write(tmp_path):
    (tmp_path / "file").write_text("in the way of a directory")
    with pytest.raises(UserError, match="config.json") as caught:
        make().save(str(tmp_path / "file" / "config.json"))
    assert caught.value.exit_code == EXIT_CANNOT_WRITE


def test_vocab_size_is_the_vocabularys(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n\n\n")
    config = make(data_dir=str(tmp_path))
    assert config.vocab_size == 3 and config.model_config().vocab_size == 3
    assert any("vocab_size is 3" in note for note in config.notes())
    assert make({"vocab_size": 3}, data_dir=str(tmp_path)).vocab_size == 3
    with pytest.raises(UserError, match="vocab_size is 4, but .* has 3 lines"):
        make({"vocab_size": 4}, data_dir=str(tmp_path))


def test_long_warmup_is_noted():
    (note,) = make({"num_train_steps": 100}).notes()
    assert "num_warmup_steps (10000)" in note and "(100)" in note
    assert make().notes() == []


def test_a_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().seed = 3


RECIPES = sorted(os.path.basename(p)[:-5] for p in glob.glob(f"{CONFIGS}/*.json"))


def test_all_recipes_are_there():
    sizes = ["base", "large", "small", "small_plus_plus"]
    names = [f"electra_{s}" for s in sizes]
    names += ["electric_base", "electric_small", "mlm_base", "mlm_small", "debug"]
    names += ["nvidia_electra_base", "electra_novels", "electra_unigram_base"]
    names += ["electra_novels_longer"]
    others = [name for name, kind in OBJECTIVES.items() if not kind.is_originals]
    names += [f"{name}_base" for name in [*others, "electra_tt", "mlm_rare_masking"]]
    assert RECIPES == sorted(names)


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_load(name):
    hparams = read_hparams(os.path.join(CONFIGS, f"{name}.json"))
    config = make(config=hparams)
    resolved = config.to_dict()
    parts = hparams.pop("phases", [])
    assert {k: resolved[k] for k in hparams} == hparams
    for part, found in zip(parts, config.phases, strict=bool(parts)):
        assert part.items() <= found.items()
    assert f"{name}.json" in open(os.path.join(CONFIGS, "README.md")).read()


@pytest.mark.parametrize("size", TABLE_6)
def test_recipes_agree_with_the_presets(size):
    hparams = read_hparams(os.path.join(CONFIGS, f"electra_{size}.json"))
    assert make(hparams) == make({"model_size": size})


def test_electric_base_is_that_of_its_paper():
    """Table 3 of the Electric paper, and the positions of its algorithm."""
    config = make(config=read_hparams(os.path.join(CONFIGS, "electric_base.json")))
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
    towers = make(config=read_hparams(os.path.join(CONFIGS, "two_tower_base.json")))
    bert = make(config=read_hparams(os.path.join(CONFIGS, "mlm_base.json")))
    shape, whole = towers.generator_config(), bert.model_config()
    assert shape == towers.model_config()
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        assert 3 * getattr(shape, name) == 2 * getattr(whole, name), name
    assert shape.num_hidden_layers == whole.num_hidden_layers
    flops = [flops_computation.get_recipe_flops(config) for config in (towers, bert)]
    assert flops[0] == pytest.approx(flops[1], rel=0.1)


def test_recipes_state_what_makes_them():
    """A change of defaults must not change a recipe."""
    for name in RECIPES:
        if name == "debug":
            continue
        with open(os.path.join(CONFIGS, f"{name}.json")) as f:
            hparams = json.load(f)
        stated = {"learning_rate", "num_warmup_steps", "max_seq_length"}
        stated |= {"train_batch_size", "num_train_steps"}
        for part in hparams.get("phases", [hparams]):
            assert stated <= set(part), name
        assert {"model_size", "mask_prob"} <= set(hparams), name


def test_no_more_tokens_are_masked_than_there_are():
    for length in (128, 200, 512):
        hparams = {"mask_prob": 0.998, "max_seq_length": length}
        assert make(hparams).max_predictions_per_seq == length
