# SPDX-License-Identifier: Apache-2.0
"""Original checkpoints, read and written."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from electra_tf.config.objectives import translated
from electra_tf.errors import UserError
from electra_tf.export import ExportRequest, formats
from electra_tf.finetune.run import hparams_of
from electra_tf.interop import networks, readers, tf1
from electra_tf.text.vocabulary import TokenizerConfig, write_tokens
from tests.helpers.exporting import tiny_source, tiny_vocabulary, write_run
from tests.helpers.interop_models import (
    RUNS,
    VOCAB,
    assert_equal_tensors,
    at_masked,
    config_of,
    flip_one_bit,
    golden,
    heads_of,
    inputs,
    prefix_of,
    quiet,
    read,
    recorded,
    refused,
)
from tests.helpers.runs import by_default

HEADS = {"model_hparam_overrides": heads_of("mlm"), "do_lower_case": True}
KEY = "electra/encoder/layer_1/attention/self/key/bias"
WORDS = "electra/embeddings/word_embeddings"
ONE = np.zeros(1, np.float32)


@pytest.mark.parametrize("run", RUNS)
def test_shape_is_read_from_the_weights(run):
    config, found = translated(config_of(run)), golden(run).config
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


COMPUTED = ["electra_tied_all", "electra_untied_embeddings", "electric", "mlm"]


@pytest.mark.parametrize("run", by_default(RUNS, COMPUTED))
def test_networks_compute_the_outputs_of_the_original(run):
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
        computed = networks.outputs(network, inputs(record, corrupted=is_discriminator))
        hidden = record[
            "disc_sequence_output" if is_discriminator else "gen_sequence_output"
        ]
        np.testing.assert_allclose(computed["hidden"], hidden, rtol=1e-5, atol=2e-5)
        if is_discriminator:
            ours, theirs = computed[name], record["disc_net_logits"]
        else:
            ours, theirs = at_masked(record, computed[name]), record["mlm_logits"]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


def test_tensorflow_1_restores_weights_slots_and_step(tmp_path):
    """With a Saver over variables of these names in a graph."""
    source = "electra_untied_embeddings", "after3.ckpt"
    stored = golden(*source)
    assert stored.step == 3
    assert set(stored.slots) == {
        f"{name}/{slot}" for name in stored.tensors for slot in ("adam_m", "adam_v")
    }
    out = tf1.write_tf1(stored, "all", tmp_path / "out", **quiet)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["format"] == "tf1" and manifest["max_difference"] == 0
    prefix = tf.train.latest_checkpoint(str(out))
    assert prefix == str(out / "model.ckpt-3")
    recording = tf.train.load_checkpoint(prefix_of(*source))
    shapes = recording.get_variable_to_shape_map()
    written = tf.train.load_checkpoint(prefix)
    assert written.get_variable_to_shape_map() == shapes
    assert written.get_variable_to_dtype_map()["global_step"] == tf.int64
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        variables = {
            name: v1.get_variable(name, shape, use_resource=False)
            for name, shape in shapes.items()
            if name != "global_step"
        }
        step = v1.train.get_or_create_global_step()
        v1.train.Saver().restore(session, prefix)
        assert session.run(step) == 3
        for name, value in session.run(variables).items():
            np.testing.assert_array_equal(value, recording.get_tensor(name))


def shaped(stored, **overrides):
    """The same weights with other hparams that no weight shows."""
    changed = {**stored.config.model_hparam_overrides, **overrides}
    config = stored.config.replaced(model_hparam_overrides=changed)
    return stored._replace(config=config, known={**stored.known, **overrides})


# name -> the model, the hparams that the original needs, what it cannot do
ORIGINALS = {
    "nothing": ({"num_attention_heads": 1}, {}, None),
    "heads": ({"num_attention_heads": 4}, {"num_attention_heads": 4}, None),
    "relu": (
        {"num_attention_heads": 1, "hidden_act": "relu"},
        {"hidden_act": "relu"},
        None,
    ),
    "gelu": ({"num_attention_heads": 1, "hidden_act": "gelu_tanh"}, {}, "gelu_tanh"),
    "accents": ({"num_attention_heads": 1}, {}, "strips accents"),
    "objective": ({"num_attention_heads": 1}, {}, "objective corrective_lm"),
}


@pytest.mark.parametrize("name", by_default(ORIGINALS, ["heads", "objective"]))
def test_log_names_what_the_original_needs(name, tmp_path):
    overrides, needed, cannot = ORIGINALS[name]
    stored = shaped(golden("electra_tiny"), **overrides)
    if name == "accents":
        config = TokenizerConfig(do_lower_case=True, strip_accents=False)
        stored = stored._replace(tokenizer_config=config)
    if name == "objective":
        stored = read(write_run(tmp_path / "run", tiny_source("corrective_lm")))[0]
        stored = shaped(stored, **overrides)
    log = []
    out = tf1.write_tf1(stored, "all", tmp_path / "out", log.append)
    facts = json.loads((out / "manifest.json").read_text())["original"]
    assert facts["model_hparam_overrides"] == needed
    if cannot:
        (reason,) = facts["cannot"]
        assert cannot in reason and any(reason in line for line in log)
    else:
        assert not facts["cannot"]
    assert any("electra_tf alone" in line for line in log) == bool(cannot)
    hint = [line for line in log if "model_hparam_overrides" in line]
    assert len(hint) == bool(needed)
    assert all(json.dumps(needed) in line for line in hint)
    again, _ = read(out)
    assert again.config.model_config() == stored.config.model_config()
    assert again.tokenizer_config.equivalent(stored.tokenizer_config)


def test_heads_must_be_set_for_other_widths(copy):
    """Other heads compute something else, which no other check would notice."""
    question = (
        "does not say its number of attention heads",
        "32, is not a multiple of 64",
    )
    refused(copy, 2, *question, hparams={"do_lower_case": True})
    assert read(copy, VOCAB, HEADS)[0].config.model_config().num_attention_heads == 2
    shutil.copy(VOCAB, copy.parent / "vocab.txt")
    found = readers.find(copy, **quiet)
    with pytest.raises(UserError, match=f"{question[0]}.*\n.*hparams.json beside it"):
        hparams_of(found, {}, "none", print)
    earlier = HEADS | {"sample_steps": 9}  # has left
    (copy.parent / "hparams.json").write_text(json.dumps(earlier))
    assert read(copy)[0].config.model_config().num_attention_heads == 2
    known = hparams_of(readers.find(copy, **quiet), {}, "none", **quiet)
    assert known["model_hparam_overrides"]["num_attention_heads"] == 2


def test_half_precision_and_tensors_of_other_optimizers(tmp_path):
    """As NVIDIA's program and TensorFlow's own optimizers write it."""
    stored = golden("mlm")
    half = {k: v.astype(np.float16) for k, v in stored.tensors.items()}
    others = "loss_scale good_steps beta1_power beta2_power optimizer/learning_rate"
    others = dict.fromkeys(others.split(), np.ones((), np.float32))
    others[f"{KEY}/Adam_1"] = ONE
    prefix = tmp_path / "model.ckpt-0"
    tf1.save_tensors(prefix, stored._replace(tensors=half, slots=others))
    model, _ = read(prefix, VOCAB, HEADS)
    expected = {k: v.astype(np.float32) for k, v in half.items()}
    assert_equal_tensors(model.tensors, expected)
    assert all(v.dtype == np.float32 for v in model.tensors.values())
    assert tf1.tensors_of(str(prefix)).get(KEY).dtype == np.float32


# Refusals.


@pytest.fixture
def copy(tmp_path):
    """A checkpoint to damage: its prefix."""
    for suffix in (".index", ".data-00000-of-00001"):
        shutil.copy(prefix_of("mlm") + suffix, tmp_path / f"model.ckpt-1{suffix}")
    return tmp_path / "model.ckpt-1"


def test_flipped_bits_are_refused(copy):
    rng = np.random.default_rng(0)
    file = copy.with_name(copy.name + ".data-00000-of-00001")
    for _ in range(8):
        data = flip_one_bit(file, rng)
        refused(copy, 65, copy.name, hparams=HEADS)
        file.write_bytes(data)


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
    tensors = dict(golden("mlm").tensors)
    change(tensors)
    prefix = tmp_path / "model.ckpt-0"
    tf1.save_tensors(prefix, golden("mlm")._replace(tensors=tensors))
    refused(prefix, code, text, hparams=HEADS)


def test_object_based_checkpoints_are_refused(tmp_path):
    """Those of tf.train.Checkpoint, as other programs in TensorFlow 2 write them."""
    tf.train.Checkpoint(model=tf.train.Checkpoint(b=tf.Variable([1.0]))).save(
        str(tmp_path / "ckpt")
    )
    write_tokens(tmp_path / "vocab.txt", tiny_vocabulary().tokens)
    request = ExportRequest("huggingface", str(tmp_path / "out"))
    request = request._replace(init_checkpoint=str(tmp_path))
    for use in (electra_tf.load, lambda _: formats.export(request)):
        with pytest.raises(UserError, match="not an ELECTRA model: its first name"):
            use(tmp_path)
