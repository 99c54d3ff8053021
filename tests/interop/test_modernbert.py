# SPDX-License-Identifier: Apache-2.0
"""Models of the modern block in transformers, both ways, run by that library."""

import functools
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import electra_tf
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.interop import checkpoint, huggingface, networks, readers
from electra_tf.interop.checkpoint import StoredModel
from electra_tf.pretrain.pretraining import build_pretrainer
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary
from tests.helpers.cards import run_snippets
from tests.helpers.interop_models import (
    VOCAB,
    change_weights,
    edit_json,
    quiet,
    read,
    refused,
)
from tests.helpers.runs import by_default

# Layers of both kinds, and a window that is shorter than the texts.
SHAPE = {
    "block": "modern",
    "hidden_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "local_window": 8,
    "local_rope_theta": 500.0,
}
LENGTH = 40
# objective, width of the embeddings, what is exported, its class
CASES = [
    ("electra", 16, "discriminator", "ModernBertForTokenClassification"),
    ("electra", 16, "encoder", "ModernBertModel"),
    ("electric", 32, "discriminator", "ModernBertForTokenClassification"),
    ("mlm", 32, "generator", "ModernBertForMaskedLM"),
    ("electra", 8, "generator", "ModernBertForMaskedLM"),
]
each_case = pytest.mark.parametrize(
    "case", by_default(CASES, CASES[:4]), ids=lambda x: f"{x[0]}-{x[2]}"
)


@functools.cache
def stored_of(objective, embedding_size) -> StoredModel:
    """A model with weights that nothing trained."""
    vocab, rng = Vocabulary.load(VOCAB), np.random.default_rng(1)
    hparams = {
        "objective": objective,
        "vocab_size": len(vocab),
        "embedding_size": embedding_size,
        "max_seq_length": LENGTH,
        "model_hparam_overrides": SHAPE,
    }
    config = PretrainingConfig.from_hparams("data", "tiny", hparams)
    tensors = {
        v.path: rng.normal("gamma" in v.path, 0.2, v.shape).astype(np.float32)
        for v in build_pretrainer(config, vocab, at_rest=True).variables
    }
    known = checkpoint.fields_of_hparams(hparams)
    tokenizer = TokenizerConfig(True, True)
    return StoredModel(config, vocab, tokenizer, tensors, {}, 7, "here", known)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A case -> the directory of its network, made once."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")

    @functools.cache
    def export(objective, width, what, _=None):
        folder = tmp_path_factory.mktemp("exported") / "out"
        stored = stored_of(objective, width)
        return huggingface.write_huggingface(stored, what, folder, **quiet) / what

    return export


def batch():
    """Texts longer than the window, the second with padding."""
    ids = np.random.default_rng(2).integers(5, 1000, (2, LENGTH)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[1, 13:] = 0
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def ours_of(folder):
    found = networks.outputs(huggingface.read_network(folder), batch())
    return found


def real(array):
    return np.asarray(array)[batch()["input_mask"] == 1]


def theirs_of(folder, architecture):
    import torch
    import transformers

    model = getattr(transformers, architecture).from_pretrained(str(folder)).eval()
    ids, mask = (torch.tensor(batch()[x]).long() for x in ("input_ids", "input_mask"))
    with torch.no_grad():
        output = model(ids, mask)
        hidden = model.base_model(ids, mask).last_hidden_state
    return hidden.numpy(), output


def assert_close(found, expected):
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(real(found), real(expected), rtol=0, atol=1e-5 * scale)


@each_case
def test_transformers_computes_the_same(exported, case):
    folder, (objective, width, what, architecture) = exported(*case), case
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [architecture]
    # Both layouts, and all ids: a default beyond the vocabulary fails there.
    assert config["global_attn_every_n_layers"] == 3
    assert [kind[0] for kind in config["layer_types"]] == [*"fssfs"]
    bases = {k: v["rope_theta"] for k, v in config["rope_parameters"].items()}
    assert bases == {"full_attention": 160000.0, "sliding_attention": 500.0}
    ids = {key: config[f"{key}_token_id"] for key in ("pad", "cls", "bos", "sep")}
    assert ids == {"pad": 0, "cls": 2, "bos": 2, "sep": 3}, ids
    assert config["eos_token_id"] == 3 and config["max_position_embeddings"] == LENGTH
    [network] = networks.split(stored_of(objective, width), what).values()
    expected = networks.outputs(network, batch())
    hidden, output = theirs_of(folder, architecture)
    assert_close(hidden, expected["hidden"])
    if what == "discriminator":
        assert not output.logits[..., 0].any()
        assert_close(output.logits[..., 1].numpy(), expected["discriminator"])
        shares = output.logits.softmax(-1)[..., 1].numpy()
        assert_close(shares, 1 / (1 + np.exp(-expected["discriminator"])))
    elif what == "generator":
        assert_close(output.logits.numpy(), expected["generator"])
    # Read back, for any further use.
    again = ours_of(folder)
    for name, array in expected.items():
        assert_close(again[name], array)
    hparams = readers.find(folder, **quiet).finetuning_hparams({})
    assert hparams["model_hparam_overrides"]["block"] == "modern"
    found, _ = read(folder.parent)
    shape = network.shape.overrides() | {"max_position_embeddings": LENGTH}
    assert found.config.model_config().overrides() == shape


def test_generator_of_another_width_than_its_embeddings_is_refused(tmp_path):
    with pytest.raises(UserError, match="embeddings 16 wide and states 8 wide.*\n--wh"):
        stored = stored_of("electra", 16)
        huggingface.write_huggingface(stored, "all", tmp_path / "out", **quiet)
    assert not [*tmp_path.iterdir()]


def test_discriminator_and_encoder_are_loaded_as_models(exported):
    discriminator = electra_tf.load(exported(*CASES[0]))
    [tokens] = discriminator.detect(["the old man"])
    assert tokens[0].text == "the" and 0 < tokens[0].probability < 1
    vectors = electra_tf.load(exported(*CASES[1])).encode(["the old man", "a"])
    assert np.shape(vectors)[-1] == 32


@pytest.mark.thorough
def test_snippets_of_the_cards_run(exported, tmp_path):
    folders = [exported(*CASES[i]) for i in (0, 1, 3)]
    printed = run_snippets(tmp_path, [folder / "README.md" for folder in folders])
    assert "'token_str': '" in printed["generator"]
    assert printed["discriminator"].count("('the', 0.") == 2
    assert printed["encoder"].startswith("torch.Size([1, ")


# Models of other programs, as transformers saves them.

FULL, LOCAL = "full_attention", "sliding_attention"
OTHERS = {
    "encoder": ("ModernBertModel", {}),
    "generator": ("ModernBertForMaskedLM", {"global_attn_every_n_layers": 2}),
    "other head": ("ModernBertForTokenClassification", {"num_labels": 3}),
    "all global": (
        "ModernBertModel",
        {"layer_types": [FULL] * 5, "hidden_activation": "relu"},
    ),
}


@pytest.mark.parametrize("kind", by_default(OTHERS, ["encoder", "generator"]))
def test_model_saved_by_transformers_computes_the_same(tmp_path, kind):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    architecture, changes = OTHERS[kind]
    config = transformers.ModernBertConfig(
        vocab_size=1000,
        hidden_size=32,
        intermediate_size=24,
        num_hidden_layers=5,
        num_attention_heads=2,
        local_attention=8,
        pad_token_id=0,
        **changes,
    )
    model = getattr(transformers, architecture)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    model.save_pretrained(tmp_path)
    huggingface.write_tokenizer(
        tmp_path, Vocabulary.load(VOCAB), TokenizerConfig(True, True), LENGTH
    )
    stored, log = read(tmp_path)
    assert "computes what transformers does" in log
    shape = stored.config.model_config()
    assert shape.block == "modern" and shape.local_rope_theta == 10000.0
    [network] = networks.split(stored).values()
    ours = networks.outputs(network, batch())
    hidden, theirs = theirs_of(tmp_path, architecture)
    assert_close(ours["hidden"], hidden)
    if kind == "generator":
        assert_close(ours["generator"], theirs.logits.numpy())
    assert ("left out: the head of" in log) == (kind == "other head")


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("layer_types is", {"layer_types": [LOCAL] + [FULL] * 4}),
        ("layer_types is", {"layer_types": [FULL, LOCAL, FULL, FULL, LOCAL]}),
        ("attention_bias is True", {"attention_bias": True}),
        ("mlp_bias is True", {"mlp_bias": True}),
        ("norm_bias is True", {"norm_bias": True}),
        ("norm_eps is 1e-12", {"norm_eps": 1e-12}),
        ("decoder_bias is False", {"decoder_bias": False}),
        ("classifier_bias is True", {"classifier_bias": True}),
        ("classifier_activation is 'relu'", {"classifier_activation": "relu"}),
        ("silu", {"hidden_activation": "silu"}),
        ("rope_type is 'yarn'", {"rope_parameters": {FULL: {"rope_type": "yarn"}}}),
        ("rope_scaling", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
        ("local_window 7", {"local_attention": 7}),
        ("decoder.weight is not the word", lambda t: t.update(untied(t))),
    ],
)
def test_what_cannot_be_represented_is_refused(exported, tmp_path, text, changes):
    folder = shutil.copytree(exported(*CASES[3]), tmp_path / "copy")
    (folder / "manifest.json").unlink()
    if callable(changes):
        change_weights(folder, changes)
    else:
        edit_json(folder / "config.json", **changes)
    refused(folder, 2, text)


def untied(tensors):
    return {"decoder.weight": tensors["model.embeddings.tok_embeddings.weight"] + 1}


# Other programs and versions.

OLDER = ["transformers==4.57.6", "huggingface-hub==0.36.2", "tokenizers==0.22.2"]
_RUN_OLDER = """
import json, sys, numpy, torch, transformers
assert transformers.__version__ == "4.57.6", transformers.__version__
found = {}
for folder in sys.argv[2:]:
    [name] = json.load(open(f"{folder}/config.json"))["architectures"]
    model = getattr(transformers, name).from_pretrained(folder).eval()
    batch = numpy.load(sys.argv[1])
    ids, mask = (torch.tensor(batch[x]).long() for x in ("input_ids", "input_mask"))
    with torch.no_grad():
        found[f"{folder}/hidden"] = model.base_model(ids, mask).last_hidden_state
        output = model(ids, mask)
    if "logits" in output:
        found[f"{folder}/logits"] = output.logits
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("the old man", "a")
    assert [*tokens] == ["input_ids", "attention_mask"], tokens
numpy.savez(sys.argv[1], **found)
"""


def _install(folder, *packages):
    """A folder for PYTHONPATH, whose packages come before those installed."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--target", folder, *packages], check=True)
    return os.environ | {"PYTHONPATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.slow
def test_older_transformers_computes_the_same(exported, tmp_path):
    folders = [exported(*case) for case in CASES]
    file = tmp_path / "arrays.npz"
    np.savez(file, **batch())
    environment = _install(tmp_path / "older", *OLDER)
    command = [sys.executable, "-c", _RUN_OLDER, file, *folders]
    subprocess.run(command, env=environment, check=True)
    found = np.load(file)
    for folder in folders:
        ours = ours_of(folder)
        assert_close(found[f"{folder}/hidden"], ours["hidden"])
        if "generator" in ours:
            assert_close(found[f"{folder}/logits"], ours["generator"])
        elif "discriminator" in ours:
            assert_close(found[f"{folder}/logits"][..., 1], ours["discriminator"])


_RUN_SENTENCES = """
import sys, numpy, sentence_transformers
model = sentence_transformers.SentenceTransformer(sys.argv[1])
numpy.save(sys.argv[2], model.encode(["the old man", "a"]))
"""


@pytest.mark.slow
def test_sentence_transformers_opens_an_encoder(exported, tmp_path):
    """It averages the states of all tokens where a directory says nothing."""
    folder, file = exported(*CASES[1]), tmp_path / "vectors.npy"
    environment = _install(tmp_path / "packages", "sentence-transformers")
    command = [sys.executable, "-c", _RUN_SENTENCES, folder, file]
    subprocess.run(command, env=environment, check=True)
    vectors = electra_tf.load(folder).encode(["the old man", "a"], "mean")
    np.testing.assert_allclose(np.load(file), vectors, atol=1e-5)
