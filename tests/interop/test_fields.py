# SPDX-License-Identifier: Apache-2.0
"""Hparams from shapes, and hparams that disagree with them."""

import itertools

import pytest

from electra_tf.config.hparams import read_hparams
from electra_tf.errors import UserError
from electra_tf.interop import fields
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
            inferred = fields.of_shapes(shapes_of(hidden, layers, *sizes), "m")
            given = {"generator_hidden_size": width, "generator_layers": depth}
            assert fields.contradictions(inferred, given) == []
    inferred = fields.of_shapes(shapes_of(256, 3, 77, 2), "m")
    given = {"generator_hidden_size": 0.25, "generator_layers": 0.4}
    found = fields.contradictions(inferred, given)
    assert found == [(k, inferred[k], given[k]) for k in sorted(given)]


def test_heads_are_inferred_from_multiples_of_64_alone():
    for width in (32, 96, 200, 312):
        words = f"{width}, is not a multiple .*\n.*heads"
        with pytest.raises(UserError, match=words):
            fields.note_of_heads(width, "m")
    for width, heads in ((64, 1), (256, 4), (768, 12)):
        assert f"heads: {heads} inferred" in fields.note_of_heads(width, "m")


@pytest.mark.parametrize("there", CONFIGS)
def test_fields_of_a_saved_config_are_those_of_its_identity(there, tmp_path):
    CONFIGS[there].save(str(tmp_path / "hparams.json"))
    stored = fields.of_hparams(read_hparams(str(tmp_path / "hparams.json")))
    identity = CONFIGS[there].identity()
    assert fields.differences(stored, identity) == []
    assert {*fields.SHAPE} <= stored.keys()
    for name, here in CONFIGS.items():
        differs = {k for k, v in here.identity().items() if identity.get(k, v) != v}
        found = {k for k, _, _ in fields.differences(stored, here.identity())}
        assert differs - {"vocab_size"} <= found, name


def test_fields_that_differ():
    usual = make().identity()
    for hparams, names in (
        ({"model_hparam_overrides": {"num_attention_heads": 2}}, "num_attention_heads"),
        ({"model_size": "large"}, "hidden_size num_hidden_layers"),
        ({"objective": "electra"}, ""),
        ({"objective": "electric", "generator": "two_tower"}, "generator objective"),
        ({"generator_hidden_size": 0.25}, ""),
        ({"generator_hidden_size": 0.5}, "generator_hidden_size"),
    ):
        stored = fields.of_hparams(hparams, defaults=False)
        found = fields.differences(stored, usual)
        assert [name for name, _, _ in found] == names.split(), hparams
    # Fractions are compared by the size that they give.
    base = make({"model_size": "base"})
    assert base.generator_hidden_size != 256 / 768
    stored = {"generator_hidden_size": 256 / 768}
    assert fields.differences(stored, base.identity()) == []
