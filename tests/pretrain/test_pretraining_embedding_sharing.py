# SPDX-License-Identifier: Apache-2.0
"""Gradient-disentangled embedding sharing: its gradients, and what others read.

That the discriminator's loss does not reach the generator: test_objectives.py.
"""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from electra_tf.finetune.model import load_encoder
from electra_tf.interop import readers, tf1
from electra_tf.pretrain import start
from electra_tf.pretrain.pretraining import build_pretrainer
from electra_tf.storage.checkpoints import Checkpoints, of_checkpoint
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.exporting import tiny_vocabulary, write_run
from tests.helpers.interop_models import read_model
from tests.helpers.tiny_pretraining import (
    SPECIAL_IDS,
    gradients,
    shared_model,
    tiny_batch,
    tiny_config,
    tiny_model,
)
from tests.train.test_loop import Trained

quiet = {"log": lambda line: None}
GDES = {"embedding_sharing": "disentangled"}
TABLES = ("word_embeddings", "token_type_embeddings", "position_embeddings")
OURS, THEIRS = "electra/embeddings/", "generator/embeddings/"


def values(model):
    return {v.path: v.numpy() for v in model.variables}


def summed(weights, name="word_embeddings"):
    return weights[THEIRS + name] + weights[OURS + name + "_residual"]


# Gradients.


def test_the_residual_gets_the_gradient_of_the_shared_table():
    losses = {
        "main": lambda out: out.discriminated.loss,
        "generator": lambda out: out.generated.loss,
    }
    shared, own = (
        gradients(at_start(hparams), losses, tiny_batch()) for hparams in ({}, GDES)
    )
    for name in TABLES:
        residual = f"{OURS}{name}_residual"
        for loss, table in (("main", residual), ("generator", THEIRS + name)):
            expected = shared[loss][OURS + name]
            assert expected.any()
            np.testing.assert_array_equal(own[loss][table], expected)
        assert not own["generator"][residual].any()


def at_start(hparams, **changes):
    """A model with the weights that a run starts from."""
    keras.utils.set_random_seed(42)
    return build_pretrainer(tiny_config(**hparams, **changes), SPECIAL_IDS)


def test_first_forward_pass_is_that_of_shared_embeddings():
    batch, seed = tiny_batch(), tf.constant([3, 4])
    changes = {"dropout": 0.1, "layers": 2, "precision": "mixed_bfloat16"}
    shared, own = (
        at_start(hparams, **changes)(batch, training=True, seed=seed)
        for hparams in ({}, GDES)
    )
    for one, other in zip(*map(tf.nest.flatten, (shared, own)), strict=True):
        np.testing.assert_array_equal(one, other)


# What others read.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's directory, and the model that it trained."""
    folder, model = tmp_path_factory.mktemp("data"), tiny_model("disentangled")
    return write_run(folder, source_of("disentangled", model)), model


def source_of(name, model):
    """A model as `write_run` takes it."""
    vocab = tiny_vocabulary()
    return types.SimpleNamespace(name=name, pretrainer=model, vocab=vocab)


def check_tables(tensors, model):
    weights = values(model)
    for name in TABLES:
        np.testing.assert_array_equal(tensors[OURS + name], summed(weights, name))
        np.testing.assert_array_equal(tensors[THEIRS + name], weights[THEIRS + name])
    assert not any(name.endswith("_residual") for name in tensors)


def test_readers_see_the_sum(run):
    """They compute with it what was computed in training."""
    folder, model = run
    raw = of_checkpoint(str(folder / "model.ckpt-7"))
    assert f"{OURS}word_embeddings_residual" in raw.shapes
    stored = read_model(folder, **quiet)
    assert stored.config.embedding_sharing == "disentangled"
    check_tables(stored.tensors, model)
    read = electra_tf.load(folder).pretrainer(tiny_batch())
    expected = model(tiny_batch())
    for one, other in zip(*map(tf.nest.flatten, (read, expected)), strict=True):
        np.testing.assert_array_equal(one, other)
    variable = tf.Variable(tf.zeros([97, 8]))
    tensors = readers.find(folder, **quiet).tensors(print)
    load_encoder(tensors, {OURS + "word_embeddings": variable})
    np.testing.assert_array_equal(variable, summed(values(model)))


@pytest.mark.thorough
def test_training_moves_the_tables_apart(tiny_data, tmp_path):
    """Slots of the residuals are not read."""
    made = Trained(tiny_data, **GDES)
    made.run(2)
    weights = values(made.state.model)
    assert all(weights[f"{OURS}{name}_residual"].any() for name in TABLES)
    gamma = "LayerNorm/gamma"
    assert (weights[OURS + gamma] != weights[THEIRS + gamma]).any()
    Checkpoints(tmp_path, **quiet).save(2, made.state.variables())
    stored = tf1.tensors_of(str(tmp_path / "model.ckpt-2"))
    assert not any("/adam_" in name for name in stored.shapes)
    tensors = {name: stored.get(name) for name in stored.shapes}
    check_tables(tensors, made.state.model)


# Starting a run from another.


def warm_started(path, **hparams):
    config = tiny_config(**hparams)
    model = build_pretrainer(config, SPECIAL_IDS)
    variables = {v.path: v.value for v in model.variables}
    vocab = Vocabulary.load(f"{path.parents[1]}/vocab.txt")
    found = readers.find(path, **quiet)
    report = start.load_initial(found, config, vocab, variables, **quiet)
    return values(model), report


def test_warm_start_from_a_disentangled_run(run):
    folder, model = run
    weights = values(model)
    again, report = warm_started(folder, **GDES)
    for name in TABLES:
        np.testing.assert_array_equal(again[THEIRS + name], weights[THEIRS + name])
        np.testing.assert_allclose(
            summed(again, name), summed(weights, name), rtol=1e-6, atol=1e-7
        )
    assert not report.initialised and not report.left_out
    shared, report = warm_started(folder)
    words = OURS + "word_embeddings"
    np.testing.assert_array_equal(shared[words], summed(weights))
    assert report.left_out == sorted(n for n in weights if n.startswith(THEIRS))


def test_warm_start_from_a_shared_run(tmp_path):
    folder = write_run(tmp_path, source_of("electra", shared_model()))
    weights = values(shared_model())
    again, report = warm_started(folder, **GDES)
    for name in TABLES:
        np.testing.assert_array_equal(again[THEIRS + name], weights[OURS + name])
        assert not again[f"{OURS}{name}_residual"].any()
    for part in ("gamma", "beta"):
        for scope in (OURS, THEIRS):
            here = again[f"{scope}LayerNorm/{part}"]
            np.testing.assert_array_equal(here, weights[f"{OURS}LayerNorm/{part}"])
    assert not report.initialised and not report.left_out
