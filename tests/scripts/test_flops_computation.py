# SPDX-License-Identifier: Apache-2.0
"""The FLOP formulas, and the costs that configs/README.md quotes from them."""

import functools
import os
import re
import subprocess
import sys

import pytest

import flops_computation
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from tests.helpers.runs import ROOT


def recipe(name, **hparams):
    config = read_hparams(os.path.join(ROOT, "configs", f"{name}.json"))
    return PretrainingConfig.from_hparams("", "recipe", hparams, config)


@pytest.mark.parametrize(
    "name, model",
    [
        ("electra_small", "electra_small"),
        ("electra_base", "electra_base"),
        ("electra_large", "electra_400k"),
        ("mlm_small", "bert_small"),
        ("mlm_base", "bert_base"),
    ],
)
def test_recipes_cost_what_the_paper_says(name, model):
    flops = flops_computation.get_recipe_flops(recipe(name))
    assert flops == pytest.approx(flops_computation.MODEL_FLOPS[model], rel=1e-12)


def test_a_matrix_product_counts_two_operations_per_multiply_add():
    """With widths of 1 the block is small enough to be counted by hand."""
    model = flops_computation.TransformerHparams(1, 1, s=1, v=1, i=1, heads=1)
    attention = 3 * (2 + 1) + 2 + 5 + 4 + 1 + 2 + 2 + 1 + 4 + 1 + 5
    feed_forward = 2 + 1 + 8 + 2 + 1 + 4 + 1 + 5
    assert model.get_block_flops() == attention + feed_forward


def test_widths_that_a_recipe_sets_are_counted():
    """Of the main network; the generator's follow from its hidden size."""
    shape = {"intermediate_size": 2048, "num_attention_heads": 8}
    config = recipe("electra_small", model_hparam_overrides=shape)
    kind = functools.partial(flops_computation.TransformerHparams, l=12, s=128, e=128)
    main, generator = kind(256, i=2048, heads=8), kind(64, i=256, heads=1)
    forward = main.get_infer_flops() + generator.get_encoder_flops()
    forward += generator.get_embedding_flops(output=True)
    sequences = config.train_batch_size * config.num_train_steps
    found = flops_computation.get_recipe_flops(config)
    assert found == pytest.approx(2 * sequences * forward, rel=1e-12)


def test_electric_costs_more_than_electra_by_its_softmax():
    """Two towers, and a softmax at 128 positions instead of 20."""
    electra, electric = (
        flops_computation.get_recipe_flops(recipe(name))
        for name in ("electra_small", "electric_small")
    )
    assert 1.3 < electric / electra < 1.6


def test_what_the_objectives_cost():
    """The same networks as ELECTRA's, but for the softmax of the main network."""
    flops, costs = flops_computation.TransformerHparams(768, 12), {}
    for name in ("electra", "electra_15", "adversarial", "replace_mlm"):
        costs[name] = flops_computation.get_recipe_flops(recipe(f"{name}_base"))
    assert costs["electra"] == costs["electra_15"] == costs["adversarial"]
    head = flops.get_binary_classification_flops()
    masked = flops.get_embedding_flops(output=True)
    steps = 2 * 256 * 766_000
    expected = costs["electra"] + steps * (masked - head)
    assert costs["replace_mlm"] == pytest.approx(expected)
    everywhere = flops_computation.get_recipe_flops(recipe("all_tokens_mlm_base"))
    expected = costs["electra"] + steps * masked / flops_computation.OUTPUT_FRAC
    assert everywhere == pytest.approx(expected)
    # Two stages: a whole generator; then the discriminator and a forward pass of it.
    mlm, rtd = (
        flops.get_train_flops(256, 766_000, discriminator=d) for d in (False, True)
    )
    two = flops_computation.get_recipe_flops(recipe("two_stage_base"))
    assert two == pytest.approx(mlm + rtd + mlm / 2)


def test_cost_is_proportional_to_steps_and_batch():
    one = flops_computation.get_recipe_flops(recipe("electric_small"))
    steps = recipe("electric_small").num_train_steps
    more = recipe("electric_small", train_batch_size=256, num_train_steps=3 * steps)
    assert flops_computation.get_recipe_flops(more) == pytest.approx(6 * one)


def test_the_table_is_printed():
    done = subprocess.run(
        [sys.executable, os.path.join(ROOT, "flops_computation.py")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    printed = dict(line.split() for line in done.stdout.splitlines() if line)
    assert float(printed["electra_small"]) == pytest.approx(1.294e18, rel=1e-3)
    assert float(printed["electra_base.json"]) == pytest.approx(6.425e19, rel=1e-3)
    recipes = os.listdir(os.path.join(ROOT, "configs"))
    count = sum(name.endswith(".json") for name in recipes)
    assert len(printed) == len(flops_computation.MODEL_FLOPS) + count


def test_configs_readme_quotes_the_formulas():
    with open(os.path.join(ROOT, "configs", "README.md"), encoding="utf-8") as f:
        rows = re.findall(r"^\| \[(\w+)\.json\].*?\| (\d\.\d+e\d+) \|", f.read(), re.M)
    recipes = os.listdir(os.path.join(ROOT, "configs"))
    assert len(rows) == sum(name.endswith(".json") for name in recipes)
    for name, flops in rows:
        ours = flops_computation.get_recipe_flops(recipe(name))
        assert f"{ours:.2e}".replace("+", "") == flops, name
