# SPDX-License-Identifier: Apache-2.0
"""KerasHub presets: written, read, and run by that library itself."""

import json
import shutil

import keras
import numpy as np
import pytest

from electra_tf.interop import keras_hub as presets
from electra_tf.interop import networks
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig
from tests.helpers.cards import run_snippets
from tests.helpers.interop_models import (
    TEXTS,
    assert_equal_tensors,
    golden,
    inputs,
    quiet,
    read,
    recorded,
    refused,
)
from tests.helpers.runs import by_default

keras_hub = pytest.importorskip("keras_hub")

TOKENIZERS = [
    TokenizerConfig(True, True),
    TokenizerConfig(True, False),
    TokenizerConfig(False),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(presets of the recorded model, log), made once."""
    folder, lines = tmp_path_factory.mktemp("presets") / "out", []
    presets.write_keras_hub(golden("electra_tiny"), "all", folder, lines.append)
    return folder, "\n".join(lines)


@pytest.fixture
def copy(exported, tmp_path):
    """A preset to change, without a manifest, as of other programs."""
    folder = shutil.copytree(exported[0] / "discriminator", tmp_path / "preset")
    (folder / "manifest.json").unlink()
    return folder


@pytest.mark.parametrize(
    "what", by_default(["discriminator", "generator"], ["discriminator"])
)
def test_keras_hub_computes_the_outputs_of_the_original(exported, what):
    preset = exported[0] / what
    backbone = keras_hub.models.ElectraBackbone.from_preset(str(preset))
    record, discriminator = recorded("electra_tiny"), what == "discriminator"
    batch = inputs(record, discriminator)
    output = backbone(
        {
            "token_ids": batch["input_ids"],
            "segment_ids": batch["segment_ids"],
            "padding_mask": batch["input_mask"],
        }
    )
    hidden = record["disc_sequence_output" if discriminator else "gen_sequence_output"]
    real = batch["input_mask"] == 1
    ours = np.asarray(output["sequence_output"])
    gap = np.abs(ours - hidden)[real].max()
    assert 1e-5 < gap < 1e-3  # the error of its approximate GELU
    pooled = np.asarray(output["pooled_output"])
    np.testing.assert_allclose(pooled, np.tanh(ours[:, 0]), atol=1e-6)
    encoder = networks.split(golden("electra_tiny"))[what].encoder()
    again, _ = read(preset)
    assert_equal_tensors(again.tensors, encoder.tensors)
    assert again.config.model_config() == encoder.shape


def test_manifest_and_log_state_what_differs(exported):
    folder, log = exported
    content = json.loads((folder / "discriminator" / "manifest.json").read_text())
    checks = {check["read_by"]: check for check in content["verification"]}
    assert checks["electra_tf"]["difference"] == 0
    exact = checks["keras_hub with exact GELU"]
    assert exact["difference"] < exact["tolerance"] < 1e-4
    assert content["max_difference"] == exact["difference"]
    assert "tanh" in content["gelu"] and 1e-5 < content["gelu_difference"] < 1e-3
    assert "discriminator_predictions/" in log  # left out
    refused(folder, 2, "one preset of KerasHub")


@pytest.mark.thorough
def test_snippet_of_the_card_runs(copy, tmp_path):
    printed = run_snippets(tmp_path, [copy / "README.md"])
    width = networks.split(golden("electra_tiny"))["discriminator"].shape.hidden_size
    assert f", {width})" in printed["preset"]


def test_foreign_preset_computes_the_same(copy):
    stored, log = read(copy)
    assert "hidden_act gelu_tanh" in log
    assert stored.config.model_config().hidden_act == "gelu_tanh"
    batch = inputs(recorded("electra_tiny"), True)
    [network] = networks.split(stored).values()
    ours = networks.outputs(network, batch)
    backbone = keras_hub.models.ElectraBackbone.from_preset(str(copy))
    theirs = presets._run(backbone, batch)
    real = batch["input_mask"] == 1
    np.testing.assert_allclose(ours["hidden"][real], theirs["hidden"][real], atol=1e-5)
    again = presets.write_keras_hub(stored, "encoder", copy / "out", **quiet)
    text = (again / "encoder" / "manifest.json").read_text()
    by = {check["read_by"] for check in json.loads(text)["verification"]}
    assert by == {"electra_tf", "keras_hub"}  # unchanged, without another GELU


class Spy:
    """Registered with Keras by the user's program."""

    @classmethod
    def from_config(cls, config):
        raise SystemExit("config.json made an object")


def test_shape_of_an_earlier_version_is_read(exported, tmp_path):
    folder = shutil.copytree(exported[0] / "discriminator", tmp_path / "preset")
    expected = presets._shape_in(folder)
    content = json.loads((folder / "manifest.json").read_text())
    content["model_config"]["attention_chunk_size"] = 8
    (folder / "manifest.json").write_text(json.dumps(content))
    assert presets._shape_in(folder) == expected


@pytest.mark.parametrize("place", ["dtype", "compile_config"])
def test_config_of_a_preset_makes_no_objects(copy, monkeypatch, place):
    registry = keras.saving.get_custom_objects()
    monkeypatch.setitem(registry, "user>Spy", Spy)
    spy = {"class_name": "Spy", "registered_name": "user>Spy", "config": {}}
    content = json.loads((copy / "config.json").read_text())
    (content["config"] if place == "dtype" else content)[place] = spy
    (copy / "config.json").write_text(json.dumps(content))
    stored, _ = read(copy)
    assert stored.config.embedding_size == content["config"]["embedding_dim"]


@pytest.mark.parametrize("config", by_default(TOKENIZERS, TOKENIZERS[:1]), ids=str)
def test_tokenizer_of_keras_hub_gives_the_same_ids(tmp_path, config):
    stored = golden("uniform")._replace(tokenizer_config=config)
    presets.write_keras_hub(stored, "encoder", tmp_path / "out", **quiet)
    out = tmp_path / "out" / "encoder"
    theirs = keras_hub.models.Tokenizer.from_preset(str(out))
    assert theirs.lowercase == config.do_lower_case
    ours = Tokenizer(stored.vocab, *config)
    for text, ids in zip(TEXTS, theirs(TEXTS), strict=True):
        assert np.asarray(ids).tolist() == ours.encode(text), text
    assert read(out)[0].tokenizer_config.equivalent(config)


def test_tokenizer_unknown_to_the_original_is_refused(copy):
    settings = json.loads((copy / "tokenizer.json").read_text())
    settings["config"] |= {"lowercase": False, "strip_accents": True}
    (copy / "tokenizer.json").write_text(json.dumps(settings))
    refused(copy, 2, "strip_accents")
