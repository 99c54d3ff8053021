# SPDX-License-Identifier: Apache-2.0
"""Directories as others save them: in parts, padded, old, in halves, pickled."""

import json
import shutil

import numpy as np
import pytest

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.interop import huggingface, sources
from tests.helpers.interop_models import golden

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file  # noqa: E402

WORDS = "electra.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def stored():
    return golden("mlm")


@pytest.fixture(scope="module")
def exported(stored, tmp_path_factory):
    out = tmp_path_factory.mktemp("hf") / "out"
    huggingface.write_huggingface(stored, "generator", out, lambda line: None)
    (out / "generator" / "manifest.json").unlink()
    return out / "generator"


@pytest.fixture
def foreign(exported, tmp_path):
    """A directory without our manifest, to change."""
    return shutil.copytree(exported, tmp_path / "foreign")


def save(folder, tensors, name="model.safetensors"):
    save_file(tensors, folder / name)


def read(folder, **options):
    """(model, what was said of it)"""
    lines = []
    model = sources.read(folder, log=lines.append, **options)
    return model, "\n".join(lines)


def same(model, stored):
    assert model.tensors.keys() == stored.tensors.keys()
    for name, array in stored.tensors.items():
        np.testing.assert_array_equal(model.tensors[name], array, err_msg=name)
    assert model.vocab.tokens == stored.vocab.tokens


def test_weights_in_parts(foreign, stored):
    tensors = load_file(foreign / "model.safetensors")
    (foreign / "model.safetensors").unlink()
    parts, names = ("a.safetensors", "b.safetensors"), sorted(tensors)
    places = {name: parts[i % 2] for i, name in enumerate(names)}
    for part in parts:
        save(foreign, {k: tensors[k] for k in names if places[k] == part}, part)
    index = foreign / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    same(read(foreign)[0], stored)
    (foreign / parts[1]).unlink()
    with pytest.raises(UserError, match="b.safetensors is missing") as error:
        read(foreign)
    assert error.value.exit_code == 65


def test_a_vocabulary_that_is_in_tokenizer_json_only(foreign, stored):
    (foreign / "vocab.txt").unlink()
    model, _ = read(foreign)
    same(model, stored)
    assert model.tokenizer_config.equivalent(stored.tokenizer_config)


def test_old_names_and_second_halves(foreign, stored):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    tensors = load_file(foreign / "model.safetensors")
    old = {
        k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for k, array in tensors.items()
    }
    save(foreign, old)
    same(read(foreign)[0], stored)
    half = {k: torch.tensor(array).bfloat16() for k, array in tensors.items()}
    save_torch(half, foreign / "model.safetensors")
    model, _ = read(foreign)
    for name, array in stored.tensors.items():
        rounded = torch.tensor(array).bfloat16().float().numpy()
        np.testing.assert_array_equal(model.tensors[name], rounded)


def test_rows_beyond_the_vocabulary_are_cut_aloud(foreign, stored):
    tensors = load_file(foreign / "model.safetensors")
    tensors[WORDS] = np.pad(tensors[WORDS], [(0, 24), (0, 0)])
    bias = "generator_lm_head.bias"
    tensors[bias] = np.pad(tensors[bias], [(0, 24)])
    save(foreign, tensors)
    config = json.loads((foreign / "config.json").read_text())
    config["vocab_size"] += 24
    (foreign / "config.json").write_text(json.dumps(config))
    model, said = read(foreign)
    same(model, stored)
    assert "left out: 24 rows of the embeddings beyond the 1000 tokens" in said

    # The same with a vocabulary that lies elsewhere.
    (foreign / "tokenizer.json").unlink()
    elsewhere = (foreign / "vocab.txt").rename(foreign.parent / "elsewhere.txt")
    model, said = read(foreign, vocab_file=str(elsewhere))
    same(model, stored)
    assert "left out: 24 rows of the embeddings beyond the 1000 tokens" in said


def test_the_number_of_tokens_is_that_of_the_weights(foreign, stored):
    path = foreign / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"vocab_size": 30522}))
    with pytest.raises(UserError, match="vocab_size is 30522, .* 1000 word embeddings"):
        read(foreign)
    del config["vocab_size"]
    path.write_text(json.dumps(config))
    same(read(foreign)[0], stored)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "int8"])
def test_weights_of_other_types_are_refused(foreign, kind):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = load_file(foreign / "model.safetensors")
    tensors = {k: torch.tensor(v) for k, v in tensors.items()}
    tensors[WORDS] = tensors[WORDS].to(getattr(torch, kind))
    save_file(tensors, foreign / "model.safetensors")
    with pytest.raises(UserError, match=f"{WORDS} has numbers of the type"):
        read(foreign)


@pytest.mark.parametrize("other", ["generator", "encoder"])
def test_two_folders_of_the_same_part_are_refused(tmp_path, other):
    out = tmp_path / "out"
    whole = golden("electra_tiny")
    huggingface.write_huggingface(whole, "discriminator", out, lambda line: None)
    if other == "encoder":
        beside = tmp_path / "beside"
        huggingface.write_huggingface(whole, other, beside, lambda line: None)
        shutil.copytree(beside / other, out / other)
    else:
        shutil.copytree(out / "discriminator", out / other)
    with pytest.raises(UserError, match=f"{other} holds .* is too many"):
        read(out)


def test_other_heads_are_left_out_by_name(foreign, stored):
    tensors = load_file(foreign / "model.safetensors")
    save(foreign, tensors | {"classifier.out_proj.weight": np.ones((2, 32), "f")})
    model, said = read(foreign)
    same(model, stored)
    assert "left out: the head classifier" in said


@pytest.mark.parametrize("more", ["sequence_summary.summary", "classifier.dense"])
def test_heads_of_other_classes_are_left_out_whole(foreign, stored, more):
    tensors = load_file(foreign / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if k.startswith("electra.")}
    for layer in ("classifier", more):
        kept |= {
            f"{layer}.weight": np.ones((1, 32), "f"),
            f"{layer}.bias": np.zeros(1, "f"),
        }
    save(foreign, kept)
    model, said = read(foreign)
    assert all(name.startswith("electra/") for name in model.tensors)
    assert f"left out: the head {more.partition('.')[0]}" in said


def test_what_is_read_is_compared_with_transformers(foreign, monkeypatch):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert "computes what transformers does, max difference" in read(foreign)[1]
    config = json.loads((foreign / "config.json").read_text())
    (foreign / "config.json").write_text(json.dumps(config | {"novelty": 1}))
    monkeypatch.setattr(huggingface, "_peer_installed", lambda: False)
    said = read(foreign)[1]
    assert "not compared" in said and "not understood in config.json: novelty" in said


@pytest.mark.parametrize("wrong", [{"use_cache": "yes"}, {"dtype": []}])
def test_what_transformers_cannot_read_is_not_compared(foreign, wrong):
    """Whatever it fails with: errors of its checks, or of what it does unchecked."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    path = foreign / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    assert "transformers cannot read it" in read(foreign)[1]


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_model_of_which_a_file_is_lost_is_no_other(foreign, tmp_path, lost, is_ours):
    """What is left of it, here the generator, would be a masked language model."""
    whole = tmp_path / "whole"
    for part in ("discriminator", "generator"):
        shutil.copytree(foreign, whole / part)
        if is_ours:
            fields = {"format": huggingface.FORMAT, "files": {}}
            (whole / part / "manifest.json").write_text(json.dumps(fields))
    (whole / "discriminator" / lost).unlink()
    with pytest.raises(UserError, match=f"discriminator/{lost}") as error:
        read(whole)
    assert error.value.exit_code == EXIT_DAMAGED


def test_a_value_out_of_range_is_of_the_file_that_has_it(foreign):
    path = foreign / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 0}))
    with pytest.raises(UserError, match="hidden_size .*config.json is 0") as error:
        read(foreign)
    assert "hparam_overrides" not in str(error.value)


class Dangerous:
    """Runs a program when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickles_are_read_only_when_asked_for_and_only_as_weights(
    foreign, stored, tmp_path
):
    torch = pytest.importorskip("torch")
    tensors = load_file(foreign / "model.safetensors")
    (foreign / "model.safetensors").unlink()
    state = {k: torch.tensor(array) for k, array in tensors.items()}
    torch.save(state, foreign / "pytorch_model.bin")
    with pytest.raises(UserError, match="--allow-pytorch-bin"):
        read(foreign)
    same(read(foreign, allow_pytorch_bin=True)[0], stored)
    state["bad"] = Dangerous(tmp_path / "harm")
    torch.save(state, foreign / "pytorch_model.bin")
    with pytest.raises(UserError, match="as weights alone"):
        read(foreign, allow_pytorch_bin=True)
    assert not (tmp_path / "harm").exists()
