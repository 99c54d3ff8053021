# SPDX-License-Identifier: Apache-2.0
"""Directories of transformers: written, read, and run by that library itself."""

import json
import shutil

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.interop import huggingface, huggingface_tokenizer, networks, sources
from electra_tf.interop.networks import DISCRIMINATOR, GENERATOR
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary
from tests.helpers.cards import run_snippets
from tests.helpers.interop_models import (
    VOCAB,
    at_masked,
    golden,
    inputs,
    recorded,
    strings,
)

pytest.importorskip("safetensors")
from safetensors.numpy import load_file, save_file  # noqa: E402

quiet = {"log": lambda line: None}


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


@pytest.fixture
def copy(exported, tmp_path):
    """A directory to damage."""
    return shutil.copytree(exported("mlm") / "generator", tmp_path / "generator")


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


@pytest.mark.parametrize("run, what, architecture", CASES)
def test_transformers_computes_what_the_original_recorded(
    exported, run, what, architecture
):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    whole = run != "electric" and what != "encoder"
    folder = exported(run, "all" if whole else what) / what
    assert json.loads((folder / "config.json").read_text())["architectures"] == [
        architecture
    ]
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


@pytest.mark.parametrize(
    "run",
    [
        "electra_tiny",
        "electra_untied_embeddings",
        "electra_same_emb",
        "electra_tied_all",
        "mlm",
        "uniform",
    ],
)
def test_out_and_in_again_is_the_identity(exported, run):
    stored = golden(run)
    again = sources.read(exported(run), **quiet)
    assert again.tensors.keys() == stored.tensors.keys()
    for name, array in stored.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array, err_msg=name)
    assert again.config.model_config() == stored.config.model_config()
    assert again.vocab.tokens == stored.vocab.tokens
    if stored.config.uses_generator_config:
        assert again.config.generator_config() == stored.config.generator_config()


def test_networks_with_embeddings_of_their_own_stay_as_they_are(exported, tmp_path):
    """As after `embedding_sharing` disentangled, or of two runs; the log says so."""
    shutil.copytree(exported("electra_tiny"), tmp_path / "both")
    path = tmp_path / "both" / "generator" / huggingface.WEIGHTS
    weights = load_file(path)
    name = "electra.embeddings.word_embeddings.weight"
    save_file(weights | {name: weights[name] + 1}, path)
    (path.parent / "manifest.json").unlink()
    for folder, said in ((exported("electra_tiny"), 0), (tmp_path / "both", 1)):
        lines = []
        found = networks.split(sources.read(folder, log=lines.append))
        assert sum("embeddings of their own" in line for line in lines) == said
        for part, network in found.items():
            expected = huggingface.read_network(folder / part).tensors
            assert network.tensors.keys() == expected.keys()
            for key, array in expected.items():
                np.testing.assert_array_equal(network.tensors[key], array)


def test_a_model_that_transformers_wrote_is_read(tmp_path):
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
    for cls, kind in (
        (transformers.ElectraForPreTraining, "discriminator"),
        (transformers.ElectraForMaskedLM, "generator"),
        (transformers.ElectraModel, None),
    ):
        model = cls(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0, 0.2)
            theirs = model(ids, output_hidden_states=True)
        folder = tmp_path / cls.__name__
        model.save_pretrained(folder)
        stored = sources.read(folder, VOCAB, **quiet)
        assert stored.config.model_config().num_attention_heads == 3
        [network] = networks.split(stored).values()
        [ours] = networks.outputs([network], batch)
        hidden = theirs.hidden_states[-1].numpy()
        np.testing.assert_allclose(ours["hidden"], hidden, rtol=1e-5, atol=2e-5)
        if kind:
            logits = theirs.logits.numpy()
            np.testing.assert_allclose(ours[kind], logits, rtol=1e-5, atol=2e-5)


TOKENIZERS = [
    TokenizerConfig(True, True),
    TokenizerConfig(True, False),
    TokenizerConfig(False, True),
]


@pytest.mark.parametrize("config", TOKENIZERS, ids=str)
def test_the_tokenizer_gives_the_same_ids(tmp_path, config):
    transformers = pytest.importorskip("transformers")
    vocab = Vocabulary.load(VOCAB)
    huggingface_tokenizer.write_tokenizer(tmp_path, vocab, config, 512)
    (tmp_path / "config.json").write_text('{"model_type": "electra"}')
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ours = Tokenizer(vocab, *config)
    texts = strings() + ["Café Über naïve DON'T x" + "a" * 90]
    assert len(texts) > 1000
    for text in texts:
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours.encode(text)
    pair = theirs("a b", "c")
    assert pair["input_ids"][0] == vocab.cls_id
    assert pair["token_type_ids"] == [0, 0, 0, 0, 1, 1]
    assert theirs.mask_token_id == vocab.mask_id and theirs.model_max_length == 512
    read, file = huggingface_tokenizer.read(tmp_path)
    assert read.equivalent(config) and file == str(tmp_path / "vocab.txt")


def test_the_manifest_says_how_it_was_verified(exported):
    content = json.loads(
        (exported("electra_tiny") / "generator" / "manifest.json").read_text()
    )
    checks = content["verification"]
    assert {c["quantity"] for c in checks} == {"hidden", "generator"}
    assert {"electra_tf"} <= {c["read_by"] for c in checks}
    assert content["max_difference"] == max(c["difference"] for c in checks) < 1e-4
    assert {"model.safetensors", "config.json", "README.md"} <= set(content["files"])


def test_the_snippets_of_the_cards_run(exported, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    folders = [exported("electra_tiny") / name for name in (DISCRIMINATOR, GENERATOR)]
    folders.append(exported("electra_tiny", "encoder") / "encoder")
    printed = run_snippets(tmp_path, [folder / "README.md" for folder in folders])
    assert "'token_str': '" in printed["generator"]
    # The text has this word twice.
    assert printed["discriminator"].count("('the', 0.") == 2
    assert printed["encoder"].startswith("torch.Size([1, ")


def test_two_towers_are_refused_unless_left_out(tmp_path):
    with pytest.raises(UserError, match="two-tower generator"):
        huggingface.write_huggingface(
            golden("electric"), "all", tmp_path / "o", **quiet
        )
    assert not (tmp_path / "o").exists()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("dear")
    with pytest.raises(UserError, match="in use"):
        huggingface.write_huggingface(golden("mlm"), "all", tmp_path, **quiet)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_an_export_that_computes_something_else_is_not_put_in_place(
    tmp_path, monkeypatch
):
    table = huggingface.name_table

    def wrong(layers):
        # Query and key change places when written and not when read.
        def swap(name):
            return (
                name.replace("query", "?").replace("key", "query").replace("?", "key")
            )

        monkeypatch.setattr(huggingface, "name_table", table)
        return [e._replace(theirs=swap(e.theirs)) for e in table(layers)]

    monkeypatch.setattr(huggingface, "name_table", wrong)
    with pytest.raises(UserError, match="differs by"):
        huggingface.write_huggingface(golden("mlm"), "all", tmp_path / "o", **quiet)
    assert list(tmp_path.iterdir()) == []


# Damaged and foreign directories.


def refused(folder, code, *texts):
    with pytest.raises(UserError) as error:
        sources.read(folder, VOCAB, **quiet)
    message = str(error.value)
    assert error.value.exit_code == code, message
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message


def test_flipped_bits_are_found_by_the_checksums(copy):
    rng = np.random.default_rng(1)
    for file in sorted(copy.iterdir()):
        if file.name in ("manifest.json", "README.md"):
            continue
        data = file.read_bytes()
        flipped = bytearray(data)
        flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        refused(copy, 65, file.name, "checksum")
        file.write_bytes(data)
    sources.read(copy, **quiet)


def test_a_card_may_be_edited(copy):
    lines = []
    (copy / "README.md").write_text("Mine.")
    sources.read(copy, log=lines.append)
    assert any("README.md is not what was written" in line for line in lines)


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_truncated_weights_are_refused_without_checksums_too(copy, size):
    (copy / "manifest.json").unlink()
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    refused(copy, 65, "model.safetensors")


def changed(copy, change):
    (copy / "manifest.json").unlink()
    tensors = load_file(copy / "model.safetensors")
    change(tensors)
    save_file(tensors, copy / "model.safetensors")


@pytest.mark.parametrize(
    "texts, change",
    [
        (("query/kernel is missing",), lambda t: t.pop(QUERY)),
        (("electra.nonsense",), lambda t: t.update({"electra.nonsense": ONE})),
        (("has shape [3]",), lambda t: t.update({BIAS: np.zeros(3, np.float32)})),
        (("not finite",), lambda t: t.update({BIAS: np.full(32, np.inf)})),
    ],
)
def test_incomplete_weights_are_refused(copy, texts, change):
    changed(copy, change)
    refused(copy, 65, *texts)


QUERY = "electra.encoder.layer.0.attention.self.query.weight"
BIAS = "electra.encoder.layer.0.attention.self.query.bias"
WORDS = "electra.embeddings.word_embeddings.weight"
ONE = np.zeros(1, np.float32)


def test_a_second_copy_of_tied_weights_must_be_equal(copy):
    changed(copy, lambda t: t.update({"generator_lm_head.weight": t[WORDS]}))
    sources.read(copy, **quiet)
    (copy / "manifest.json").touch()
    changed(copy, lambda t: t.update({"generator_lm_head.weight": t[WORDS] + 1}))
    refused(copy, 2, "generator_lm_head.weight")


def edit(copy, **changes):
    (copy / "manifest.json").unlink()
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    "code, text, changes",
    [
        (2, "'bert'", {"model_type": "bert"}),
        (2, "layer_norm_eps", {"layer_norm_eps": 1e-5}),
        (2, "silu", {"hidden_act": "silu"}),
        (2, "ElectraForMaskedLM always has gelu", {"hidden_act": "relu"}),
        (2, "is_decoder is True", {"is_decoder": True}),
        (2, "position_embedding_type", {"position_embedding_type": "relative_key"}),
        (65, "hidden_size", {"hidden_size": "wide"}),
        (2, "hidden_size is 32", {"hidden_size": 64}),
        (2, "num_hidden_layers is 2", {"num_hidden_layers": 3}),
        (2, "vocab", {"embedding_size": 8}),
    ],
)
def test_a_config_that_does_not_fit_is_refused(copy, code, text, changes):
    if text == "vocab":
        text = "embedding_size is 16"
    edit(copy, **changes)
    refused(copy, code, text)


def test_pickles_are_refused(copy, tmp_path):
    (copy / "manifest.json").unlink()
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    refused(copy, 2, "pickle", "safetensors")
    refused(copy / "pytorch_model.bin", 2, "pickle", "safetensors")
    disguised = tmp_path / "weights"
    disguised.write_bytes(b"\x80\x02}q\x00.")
    refused(disguised, 2, "pickle")


def test_a_vocabulary_that_does_not_fit_is_refused(copy, tmp_path):
    lines = (copy / "vocab.txt").read_text().splitlines()
    (tmp_path / "short.txt").write_text("\n".join(lines[:-1]) + "\n")
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*lines[:-2], *lines[:-3:-1]]) + "\n")
    for path in (tmp_path / "short.txt", other):
        with pytest.raises(UserError, match="was trained with another vocabulary"):
            sources.read(copy, str(path), **quiet)
