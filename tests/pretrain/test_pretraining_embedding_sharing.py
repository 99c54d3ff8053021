# SPDX-License-Identifier: Apache-2.0
"""Gradient-disentangled embedding sharing: who learns what, and what others read."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.export import saved_models
from electra_tf.finetune import initial_weights
from electra_tf.interop import huggingface, networks, sources, tf1, warm_start
from electra_tf.pretrain.pretraining import build_pretrainer
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.stored_tensors import of_checkpoint
from electra_tf.text.vocabulary import Vocabulary
from flops_computation import get_recipe_flops
from tests.helpers.exporting import tiny_vocabulary, write_run
from tests.helpers.runs import by_default, pretrain, tiny
from tests.helpers.tiny_pretraining import (
    SPECIAL_IDS,
    gradients,
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


# Who learns what.


@pytest.mark.parametrize("objective", ["electra", "replace_mlm", "all_tokens_mlm"])
def test_no_discriminator_gradient_reaches_the_generators_tables(objective):
    batch, of_main = tiny_batch(), lambda out: out.discriminated.loss
    found = gradients(tiny_model(objective=objective, **GDES), of_main, batch)
    for path, gradient in found.items():
        if path.startswith("generator"):
            assert gradient is None or not gradient.any(), path
    # What reaches the shared table otherwise goes to the residual.
    shared = gradients(tiny_model(objective=objective), of_main, batch)
    for name in TABLES:
        assert shared[OURS + name].any() and found[f"{OURS}{name}_residual"].any()


def test_the_residual_gets_the_gradient_that_the_shared_table_would_get():
    batch, of_main = tiny_batch(), lambda out: out.discriminated.loss
    models = [at_start({}), at_start(GDES)]
    shared, own = (gradients(model, of_main, batch) for model in models)
    for name in TABLES:
        np.testing.assert_array_equal(
            own[f"{OURS}{name}_residual"], shared[OURS + name]
        )
    of_generator = lambda out: out.generated.loss  # noqa: E731
    shared, own = (gradients(model, of_generator, batch) for model in models)
    for name in TABLES:
        np.testing.assert_array_equal(own[THEIRS + name], shared[OURS + name])
        residual = own[f"{OURS}{name}_residual"]
        assert residual is None or not residual.any()


def at_start(hparams, **changes):
    """A model with the weights that a run starts from."""
    keras.utils.set_random_seed(42)
    return build_pretrainer(tiny_config(**hparams, **changes), SPECIAL_IDS)


@pytest.mark.parametrize("changes", [{}, {"precision": "mixed_bfloat16"}])
def test_the_first_forward_pass_is_that_of_shared_embeddings(changes):
    batch, seed = tiny_batch(), tf.constant([3, 4])
    shared, own = (
        at_start(hparams, dropout=0.1, layers=2, **changes)(
            batch, training=True, seed=seed
        )
        for hparams in ({}, GDES)
    )
    for one, other in zip(*map(tf.nest.flatten, (shared, own)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def trained(tiny_data):
    """Two steps from the start."""
    made = Trained(tiny_data, **GDES)
    made.run(2)
    return made


def test_training_moves_the_tables_apart(trained):
    weights = values(trained.state.model)
    for name in TABLES:
        assert weights[f"{OURS}{name}_residual"].any()
    gamma = "LayerNorm/gamma"
    assert (weights[OURS + gamma] != weights[THEIRS + gamma]).any()


@pytest.mark.thorough
def test_a_run_is_resumed_bit_by_bit(tiny_data, tmp_path, trained):
    straight = trained
    cut = Trained(tiny_data, **GDES)
    cut.run(1)
    Checkpoints(tmp_path, **quiet).save(1, cut.state.variables())
    again = Trained(tiny_data, **GDES)
    checkpoints = Checkpoints(tmp_path, **quiet)
    checkpoints.restore(checkpoints.newest_intact(), again.state.variables())
    again.run(1, start=1)
    for name, value in straight.values().items():
        np.testing.assert_array_equal(again.values()[name], value, err_msg=name)


# What others read.


class Source:
    """A model as `write_run` takes it."""

    name = "disentangled"

    def __init__(self, **changes):
        self.pretrainer = tiny_model("disentangled", **changes)
        self.vocab = tiny_vocabulary()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's directory, and the model that it trained."""
    source = Source()
    return write_run(tmp_path_factory.mktemp("data"), source), source.pretrainer


def check_tables(tensors, model):
    weights = values(model)
    for name in TABLES:
        np.testing.assert_array_equal(tensors[OURS + name], summed(weights, name))
        np.testing.assert_array_equal(tensors[THEIRS + name], weights[THEIRS + name])
    assert not any(name.endswith("_residual") for name in tensors)


def test_readers_see_the_sum(run):
    folder, model = run
    raw = of_checkpoint(str(folder / "model.ckpt-7"))
    assert f"{OURS}word_embeddings_residual" in raw.shapes
    stored = sources.read(folder, **quiet)
    assert stored.config.embedding_sharing == "disentangled"
    check_tables(stored.tensors, model)


def test_it_computes_at_rest_what_it_computed_in_training(run):
    folder, model = run
    batch = tiny_batch()
    read = electra_tf.load(folder).pretrainer(batch)
    for one, other in zip(*map(tf.nest.flatten, (read, model(batch))), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("width", by_default([0.5, 1.0], [0.5]))
def test_exports_hold_the_sum(tmp_path, width):
    """With a generator as wide as the embeddings, too, which needs no projection."""
    source = Source(generator_hidden_size=width)
    folder = write_run(tmp_path / "data", source, generator_hidden_size=width)
    stored = sources.read(folder, **quiet)
    check_tables(stored.tensors, source.pretrainer)
    for form in (tf1.write_tf1, huggingface.write_huggingface):
        if form is huggingface.write_huggingface:
            pytest.importorskip("safetensors")
        out = form(stored, "all", tmp_path / form.__name__, **quiet)
        check_tables(sources.read(out, **quiet).tensors, source.pretrainer)
    served = saved_models.source_of(stored).pretrainer(tiny_batch())
    expected = source.pretrainer(tiny_batch())
    np.testing.assert_array_equal(
        served.discriminated.logits, expected.discriminated.logits
    )
    [main] = networks.split(stored, "discriminator").values()
    words = main.tensors[OURS + "word_embeddings"]
    np.testing.assert_array_equal(words, summed(values(source.pretrainer)))


def test_slots_of_residuals_are_nobodys(tiny_data, tmp_path, trained):
    Checkpoints(tmp_path, **quiet).save(2, trained.state.variables())
    contents = tf1.read(str(tmp_path / "model.ckpt-2"))
    assert not contents.slots
    check_tables(contents.tensors, trained.state.model)


def test_fine_tuning_starts_from_the_sum(run):
    folder, model = run
    variable = tf.Variable(tf.zeros([97, 8]))
    found = sources.find(folder, **quiet)
    tensors = found.tensors(print)
    initial_weights.load_encoder(tensors, {OURS + "word_embeddings": variable})
    np.testing.assert_array_equal(variable, summed(values(model)))


# Starting a run from another.


def warm_started(path, **hparams):
    config = tiny_config(**hparams)
    model = build_pretrainer(config, SPECIAL_IDS)
    variables = {v.path: v.value for v in model.variables}
    vocab = Vocabulary.load(f"{path.parents[1]}/vocab.txt")
    found = sources.find(path, **quiet)
    report = warm_start.load(found, config, vocab, variables, **quiet)
    return values(model), report


def test_a_run_from_a_disentangled_one(run):
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


def test_a_run_from_a_shared_one(tmp_path):
    source = Source(embedding_sharing="shared")
    folder = write_run(tmp_path, source, embedding_sharing="shared")
    weights = values(source.pretrainer)
    again, report = warm_started(folder, **GDES)
    for name in TABLES:
        np.testing.assert_array_equal(again[THEIRS + name], weights[OURS + name])
        assert not again[f"{OURS}{name}_residual"].any()
    for part in ("gamma", "beta"):
        for scope in (OURS, THEIRS):
            here = again[f"{scope}LayerNorm/{part}"]
            np.testing.assert_array_equal(here, weights[f"{OURS}LayerNorm/{part}"])
    assert not report.initialised and not report.left_out


# The hparam.


def make(**hparams):
    return PretrainingConfig.from_hparams("/nowhere", "m", hparams)


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"embedding_sharing": "both"}, ["embedding_sharing", '"disentangled"']),
        (
            {**GDES, "untied_generator_embeddings": True},
            ["disentangled", "untied_generator_embeddings true"],
        ),
        (
            {"embedding_sharing": "untied", "untied_generator_embeddings": False},
            ['"untied"', "untied_generator_embeddings false"],
        ),
        (
            {"embedding_sharing": "shared", "untied_generator_embeddings": True},
            ['"shared"', "untied_generator_embeddings true"],
        ),
        ({**GDES, "electra_objective": False}, ["disentangled", '"mlm"']),
        ({**GDES, "electric_objective": True}, ["disentangled", "two_tower"]),
        ({**GDES, "generator": "unigram"}, ["disentangled", '"unigram"']),
        ({**GDES, "uniform_generator": True}, ["disentangled", "uniform"]),
        ({**GDES, "untied_generator": False}, ["disentangled", '"tied"']),
        ({**GDES, "objective": "two_tower"}, ["disentangled", "two_tower"]),
        (
            {**GDES, "objective": "two_stage"},
            ['embedding_sharing is "disentangled"', "two_stage"],
        ),
    ],
)
def test_what_excludes_each_other(hparams, words):
    with pytest.raises(UserError) as caught:
        make(**hparams)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert len(message.splitlines()) <= 3


def test_flops_are_those_of_shared_embeddings():
    assert get_recipe_flops(make(**GDES)) == get_recipe_flops(make())


def test_the_script(tiny_data):
    """Refused in a second; a dry run; a run that another kind of sharing leaves be."""
    bad = pretrain(tiny_data, "gdes", tiny(uniform_generator=True, **GDES))
    assert bad.returncode == 2 and "masked language model" in bad.stderr
    dry = pretrain(tiny_data, "gdes", tiny(**GDES), "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "embedding_sharing disentangled" in dry.stdout
    hparams = tiny(num_train_steps=2, **GDES)
    done = pretrain(tiny_data, "gdes", hparams)
    assert done.returncode == 0, done.stderr
    other = pretrain(tiny_data, "gdes", tiny(num_train_steps=4))
    assert other.returncode == 2 and "embedding_sharing" in other.stderr
    evaluated = pretrain(
        tiny_data, "gdes", hparams | {"do_train": False, "do_eval": True}
    )
    assert evaluated.returncode == 0, evaluated.stderr
