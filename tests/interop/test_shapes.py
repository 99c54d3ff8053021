# SPDX-License-Identifier: Apache-2.0
"""Hparams from shapes, and hparams that disagree with them."""

import itertools

import pytest

from electra_tf.config.hparams import read_hparams
from electra_tf.errors import UserError
from electra_tf.interop import shapes
from tests.config.test_identity import CONFIGS
from tests.config.test_pretraining import make


def shapes_of(hidden, layers, generator_hidden, generator_layers):
    """The weights of an ELECTRA that determine its shape."""
    found = {
        "electra/embeddings/word_embeddings": [97, 8],
        "electra/embeddings/position_embeddings": [40, 8],
        "electra/embeddings/token_type_embeddings": [2, 8],
        "discriminator_predictions/dense/kernel": [hidden, hidden],
        "generator_predictions/output_bias": [97],
    }
    for scope, width, depth in (
        ("electra", hidden, layers),
        ("generator", generator_hidden, generator_layers),
    ):
        for i in range(depth):
            layer = f"{scope}/encoder/layer_{i}"
            found[f"{layer}/intermediate/dense/kernel"] = [width, 4 * width]
            found[f"{layer}/attention/self/query/kernel"] = [width, width]
    return found


def test_fractions_are_compared_by_the_sizes_that_they_give():
    shares = (0.1, 0.3, 0.33333, 0.7, 1.0)
    for hidden, layers in ((16, 3), (100, 12), (256, 1), (768, 12)):
        for width, depth in itertools.product(shares, repeat=2):
            sizes = round(hidden * width), round(layers * depth)
            if not all(sizes):
                continue
            derived = shapes.hparams_of(shapes_of(hidden, layers, *sizes), "m")
            given = {"generator_hidden_size": width, "generator_layers": depth}
            merged = shapes.merge(derived, given, {}, "m")
            assert {k: merged[k] for k in given} == given


def test_another_size_is_refused_with_both():
    derived = shapes.hparams_of(shapes_of(256, 3, 77, 2), "m")
    with pytest.raises(UserError, match="hidden_size is 77 in m, 64 by .* 0.25 in"):
        shapes.merge(derived, {"generator_hidden_size": 0.25}, {}, "m")
    with pytest.raises(UserError, match="num_hidden_layers is 2 in m, 1 by"):
        shapes.merge(derived, {}, {"generator_layers": 0.4}, "m")


def test_heads_are_inferred_from_multiples_of_64_alone():
    for width in (32, 96, 200, 312):
        with pytest.raises(UserError, match=f"{width}, is no multiple .*\n.*heads"):
            shapes.note_of_heads(width, "m")
    for width, heads in ((64, 1), (256, 4), (768, 12)):
        assert f"heads: {heads} inferred" in shapes.note_of_heads(width, "m")


@pytest.mark.parametrize("there", CONFIGS)
def test_saved_hparams_of_another_config(there, tmp_path):
    """They decide the identity; hparams that are not in the file are the config's."""
    CONFIGS[there].save(str(tmp_path / "hparams.json"))
    hparams = read_hparams(str(tmp_path / "hparams.json"))
    for name, here in CONFIGS.items():
        assert identity_by(here, hparams) == CONFIGS[there].identity(), name
    assert identity_by(CONFIGS[there], {}) == CONFIGS[there].identity()


def identity_by(config, hparams):
    return shapes.identity_by(config, hparams, "hparams.json")


def test_some_hparams_of_another_config():
    usual = make().identity()
    for hparams, same in (
        ({"model_hparam_overrides": {"num_attention_heads": 2}}, False),
        ({"model_size": "large"}, False),
        ({"objective": "electra"}, True),
        ({"objective": "electric"}, False),
        ({"generator_hidden_size": 0.25}, True),
        ({"generator_hidden_size": 0.5}, False),
    ):
        assert (identity_by(make(), hparams) == usual) == same, hparams
    # Fractions are compared by the size that they give.
    base = make({"model_size": "base"})
    assert base.generator_hidden_size != 256 / 768
    assert identity_by(base, {"generator_hidden_size": 256 / 768}) == base.identity()
    electric = make({"objective": "electric"})
    assert identity_by(electric, {"objective": "electric"}) == electric.identity()
    with pytest.raises(UserError, match="hparams.json"):
        identity_by(make(), {"model_size": "huge"})
