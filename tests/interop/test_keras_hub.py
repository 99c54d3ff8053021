# SPDX-License-Identifier: Apache-2.0
"""KerasHub presets: written, read, and run by that library itself."""

import json
import shutil
import unicodedata

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.interop import keras_hub as presets
from electra_tf.interop import networks, sources
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig
from tests.helpers.cards import run_snippets
from tests.helpers.interop_models import (
    SCRIPTS,
    VOCAB,
    golden,
    inputs,
    recorded,
    strings,
)

keras_hub = pytest.importorskip("keras_hub")

quiet = {"log": lambda line: None}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Presets of the recorded model, made once."""
    folder = tmp_path_factory.mktemp("presets") / "out"
    return presets.write_keras_hub(golden("electra_tiny"), "all", folder, **quiet)


@pytest.fixture
def copy(exported, tmp_path):
    """A preset to damage."""
    return shutil.copytree(exported / "discriminator", tmp_path / "preset")


@pytest.mark.parametrize("what", ["discriminator", "generator"])
def test_keras_hub_computes_what_the_original_recorded(exported, what):
    backbone = keras_hub.models.ElectraBackbone.from_preset(str(exported / what))
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
    assert 1e-5 < gap < 1e-3  # what its approximate GELU costs
    pooled = np.asarray(output["pooled_output"])
    np.testing.assert_allclose(pooled, np.tanh(ours[:, 0]), atol=1e-6)


def test_the_manifest_states_the_difference(exported):
    text = (exported / "discriminator" / "manifest.json").read_text()
    content = json.loads(text)
    found = {check["read_by"]: check for check in content["verification"]}
    assert found["electra_tf"]["difference"] == 0
    exact = found["keras_hub with exact GELU"]
    assert exact["difference"] < exact["tolerance"] < 1e-4
    measured = found["keras_hub as it is"]
    assert measured["tolerance"] is None and 1e-5 < measured["difference"] < 1e-3
    assert content["max_difference"] == exact["difference"]
    assert content["max_difference_measured"] == measured["difference"]
    assert "tanh" in content["gelu"]


def test_the_snippet_of_the_card_runs(copy, tmp_path):
    printed = run_snippets(tmp_path, [copy / "README.md"])
    width = networks.split(golden("electra_tiny"))["discriminator"].shape.hidden_size
    assert f", {width})" in printed["preset"]


@pytest.mark.parametrize("run", ["electra_tiny", "electra_same_emb", "mlm"])
def test_out_and_in_again_is_the_identity(run, tmp_path):
    stored = golden(run)
    what = "generator" if run == "mlm" else "discriminator"
    out = presets.write_keras_hub(stored, what, tmp_path / "out", **quiet)
    again = sources.read(out / what, **quiet)
    encoder = networks.split(stored, what)[what].encoder()
    assert again.tensors.keys() == encoder.tensors.keys()
    for name, array in encoder.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array, err_msg=name)
    assert again.config.model_config() == encoder.shape
    assert again.vocab.tokens == stored.vocab.tokens


def test_a_foreign_preset_computes_here_what_it_does_there(copy):
    (copy / "manifest.json").unlink()
    lines = []
    stored = sources.read(copy, log=lines.append)
    assert any("hidden_act gelu_tanh" in line for line in lines)
    assert any("computes what KerasHub does, max diff" in line for line in lines)
    assert stored.config.model_config().hidden_act == "gelu_tanh"
    record = recorded("electra_tiny")
    batch = inputs(record, True)
    [network] = networks.split(stored).values()
    [ours] = networks.outputs([network], batch)
    backbone = keras_hub.models.ElectraBackbone.from_preset(str(copy))
    theirs = presets._run(backbone, batch)
    real = batch["input_mask"] == 1
    np.testing.assert_allclose(ours["hidden"][real], theirs["hidden"][real], atol=1e-5)
    again = presets.write_keras_hub(stored, "encoder", copy / "out", **quiet)
    text = (again / "encoder" / "manifest.json").read_text()
    by = {check["read_by"] for check in json.loads(text)["verification"]}
    assert by == {"electra_tf", "keras_hub"}  # as it is, without another GELU


def test_a_foreign_preset_that_computes_something_else_is_refused(copy, monkeypatch):
    (copy / "manifest.json").unlink()
    run = presets._run
    monkeypatch.setattr(presets, "_run", lambda *of: {"hidden": run(*of)["hidden"] + 1})
    refused(copy, 65, "as read by keras_hub")


def test_heads_are_left_out_aloud(tmp_path):
    lines = []
    presets.write_keras_hub(golden("uniform"), "all", tmp_path / "out", lines.append)
    assert any("discriminator_predictions/" in line for line in lines)
    with pytest.raises(UserError, match="two-tower"):
        presets.write_keras_hub(
            golden("electric"), "all", tmp_path / "electric", **quiet
        )
    with pytest.raises(UserError, match="single encoders"):
        sources.read(tmp_path / "out", **quiet)


def folded_alike(config):
    """Whether KerasHub's normalisation, NFKC case folding, is ours on a character.

    It differs on compatibility characters (ß, ², ª, ĳ), on accents that are kept, and
    on Hangul, which it composes again after accents were stripped.
    """

    def stripped(text):
        text = unicodedata.normalize("NFD", text)
        return "".join(c for c in text if unicodedata.category(c) != "Mn")

    def keep(c):
        if unicodedata.category(c) in ("Cc", "Cf", "Zs"):
            return False  # controls part words there, a no-break space does not
        if not config.do_lower_case:
            return True
        theirs, ours = c, c.lower()
        if config.strip_accents:
            theirs, ours = stripped(theirs), stripped(ours)
        elif unicodedata.category(c) == "Mn":
            return False
        theirs = unicodedata.normalize("NFKC", theirs).casefold()
        return unicodedata.normalize("NFKC", theirs) == ours

    return keep


@pytest.mark.parametrize(
    "config, scripts",
    [
        (TokenizerConfig(True, True), 9),
        (TokenizerConfig(True, False), 10),
        (TokenizerConfig(False), 10),
    ],
    ids=str,
)
def test_the_tokenizer_gives_the_same_ids(tmp_path, config, scripts):
    stored = golden("uniform")._replace(tokenizer_config=config)
    out = (
        presets.write_keras_hub(stored, "encoder", tmp_path / "out", **quiet)
        / "encoder"
    )
    theirs = keras_hub.models.Tokenizer.from_preset(str(out))
    assert theirs.lowercase == config.do_lower_case
    ours = Tokenizer(stored.vocab, *config)
    keep = folded_alike(config)
    found = [s for s in SCRIPTS.values() if any(map(keep, map(chr, range(*s))))]
    assert len(found) == scripts
    texts = strings(keep)
    assert len(texts) == 1000
    for text, ids in zip(texts, theirs(texts), strict=True):
        assert np.asarray(ids).tolist() == ours.encode(text), ascii(text)
    assert sources.read(out, **quiet).tokenizer_config.equivalent(config)


# Damaged and foreign presets.


def refused(folder, code, *texts):
    with pytest.raises(UserError) as error:
        sources.read(folder, VOCAB, **quiet)
    message = str(error.value)
    assert error.value.exit_code == code, message
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message


def test_flipped_bits_are_found_by_the_checksums(copy):
    rng = np.random.default_rng(2)
    for name in ("model.weights.h5", "config.json", "tokenizer.json"):
        file = copy / name
        data = file.read_bytes()
        flipped = bytearray(data)
        flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        refused(copy, 65, name, "checksum")
        file.write_bytes(data)


def test_truncated_weights_are_refused_without_checksums_too(copy):
    (copy / "manifest.json").unlink()
    weights = copy / "model.weights.h5"
    data = weights.read_bytes()
    for size in (0, 100, len(data) // 2):
        weights.write_bytes(data[:size])
        refused(copy, 65, str(copy))
    weights.unlink()
    refused(copy, 65, "model.weights.h5 is missing")


@pytest.mark.parametrize(
    "code, text, change",
    [
        (2, "BertBackbone", lambda c: c.update(class_name="BertBackbone")),
        (65, "hidden_dim", lambda c: c["config"].pop("hidden_dim")),
        (65, "", lambda c: c["config"].update(num_layers=5)),
        (65, "", lambda c: c["config"].update(hidden_dim=32)),
        (2, "num_attention_heads in", lambda c: c["config"].update(num_heads=0)),
    ],
)
def test_a_config_that_does_not_fit_is_refused(copy, code, text, change):
    (copy / "manifest.json").unlink()
    config = json.loads((copy / "config.json").read_text())
    change(config)
    (copy / "config.json").write_text(json.dumps(config))
    refused(copy, code, text)


def test_a_tokenizer_that_the_original_does_not_have_is_refused(copy):
    (copy / "manifest.json").unlink()
    settings = json.loads((copy / "tokenizer.json").read_text())
    settings["config"] |= {"lowercase": False, "strip_accents": True}
    (copy / "tokenizer.json").write_text(json.dumps(settings))
    refused(copy, 2, "strip_accents")
