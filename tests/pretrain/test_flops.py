# SPDX-License-Identifier: Apache-2.0
"""The FLOP formulas, and the costs that configs/README.md quotes from them."""

import functools
import re

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.model import BLOCKS
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.config.run import NO_DATA
from electra_tf.pretrain import flops as flops_lib
from electra_tf.pretrain.pretraining import build_pretrainer
from tests.helpers.runs import ROOT

RECIPES = list((ROOT / "configs").glob("*.json"))


def recipe(name, **hparams):
    config = read_hparams(str(ROOT / "configs" / f"{name}.json"))
    return PretrainingConfig.from_hparams(NO_DATA, "recipe", hparams, config)


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
    flops = flops_lib.get_recipe_flops(recipe(name))
    assert flops == pytest.approx(flops_lib.MODEL_FLOPS[model], rel=1e-12)


def test_a_modern_block_counts_the_keys_in_its_window():
    """Width 4, 2 between, 2 heads; 20 tokens; layers 0 and 2 of 3 attend to all."""
    kind = BLOCKS["modern"]
    sizes = {"s": 20, "v": 7, "i": 2, "heads": 2, "kind": kind}
    model = flops_lib.TransformerHparams(4, 3, **sizes, window=4, global_every=2)
    # Four projections, three of the gated layer; norms, rotary, GELU, dropout, sums.
    rest = 4 * 2 * 16 + 3 * 2 * 8 + 2 * 5 * 4 + 6 * 4 + (8 + 1 + 4) * 2 + 6 * 4
    per_key = 2 * 2 * 4 + 10 * 2
    assert model.get_block_flops() == 20 * (rest + 20 * per_key)
    embeddings = 20 * (2 * 4 * 7 + 2 * 5 * 4 + 4 * 4)
    expected = 3 * 20 * rest + 20 * (20 + 5 + 20) * per_key + embeddings
    assert model.get_encoder_flops() == expected
    shorter, longer = (
        flops_lib.get_recipe_flops(
            PretrainingConfig(block="modern", local_window=8, max_seq_length=length)
        )
        for length in (64, 128)
    )
    assert 2 < longer / shorter < 2.2


def test_widths_that_a_recipe_sets_are_counted():
    """Of the main network; the generator's follow from its hidden size."""
    shape = {"intermediate_size": 2048, "num_attention_heads": 8}
    config = recipe("electra_small", model_hparam_overrides=shape)
    kind = functools.partial(flops_lib.TransformerHparams, l=12, s=128, e=128)
    main, generator = kind(256, i=2048, heads=8), kind(64, i=256, heads=1)
    forward = main.get_infer_flops() + generator.get_encoder_flops()
    forward += generator.get_embedding_flops(output=True)
    sequences = config.train_batch_size * config.num_train_steps
    found = flops_lib.get_recipe_flops(config)
    assert found == pytest.approx(2 * sequences * forward, rel=1e-12)


def test_costs_of_objectives_differ_by_their_heads():
    """The same networks as ELECTRA's, but for the softmax of the main network."""
    flops, costs = flops_lib.TransformerHparams(768, 12), {}
    for name in ("electra", "electra_15", "adversarial", "replace_mlm"):
        costs[name] = flops_lib.get_recipe_flops(recipe(f"{name}_base"))
    assert costs["electra"] == costs["electra_15"] == costs["adversarial"]
    head = flops.get_binary_classification_flops()
    masked = flops.get_embedding_flops(output=True)
    steps = 2 * 256 * 766_000
    expected = costs["electra"] + steps * (masked - head)
    assert costs["replace_mlm"] == pytest.approx(expected)
    everywhere = flops_lib.get_recipe_flops(recipe("all_tokens_mlm_base"))
    expected = costs["electra"] + steps * masked / flops_lib.OUTPUT_FRAC
    assert everywhere == pytest.approx(expected)
    # Two stages: a whole generator; then the discriminator and a forward pass of it.
    mlm, rtd = (
        flops.get_train_flops(256, 766_000, discriminator=d) for d in (False, True)
    )
    two = flops_lib.get_recipe_flops(recipe("two_stage_base"))
    assert two == pytest.approx(mlm + rtd + mlm / 2)
    # Frozen: of the generator the forward pass alone.
    frozen = recipe("electra_base", objective="frozen_generator")
    expected = costs["electra"] - (costs["electra"] - rtd) / 2
    assert flops_lib.get_recipe_flops(frozen) == pytest.approx(expected)


# Texts of 32 tokens, 5 of them masked; 40 words, embeddings of width 1.
BY_HAND = {
    "vocab_size": 40,
    "max_seq_length": 32,
    "mask_prob": 5 / 32,
    "embedding_size": 1,
    "train_batch_size": 1,
    "num_train_steps": 1,
}
# The main network's width and the share that the generator's is.
KINDS = {
    "two_tower": (1, 1.0, {"objective": "two_tower"}),
    "electra_tt": (2, 0.5, {"two_tower_generator": True}),
    "corrective_lm": (2, 0.5, {"objective": "corrective_lm"}),
    "multi_choice": (2, 0.5, {"objective": "multi_choice", "num_candidates": 3}),
}


def by_hand(name):
    """A kind of run with one layer and one head in each network."""
    width, fraction, own = KINDS[name]
    shape = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 1}
    own = own | {"generator_hidden_size": fraction, "model_hparam_overrides": shape}
    return PretrainingConfig.from_hparams(NO_DATA, "by_hand", BY_HAND | own)


def counted_by_hand():
    """Kind -> operations on a text, forward: of products of matrices, and the others.

    Of a token, in products of matrices:
      encoder of width 1, 4 in between, no projection of the embeddings
        3 x 2 x 1 x 1 + 2 x 32 + 2 x 32 + 2 x 1 x 1 + 2 x (2 x 1 x 4) = 152
      encoder of width 2, 8 in between, with one
        3 x 2 x 2 x 2 + 2 x 64 + 2 x 64 + 2 x 2 x 2 + 2 x (2 x 2 x 8) + 2 x 1 x 2 = 356
      discriminator's head, 2 to 2 to 1:      2 x 2 x 2 + 2 x 2 x 1 = 12
      softmax on two towers, 2 to 1 to 40:    2 x 2 x 1 + 2 x 1 x 40 = 84
      softmax on one encoder, 1 to 1 to 40:   2 x 1 x 1 + 2 x 1 x 40 = 82
      choice among three, 2 to 1 to 3:        2 x 2 x 1 + 2 x 1 x 3 = 10
    The others: biases, activations, dropout, sums, layer norms and softmaxes
      of a layer of width 1   3 + 10 x 32 + (6 + 5) + 9 x 4 + 11 x 1 = 381
      and of width 2          6 + 10 x 32 + (12 + 5) + 9 x 8 + 11 x 2 = 437
      embeddings, looked up by products with one-hot vectors: words 2 x 40, positions
        and types 2 x 34, 2 for their sums, 9 for norm and dropout = 159;
        of width 2 also the projection's bias = 161
      heads  9 x 2 = 18; all softmaxes  14 + 7 x 40 = 294; the choice  14 + 7 x 3 = 35
    """
    towers, of_towers = 2 * 152 + 84, 2 * (381 + 159) + 294
    main, of_main = 356 + 12, 437 + 161 + 18
    both, of_both = main + 152, of_main + 381 + 159
    return {
        "two_tower": (32 * towers, 32 * of_towers),
        "electra_tt": (32 * (main + towers), 32 * (of_main + of_towers)),
        # Another softmax, or a choice, at the masked positions.
        "corrective_lm": (32 * both + 5 * (82 + 84), 32 * of_both + 5 * (294 + 294)),
        "multi_choice": (32 * both + 5 * (82 + 10), 32 * of_both + 5 * (294 + 35)),
    }


@pytest.mark.parametrize("name", KINDS)
def test_formulas_give_what_was_counted_by_hand(name):
    products, others = counted_by_hand()[name]
    found = flops_lib.get_recipe_flops(by_hand(name))
    # The backward pass counts as much.
    assert found == pytest.approx(2 * (products + others), rel=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_the_models_multiply_what_was_counted_by_hand(name, monkeypatch):
    multiply, counts = tf.matmul, []

    def counted(a, b, *args, transpose_a=False, **kwargs):
        product = multiply(a, b, *args, transpose_a=transpose_a, **kwargs)
        counts.append(2 * np.prod(product.shape) * a.shape[-2 if transpose_a else -1])
        return product

    monkeypatch.setattr(tf, "matmul", counted)
    model = build_pretrainer(by_hand(name), (2, 3, 4))
    text, numbers = tf.range(5, 37)[None], tf.zeros([1, 5])
    batch = {
        "input_ids": text,
        "input_mask": tf.ones_like(text),
        "segment_ids": tf.zeros_like(text),
        "masked_input_ids": text,
        "masked_lm_positions": tf.range(1, 6)[None],
        "masked_lm_ids": text[:, 1:6],
        "masked_lm_weights": numbers + 1,
        "sample_uniform": numbers,
    }
    model(batch)
    expected, _ = counted_by_hand()[name]
    if name in ("two_tower", "electra_tt"):
        # Two towers score the 5 masked positions once more, for samples and metrics;
        # the formula has the softmax at all positions once.
        expected += 5 * 2 * 40
    if name == "multi_choice":  # Candidates are scored by sums of products.
        expected -= 5 * 2 * 3
    assert sum(counts) == expected


def test_configs_readme_quotes_the_formulas():
    page = (ROOT / "configs" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\w+)\.json\].*?\| (\d\.\d+e\d+) \|", page, re.M)
    assert len(rows) == len(RECIPES)
    for name, flops in rows:
        ours = flops_lib.get_recipe_flops(recipe(name))
        assert f"{ours:.2e}".replace("+", "") == flops, name
