# SPDX-License-Identifier: Apache-2.0
"""Directories of transformers: written, read, and run by that library itself."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from electra_tf.errors import UserError
from electra_tf.interop import huggingface, networks, readers, verification
from electra_tf.interop.networks import DISCRIMINATOR, GENERATOR
from electra_tf.text.tokenization import Tokenizer, basic_tokenize
from electra_tf.text.vocabulary import SPECIAL_TOKENS, TokenizerConfig, Vocabulary
from tests.helpers.cards import run_snippets
from tests.helpers.interop_models import (
    TEXTS,
    VOCAB,
    assert_equal_tensors,
    assert_same,
    at_masked,
    change_weights,
    edit_json,
    flip_one_bit,
    golden,
    inputs,
    quiet,
    read,
    recorded,
    refused,
)
from tests.helpers.runs import by_default

WORDS = "electra.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """run -> the directory that it was exported to, made once."""
    parent, made = tmp_path_factory.mktemp("exported"), {}

    def make(run, what="all"):
        if (run, what) not in made:
            folder = parent / f"{run}_{what}"
            made[run, what] = huggingface.write_huggingface(
                golden(run), what, folder, **quiet
            )
        return made[run, what]

    return make


@pytest.fixture(scope="module")
def stored():
    return golden("mlm")


@pytest.fixture
def copy(exported, tmp_path):
    """A directory to change."""
    return shutil.copytree(exported("mlm") / "generator", tmp_path / "generator")


@pytest.fixture
def foreign(copy):
    """A directory to change, without a manifest, as of other programs."""
    (copy / "manifest.json").unlink()
    return copy


CASES = [
    ("electra_tiny", "discriminator", "ElectraForPreTraining"),
    ("electra_tiny", "generator", "ElectraForMaskedLM"),
    ("electra_untied_embeddings", "generator", "ElectraForMaskedLM"),
    ("electra_same_emb", "generator", "ElectraForMaskedLM"),
    ("electra_tied_all", "generator", "ElectraForMaskedLM"),
    ("mlm", "generator", "ElectraForMaskedLM"),
    ("uniform", "discriminator", "ElectraForPreTraining"),
    ("electric", "discriminator", "ElectraForPreTraining"),
    ("electra_tiny", "encoder", "ElectraModel"),
]


@pytest.mark.parametrize("case", by_default(CASES, CASES[:2]), ids="-".join)
def test_transformers_computes_the_outputs_of_the_original(exported, case):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    run, what, architecture = case
    whole = run != "electric" and what != "encoder"
    folder = exported(run, "all" if whole else what) / what
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [architecture]
    model, loading = getattr(transformers, architecture).from_pretrained(
        str(folder), output_loading_info=True
    )
    assert not any(loading[k] for k in ("missing_keys", "unexpected_keys"))
    record, discriminator = recorded(run), what != "generator"
    batch = {
        k: torch.tensor(v).long() for k, v in inputs(record, discriminator).items()
    }
    with torch.no_grad():
        output = model.eval()(
            input_ids=batch["input_ids"],
            attention_mask=batch["input_mask"],
            token_type_ids=batch["segment_ids"],
            output_hidden_states=True,
        )
    hidden = record["disc_sequence_output" if discriminator else "gen_sequence_output"]
    close = {"rtol": 1e-5, "atol": 2e-5}
    np.testing.assert_allclose(output.hidden_states[-1].numpy(), hidden, **close)
    if what == "discriminator":
        logits, expected = output.logits.numpy(), record["disc_net_logits"]
        np.testing.assert_allclose(logits, expected, **close)
    elif what == "generator":
        logits = at_masked(record, output.logits.numpy())
        np.testing.assert_allclose(logits, record["mlm_logits"], **close)
    if whole:
        assert_same(read(exported(run))[0], golden(run))


ARCHITECTURES = {
    "ElectraForPreTraining": "discriminator",
    "ElectraForMaskedLM": "generator",
    "ElectraModel": None,
}


@pytest.mark.parametrize(
    "architecture", by_default(ARCHITECTURES, ["ElectraForMaskedLM"])
)
def test_model_saved_by_transformers_computes_the_same(tmp_path, architecture):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.ElectraConfig(
        vocab_size=1000,
        embedding_size=8,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=33,
    )
    ids = torch.randint(0, 1000, (2, 33))
    batch = {
        "input_ids": ids.numpy(),
        "input_mask": np.ones((2, 33), np.int32),
        "segment_ids": np.zeros((2, 33), np.int32),
    }
    model = getattr(transformers, architecture)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
        theirs = model(ids, output_hidden_states=True)
    model.save_pretrained(tmp_path)
    vocab = str(shutil.copyfile(VOCAB, tmp_path / "vocab.txt"))
    (tmp_path / "vocab.txt.json").write_text('{"do_lower_case": true}')
    stored, _ = read(tmp_path, vocab)
    assert stored.config.model_config().num_attention_heads == 3
    [network] = networks.split(stored).values()
    ours = networks.outputs(network, batch)
    hidden = theirs.hidden_states[-1].numpy()
    np.testing.assert_allclose(ours["hidden"], hidden, rtol=1e-5, atol=2e-5)
    if kind := ARCHITECTURES[architecture]:
        logits = theirs.logits.numpy()
        np.testing.assert_allclose(ours[kind], logits, rtol=1e-5, atol=2e-5)


TOKENIZERS = [
    TokenizerConfig(True, True),
    TokenizerConfig(True, False),
    TokenizerConfig(False, False),
]


@pytest.mark.parametrize("config", TOKENIZERS, ids=str)
def test_tokenizer_of_transformers_gives_the_same_ids(tmp_path, config):
    transformers = pytest.importorskip("transformers")
    vocab = Vocabulary.load(VOCAB)
    huggingface.write_tokenizer(tmp_path, vocab, config, 512)
    (tmp_path / "config.json").write_text('{"model_type": "electra"}')
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ours = Tokenizer(vocab, *config)
    for text in TEXTS:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text)
    pair = theirs("a b", "c")
    assert pair["input_ids"][0] == vocab.cls_id
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    assert theirs.mask_token_id == vocab.mask_id and theirs.model_max_length == 512


@pytest.mark.thorough
def test_snippets_of_the_cards_run(exported, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folders = [exported("electra_tiny") / name for name in (DISCRIMINATOR, GENERATOR)]
    folders.append(exported("electra_tiny", "encoder") / "encoder")
    printed = run_snippets(tmp_path, [folder / "README.md" for folder in folders])
    assert "'token_str': '" in printed["generator"]
    # The text has this word twice.
    assert printed["discriminator"].count("('the', 0.") == 2
    assert printed["encoder"].startswith("torch.Size([1, ")


def test_export_that_computes_something_else_is_discarded(
    stored, tmp_path, monkeypatch
):
    table = networks.weight_names

    def swap(name):
        return name.replace("query", "?").replace("key", "query").replace("?", "key")

    def wrong(layers):
        # Query and key change places when written and not when read.
        monkeypatch.setattr(networks, "weight_names", table)
        return [e._replace(huggingface=swap(e.huggingface)) for e in table(layers)]

    monkeypatch.setattr(networks, "weight_names", wrong)
    with pytest.raises(UserError, match="differs by"):
        huggingface.write_huggingface(stored, "all", tmp_path / "o", **quiet)
    assert list(tmp_path.iterdir()) == []


# Damaged directories.


def test_flipped_bits_are_found_by_checksums(copy):
    rng = np.random.default_rng(1)
    for file in sorted(copy.iterdir()):
        if file.name not in ("manifest.json", "README.md"):
            data = flip_one_bit(file, rng)
            refused(copy, 65, file.name, "checksum")
            file.write_bytes(data)
    (copy / "README.md").write_text("Cards may be edited.")
    assert "README.md has" in read(copy)[1]


def test_truncated_weights_are_refused_without_checksums_too(foreign):
    weights = foreign / "model.safetensors"
    data = weights.read_bytes()
    for size in (0, 7, 100, -1):
        weights.write_bytes(data[:size])
        refused(foreign, 65, "model.safetensors")


ONE = np.zeros(1, np.float32)


@pytest.mark.parametrize(
    ("code", "text", "change"),
    [
        (65, "electra.nonsense", lambda t: t.update({"electra.nonsense": ONE})),
        (
            65,
            f"{WORDS} has numbers",
            lambda t: t.update({WORDS: t[WORDS].astype("i1")}),
        ),
        (
            2,
            "lm_head.wei",
            lambda t: t.update({"generator_lm_head.weight": t[WORDS] + 1}),
        ),
    ],
)
def test_wrong_weights_are_refused(foreign, code, text, change):
    change_weights(foreign, change)
    refused(foreign, code, text)


@pytest.mark.parametrize(
    ("code", "text", "changes"),
    [
        (2, "'bert'", {"model_type": "bert"}),
        (2, "layer_norm_eps", {"layer_norm_eps": 1e-5}),
        (2, "silu", {"hidden_act": "silu"}),
        (2, "ElectraForMaskedLM always has gelu", {"hidden_act": "relu"}),
        (2, "is_decoder is True", {"is_decoder": True}),
        (2, "position_embedding_type", {"position_embedding_type": "relative_key"}),
        (2, "hidden_size", {"hidden_size": "wide"}),
        (2, "config.json is 0", {"hidden_size": 0}),
        (65, "its place has", {"hidden_size": 64}),
        (65, "layer_2", {"num_hidden_layers": 3}),
        (65, "its place has", {"embedding_size": 8}),
    ],
)
def test_config_that_does_not_fit_is_refused(foreign, code, text, changes):
    edit_json(foreign / "config.json", **changes)
    refused(foreign, code, text)


# Directories as other programs save them.


def test_second_copy_of_tied_weights_and_missing_vocab_size(foreign, stored):
    change_weights(foreign, lambda t: t.update({"generator_lm_head.weight": t[WORDS]}))
    config = json.loads((foreign / "config.json").read_text())
    del config["vocab_size"]
    (foreign / "config.json").write_text(json.dumps(config))
    assert_same(read(foreign)[0], stored)


def test_weights_in_parts_are_refused(foreign):
    weights = foreign / "model.safetensors"
    weights.rename(foreign / "model-00001-of-00002.safetensors")
    (foreign / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    refused(foreign, 65, "is missing", "from one file of safetensors")


def test_vocabulary_in_tokenizer_json_only(foreign, stored):
    (foreign / "vocab.txt").unlink()
    model, _ = read(foreign)
    assert_same(model, stored)
    assert model.tokenizer_config.equivalent(stored.tokenizer_config)


def test_half_precision(foreign, stored):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file as save_torch

    tensors = load_file(foreign / "model.safetensors")
    half = {k: torch.tensor(array).bfloat16() for k, array in tensors.items()}
    save_torch(half, foreign / "model.safetensors")
    rounded = {
        name: torch.tensor(array).bfloat16().float().numpy()
        for name, array in stored.tensors.items()
    }
    assert_equal_tensors(read(foreign)[0].tensors, rounded)


@pytest.mark.parametrize(
    "head", ["classifier.out_proj", "qa_outputs", "classifier.dense"]
)
def test_other_heads_are_left_out(foreign, head):
    def with_head(tensors):
        for name in [n for n in tensors if not n.startswith("electra.")]:
            del tensors[name]
        for layer in ("classifier", head):
            tensors[f"{layer}.weight"] = np.ones((1, 32), "f")
            tensors[f"{layer}.bias"] = np.zeros(1, "f")

    change_weights(foreign, with_head)
    model, log = read(foreign)
    assert all(name.startswith("electra/") for name in model.tensors)
    assert f"left out: the head {head.partition('.')[0]}" in log


def test_foreign_model_is_compared_with_transformers(foreign):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert "computes what transformers does, max difference" in read(foreign)[1]
    edit_json(foreign / "config.json", use_cache="yes")
    assert "transformers cannot read it" in read(foreign)[1]


def test_coarse_weights_are_compared_by_the_error_of_float32(foreign, monkeypatch):
    """Where float32 gives another result than float64, so does another program."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    rng = np.random.default_rng(0)

    def coarse(tensors):
        for name, array in tensors.items():
            if array.ndim == 2:
                tensors[name] = rng.normal(0, 0.7, array.shape).astype(np.float32)

    change_weights(foreign, coarse)
    log = read(foreign)[1]
    gap = float(log.rpartition("max difference ")[2].split(".\n")[0].rstrip("."))
    assert gap > verification.TOLERANCE, log
    # Another activation is another computation: refused if it is to be exported.
    original = networks.outputs

    def wrong(network, batch):
        shape = dataclasses.replace(network.shape, hidden_act="gelu_tanh")
        return original(network._replace(shape=shape), batch)

    monkeypatch.setattr(networks, "outputs", wrong)
    refused(foreign, 65, "hidden differs by", "transformers")
    lines = []
    readers.find(foreign, **quiet).tensors(lines.append)
    assert any("hidden differs by" in line for line in lines)


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_half_a_model_is_refused(copy, tmp_path, lost):
    """The generator alone would pass as a masked language model."""
    whole = tmp_path / "whole"
    for part in ("discriminator", "generator"):
        shutil.copytree(copy, whole / part)
    (whole / "discriminator" / lost).unlink()
    refused(whole, 65, f"discriminator/{lost}")
    for part in ("discriminator", "generator"):  # as of other programs
        (whole / part / "manifest.json").unlink()
    refused(whole, 65, f"discriminator/{lost}")


def test_one_of_two_folders_may_lack_a_vocabulary(exported, tmp_path):
    for lost in ("discriminator", "generator"):
        whole = shutil.copytree(exported("electra_tiny"), tmp_path / lost)
        for part in ("discriminator", "generator"):
            (whole / part / "manifest.json").unlink()
        for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
            (whole / lost / name).unlink()
        assert_same(read(whole)[0], golden("electra_tiny"))
        change = {"do_lower_case": False, "strip_accents": False}
        write_tokenizer(whole / lost, TOKENIZERS[2], **change)
        refused(whole, 2, "another vocabulary", vocab_file=None)


class Dangerous:
    """Runs a program when it is loaded."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_pickles_are_read_only_on_request_and_only_as_weights(
    foreign, stored, tmp_path
):
    torch = pytest.importorskip("torch")
    tensors = load_file(foreign / "model.safetensors")
    (foreign / "model.safetensors").unlink()
    state = {k: torch.tensor(array) for k, array in tensors.items()}
    pickled = foreign / "pytorch_model.bin"
    torch.save(state, pickled)
    refused(foreign, 2, "pickle", "--allow-pytorch-bin")
    refused(pickled, 2, "pickle", "safetensors")
    assert_same(read(foreign, allow_pytorch_bin=True)[0], stored)
    state["bad"] = Dangerous(tmp_path / "harm")
    torch.save(state, pickled)
    with pytest.raises(UserError, match="as weights alone"):
        read(foreign, allow_pytorch_bin=True)
    assert not (tmp_path / "harm").exists()


# The tokenizer's files: as transformers loads them, and foreign ones.

FEW_TOKENS = Vocabulary((*SPECIAL_TOKENS, "x", "##x"))
# The package tokenizers decomposes it differently from Python.
KNOWN = {"\U00011938"}


def write_tokenizer(folder, config=TOKENIZERS[0], **changes):
    huggingface.write_tokenizer(folder, FEW_TOKENS, config, 128)
    (folder / "config.json").write_text('{"model_type": "electra"}')
    edit_json(folder / "tokenizer_config.json", **changes)


@pytest.mark.parametrize("config", by_default(TOKENIZERS, TOKENIZERS[:1]), ids=str)
def test_every_character_is_split_as_transformers_does(tmp_path, config):
    transformers = pytest.importorskip("transformers")
    write_tokenizer(tmp_path, config)
    loaded = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert loaded.encode("x" * 200, add_special_tokens=False) == [5] + [6] * 199
    assert loaded.encode("x" * 201, add_special_tokens=False) == [FEW_TOKENS.unk_id]
    assert "token_type_ids" in loaded("x", "x")
    theirs = loaded.backend_tokenizer
    surrogates = range(0xD800, 0xE000)
    chars = [chr(c) for c in range(0x110000) if c not in surrogates]

    def differing(chars):
        """Compares many at a time, and those that differ one by one."""
        text = " ".join(f"x{c}x" for c in chars)
        normal = theirs.normalizer.normalize_str(text)
        words = [w for w, _ in theirs.pre_tokenizer.pre_tokenize_str(normal)]
        if words == basic_tokenize(text, config):
            return set()
        half = len(chars) // 2
        return differing(chars[:half]) | differing(chars[half:]) if half else {*chars}

    found = [differing(chars[i : i + 2048]) for i in range(0, len(chars), 2048)]
    assert set.union(*found) == (KNOWN if config == TOKENIZERS[0] else set())


@pytest.mark.parametrize("config", TOKENIZERS, ids=str)
def test_settings_are_read_back_from_either_file(tmp_path, config):
    write_tokenizer(tmp_path, config)
    for name in ("vocab.txt", "tokenizer_config.json"):
        read, file = huggingface.read_tokenizer(tmp_path)
        assert (
            read.equivalent(config)
            and Vocabulary.load(file).tokens == FEW_TOKENS.tokens
        )
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    "changes, text",
    [
        ({"strip_accents": True, "do_lower_case": False}, "strip_accents is true"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars is False"),
        ({"tokenizer_class": "XLNetTokenizer"}, "'XLNetTokenizer'.*\n.*write 'Elec"),
        ({"cls_token": "<s>"}, "cls_token is '<s>'"),
        ({"do_lower_case": False, "strip_accents": None}, "says cased"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize is False"),
        ({"never_split": ["[CLS]", "x"]}, "never_split has 'x'.*\n.*remove it from"),
    ],
)
def test_settings_of_other_tokenizers_are_refused(tmp_path, changes, text):
    write_tokenizer(tmp_path, **({"tokenizer_class": "ElectraTokenizer"} | changes))
    with pytest.raises(UserError, match=text):
        huggingface.read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{"never_split": [*SPECIAL_TOKENS]}, {"tokenizer_class": "AutoTokenizer"}],
    ids=str,
)
def test_settings_of_older_versions_are_read(tmp_path, changes):
    write_tokenizer(
        tmp_path, TOKENIZERS[2], **({"tokenizer_class": "BertTokenizer"} | changes)
    )
    assert huggingface.read_tokenizer(tmp_path)[0] == TOKENIZERS[2]


def test_settings_without_a_casing_are_none(tmp_path):
    """Not the default of transformers, which lower-cases: see `check_casing`."""
    for content in ({}, {"init_inputs": [], "model_max_length": 128}):
        write_tokenizer(tmp_path)
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
        assert huggingface.read_tokenizer(tmp_path)[0] is None


def test_two_vocabularies_that_differ_are_refused(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "y", "##x"]))
    with pytest.raises(UserError, match="another vocabulary"):
        huggingface.read_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "name, content",
    [
        ("added_tokens.json", {"<user>": 7}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"7": {"content": "<x>"}}}),
        ("tokenizer_config.json", {"additional_special_tokens": ["[user]"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"image_token": "<x>"}}),
        ("special_tokens_map.json", {"additional_special_tokens": [{"content": "x"}]}),
    ],
)
def test_added_tokens_are_refused_in_every_file(tmp_path, name, content):
    known = {"5": {"content": "[CLS]", "special": True}}
    write_tokenizer(tmp_path, added_tokens_decoder=known)
    (tmp_path / "tokenizer.json").unlink()
    assert huggingface.read_tokenizer(tmp_path)[0] == TokenizerConfig()
    path = tmp_path / name
    usual = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(usual | content))
    with pytest.raises(UserError, match=f"{name}: its added token"):
        huggingface.read_tokenizer(tmp_path)
