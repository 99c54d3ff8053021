# SPDX-License-Identifier: Apache-2.0
"""Original checkpoints, read and written."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.original import translated
from electra_tf.errors import UserError
from electra_tf.interop import networks, sources, tf1
from electra_tf.text.vocabulary import TokenizerConfig
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.interop_models import (
    RUNS,
    VOCAB,
    at_masked,
    golden,
    heads_of,
    inputs,
    prefix_of,
    recorded,
)
from tests.helpers.runs import by_default

quiet = {"log": lambda line: None}


@pytest.mark.parametrize("run", RUNS)
def test_the_shape_is_read_from_the_weights(run):
    config = translated(json.loads((tf_config(run)).read_text())["hparams"])
    found = golden(run).config
    shape = found.model_config()
    for name, value in config["model_hparam_overrides"].items():
        if not name.endswith("dropout_prob"):
            assert getattr(shape, name) == value, name
    for name in (
        "embedding_size",
        "vocab_size",
        "generator_hidden_size",
        "objective",
        "generator",
        "embedding_sharing",
        "generator_layers",
    ):
        if name in config:
            assert getattr(found, name) == config[name], name


def tf_config(run):
    return (Path(prefix_of(run))).parent / "config.json"


@pytest.mark.parametrize("run", RUNS)
def test_networks_compute_what_the_original_recorded(run):
    stored, record = golden(run), recorded(run)
    what = "discriminator" if run == "electric" else "all"
    found = networks.split(stored, what)
    assert set(found) == {
        "electric": {"discriminator"},
        "mlm": {"generator"},
        "uniform": {"discriminator"},
    }.get(run, {"discriminator", "generator"})
    for name, network in found.items():
        is_discriminator = name == "discriminator"
        [computed] = networks.outputs(
            [network], inputs(record, corrupted=is_discriminator)
        )
        hidden = record[
            "disc_sequence_output" if is_discriminator else "gen_sequence_output"
        ]
        np.testing.assert_allclose(computed["hidden"], hidden, rtol=1e-5, atol=2e-5)
        if is_discriminator:
            ours, theirs = computed[name], record["disc_net_logits"]
        else:
            ours, theirs = at_masked(record, computed[name]), record["mlm_logits"]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


# Two towers stand for themselves nowhere else.
@pytest.mark.parametrize("run", [run for run in RUNS if run != "electric"])
def test_taking_networks_apart_and_joining_them_is_the_identity(run):
    stored = golden(run)
    joined = networks.join(networks.split(stored), run)
    assert joined.keys() == stored.tensors.keys()
    for name, array in stored.tensors.items():
        np.testing.assert_array_equal(joined[name], array, err_msg=name)


@pytest.mark.parametrize("run", ["electra_tiny", "electric", "mlm", "uniform"])
def test_what_is_written_is_read_back_bit_by_bit(run, tmp_path):
    stored = golden(run)
    tf1.write_tf1(stored, "all", tmp_path / "out", **quiet)
    again = sources.read(tmp_path / "out", **quiet)
    assert again.tensors.keys() == stored.tensors.keys()
    for name, array in stored.tensors.items():
        np.testing.assert_array_equal(again.tensors[name], array)
    assert again.config.model_config() == stored.config.model_config()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["format"] == "tf1" and manifest["max_difference"] == 0
    assert not list(tmp_path.glob(".*"))


def test_slots_and_step_survive(tmp_path):
    stored = golden("electra_untied_embeddings", "after3.ckpt")
    assert stored.step == 3
    assert set(stored.slots) == {
        f"{name}/{slot}" for name in stored.tensors for slot in ("adam_m", "adam_v")
    }
    out = tf1.write_tf1(stored, "all", tmp_path / "out", **quiet)
    reader = tf.train.load_checkpoint(str(out / "model.ckpt-3"))
    source = tf.train.load_checkpoint(
        prefix_of("electra_untied_embeddings", "after3.ckpt")
    )
    shapes = reader.get_variable_to_shape_map()
    assert shapes == source.get_variable_to_shape_map()
    for name in shapes:
        np.testing.assert_array_equal(reader.get_tensor(name), source.get_tensor(name))
    assert reader.get_variable_to_dtype_map()["global_step"] == tf.int64
    assert tf.train.latest_checkpoint(str(out)) == str(out / "model.ckpt-3")


def test_a_graph_of_the_originals_kind_restores_it(tmp_path):
    """As TensorFlow 1 does: a Saver over variables of these names in a graph."""
    stored = golden("electra_untied_embeddings", "after3.ckpt")
    out = tf1.write_tf1(stored, "all", tmp_path / "out", **quiet)
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        named = {**stored.tensors, **stored.slots}
        variables = {
            name: v1.get_variable(name, array.shape, use_resource=False)
            for name, array in named.items()
        }
        step = v1.train.get_or_create_global_step()
        v1.train.Saver().restore(session, str(out / "model.ckpt-3"))
        assert session.run(step) == 3
        for name, value in session.run(variables).items():
            np.testing.assert_array_equal(value, named[name])


def shaped(stored, **overrides):
    """The same weights as of a model with other hparams that no weight shows."""
    before = stored.config.model_hparam_overrides
    changed = {"model_hparam_overrides": before | overrides}
    config = dataclasses.replace(stored.config, **changed)
    return stored._replace(config=config, known={**stored.known, **changed})


ORIGINALS = {  # what differs -> what the original must be told, what it cannot do
    "nothing": ({"num_attention_heads": 1}, {}, []),
    "heads": ({"num_attention_heads": 4}, {"num_attention_heads": 4}, []),
    "relu": (
        {"num_attention_heads": 1, "hidden_act": "relu"},
        {"hidden_act": "relu"},
        [],
    ),
    "gelu": (
        {"num_attention_heads": 1, "hidden_act": "gelu_tanh"},
        {},
        ["hidden_act is gelu_tanh"],
    ),
    "accents": ({"num_attention_heads": 1}, {}, ["strips accents"]),
}


@pytest.mark.parametrize("name", by_default(ORIGINALS, ["heads", "accents"]))
def test_what_the_original_cannot_know_is_said(name, tmp_path):
    overrides, told, cannot = ORIGINALS[name]
    stored = shaped(golden("electra_tiny"), **overrides)
    if name == "accents":
        config = TokenizerConfig(do_lower_case=True, strip_accents=False)
        stored = stored._replace(tokenizer_config=config)
    said = []
    out = tf1.write_tf1(stored, "all", tmp_path / "out", said.append)
    facts = json.loads((out / "manifest.json").read_text())["original"]
    assert facts["model_hparam_overrides"] == told
    assert len(facts["cannot"]) == len(cannot)
    for reason, part in zip(facts["cannot"], cannot, strict=True):
        assert part in reason and any(reason in line for line in said)
        assert any("electra_tf alone" in line for line in said)
    hint = [line for line in said if "model_hparam_overrides" in line]
    assert len(hint) == bool(told)
    assert all(json.dumps(told) in line for line in hint)
    again = sources.read(out, **quiet)
    assert again.config.model_config() == stored.config.model_config()
    assert again.tokenizer_config.equivalent(stored.tokenizer_config)


def test_objectives_that_the_original_does_not_have_are_named(tmp_path):
    for variant, part in (
        ("unigram", "unigram generator"),
        ("electra_sentence", "objective electra_sentence"),
        ("disentangled", "embedding_sharing disentangled"),
        ("electra", None),
        ("electric", None),
    ):
        model_dir = write_run(tmp_path / variant, tiny_source(variant))
        said = []
        stored = sources.read(model_dir, **quiet)
        tf1.write_tf1(stored, "all", tmp_path / f"{variant}_out", said.append)
        found = [line for line in said if "electra_tf alone" in line]
        assert len(found) == bool(part)
        assert part is None or part in found[0]


# Refusals: what, where, what to do, in three lines.


def refused(code, *texts, path, vocab=VOCAB, hparams=None):
    with pytest.raises(UserError) as error:
        sources.read(path, vocab, hparams, **quiet)
    message = str(error.value)
    assert error.value.exit_code == code, message
    assert len(message.splitlines()) <= 3
    for text in texts:
        assert text in message
    return message


@pytest.mark.parametrize(
    "hparams, texts",
    [
        ({"embedding_size": 17}, ("embedding_size is 16", "17")),
        (
            {"model_hparam_overrides": {"hidden_size": 128}},
            ("hidden_size is 64", "128"),
        ),
        ({"model_size": "base"}, ("hidden_size is 64", "768", "'base'")),
        (
            {"generator_hidden_size": 0.25},
            ("hidden_size is 32", "generator_hidden_size 0.25"),
        ),
        (
            {"untied_generator_embeddings": True},
            ("embedding_sharing is shared", "untied"),
        ),
        ({"electra_objective": False}, ("objective is electra", "mlm")),
    ],
)
def test_a_hparam_that_disagrees_is_an_error_naming_both(hparams, texts):
    refused(2, *texts, path=prefix_of("electra_tiny"), hparams=hparams)


def test_the_vocabulary_must_fit(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    path = prefix_of("electra_tiny")
    refused(
        2, "1000 word embeddings", "6 tokens", path=path, vocab=tmp_path / "vocab.txt"
    )
    refused(2, "--vocab-file", path=path, vocab=None)


@pytest.fixture
def copy(tmp_path):
    """A checkpoint to damage: its prefix."""
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(prefix_of("mlm") + suffix, tmp_path / f"model.ckpt-1{suffix}")
    return tmp_path / "model.ckpt-1"


@pytest.mark.parametrize("suffix", [".index", ".data-00000-of-00001"])
def test_truncated_files_are_refused(copy, suffix):
    file = copy.with_name(copy.name + suffix)
    data = file.read_bytes()
    for size in (0, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:size])
        refused(65, copy.name, path=copy)


def test_flipped_bits_are_refused(copy):
    heads = {"model_hparam_overrides": heads_of("mlm")}
    rng = np.random.default_rng(0)
    file = copy.with_name(copy.name + ".data-00000-of-00001")
    data = file.read_bytes()
    for _ in range(20):
        flipped = bytearray(data)
        flipped[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        refused(65, copy.name, path=copy, hparams=heads)


def test_a_missing_file_is_named(copy):
    copy.with_name(copy.name + ".data-00000-of-00001").unlink()
    refused(65, "model.ckpt-1", path=copy)
    copy.with_name(copy.name + ".index").unlink()
    refused(2, "model.ckpt-1", path=copy)


def rewritten(tmp_path, change):
    stored = golden("mlm")
    tensors = dict(stored.tensors)
    change(tensors)
    prefix = tmp_path / "model.ckpt-0"
    tf1.save_tensors(prefix, stored._replace(tensors=tensors))
    return prefix


@pytest.mark.parametrize(
    "code, text, change",
    [
        (65, "key/bias is missing", lambda t: t.pop(KEY)),
        (65, "extra is unexpected", lambda t: t.update({"electra/extra": ONE})),
        (65, "key/bias is not finite", lambda t: t.update({KEY: np.full(32, np.nan)})),
        (65, "key/bias has shape [31]", lambda t: t.update({KEY: np.zeros(31)})),
        (2, "not an ELECTRA model", lambda t: t.pop(WORDS)),
    ],
)
def test_incomplete_models_are_refused(tmp_path, code, text, change):
    heads = {"model_hparam_overrides": heads_of("mlm")}
    refused(code, text, path=rewritten(tmp_path, change), hparams=heads)


KEY = "electra/encoder/layer_1/attention/self/key/bias"
WORDS = "electra/embeddings/word_embeddings"
ONE = np.zeros(1, np.float32)


def test_another_family_is_refused(tmp_path):
    prefix = str(tmp_path / "model.ckpt-0")
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["bert/embeddings/word_embeddings", "global_step"],
        shape_and_slices=["", ""],
        tensors=[tf.zeros([1000, 8]), tf.constant(1, tf.int64)],
    )
    refused(2, "not an ELECTRA model", "bert/embeddings", path=prefix)
