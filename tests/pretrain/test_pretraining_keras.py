# SPDX-License-Identifier: Apache-2.0
"""The pre-training model as an ordinary Keras model: saved, compiled, fitted."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain.pretraining import ElectraPretrainer, build_pretrainer
from electra_tf.train.optimization import AdamWeightDecay
from tests.helpers.runs import by_default
from tests.helpers.tiny_pretraining import (
    LENGTH,
    ROWS,
    SPECIAL_IDS,
    VARIANTS,
    each_variant,
    tiny_batch,
    tiny_config,
    tiny_model,
)


@pytest.mark.parametrize("variant", each_variant())
def test_from_config(variant):
    model = tiny_model(variant)
    config = json.loads(json.dumps(model.get_config()))
    copy = ElectraPretrainer.from_config(config)
    assert copy.get_config() == model.get_config()
    assert [v.path for v in copy.weights] == [v.path for v in model.weights]
    copy.set_weights(model.get_weights())
    batch = tiny_batch()
    ours, theirs = copy(batch), model(batch)
    assert float(ours.total_loss) == float(theirs.total_loss)
    np.testing.assert_array_equal(ours.sampled_ids, theirs.sampled_ids)


def test_from_config_keeps_every_setting():
    changes = {
        "temperature": 0.5,
        "disallow_correct": True,
        "gen_weight": 2.0,
        "disc_weight": 3.0,
        "mask_prob": 0.25,
        "cloze_chunk_size": 33,
    }
    model = tiny_model("electric", **changes)
    copy = ElectraPretrainer.from_config(model.get_config())
    for name, value in changes.items():
        assert getattr(copy.settings, name) == value
    assert copy.settings == model.settings
    assert copy.model_config == model.model_config
    assert copy.generator_config == model.generator_config


def test_from_config_keeps_the_precision():
    model = tiny_model("electra", dtype="mixed_bfloat16")
    copy = ElectraPretrainer.from_config(model.get_config())
    assert copy.dtype_policy.name == "mixed_bfloat16"


@pytest.mark.parametrize("variant", each_variant())
def test_weights_file(variant, tmp_path):
    model, other = tiny_model(variant, seed=1), tiny_model(variant, seed=2)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    other.load_weights(path)
    for one, two in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(one, two, err_msg=one.path)


def test_keras_file(tmp_path):
    model = tiny_model("electra")
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(
        path, custom_objects={"ElectraPretrainer": ElectraPretrainer}
    )
    batch = tiny_batch()
    assert float(loaded(batch).total_loss) == float(model(batch).total_loss)


def dataset(rows=8):
    return tf.data.Dataset.from_tensor_slices(tiny_batch(rows=rows)).batch(4)


@pytest.mark.parametrize("variant", by_default(["mlm", "electric"], ["mlm"]))
def test_compile_and_fit(variant):
    model = tiny_model(variant, dropout=0.05)
    model.compile(optimizer=AdamWeightDecay(5e-3), jit_compile=False)
    history = model.fit(dataset(), epochs=4, verbose=0).history["loss"]
    assert len(history) == 4
    assert history[-1] < 0.9 * history[0]


@pytest.mark.parametrize("options", [{"jit_compile": True}, {"optimizer": "adam"}])
def test_compile_and_fit_otherwise(options):
    model = tiny_model("uniform")
    model.compile(**({"optimizer": AdamWeightDecay(5e-3)} | options))
    history = model.fit(dataset(), epochs=3, verbose=0).history["loss"]
    assert history[-1] < history[0]


@pytest.mark.parametrize(
    "policy", by_default(["mixed_bfloat16", "mixed_float16"], ["mixed_bfloat16"])
)
def test_compile_and_fit_in_mixed_precision(policy):
    model = tiny_model("mlm", dtype=policy)
    model.compile(optimizer=AdamWeightDecay(5e-3), jit_compile=False)
    history = model.fit(dataset(), epochs=4, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    assert history[-1] < 0.9 * history[0]


def test_fitting_and_a_plain_loop_are_the_same():
    """compile/fit takes the steps that a hand-written loop takes."""
    fitted, looped = tiny_model("electra"), tiny_model("electra")
    fitted.compile(optimizer=AdamWeightDecay(1e-3), jit_compile=False)
    fitted.fit(dataset(), epochs=2, verbose=0)
    optimizer = AdamWeightDecay(1e-3)
    variables = looped.trainable_variables
    optimizer.build(variables)
    for _ in range(2):
        for batch in dataset():
            with tf.GradientTape() as tape:
                loss = looped(batch, training=True).total_loss
            found = tape.gradient(loss, [v.value for v in variables])
            optimizer.apply(found, variables)
    for one, two in zip(fitted.weights, looped.weights, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5, err_msg=one.path)


def test_shapes_of_everything():
    out = tiny_model("electra")(tiny_batch())
    assert out.total_loss.shape == ()
    assert out.sampled_ids.shape == (ROWS, 4)
    assert out.corrupted_ids.shape == out.is_replaced.shape == (ROWS, LENGTH)
    assert out.corrupted_ids.dtype == out.sampled_ids.dtype == tf.int32
    assert out.is_replaced.dtype == tf.bool
    assert out.discriminated.probs.shape == (ROWS, LENGTH)
    assert tiny_model("mlm")(tiny_batch()).discriminated is None


def test_chosen_by_config():
    """Which generator and objective each set of hparams means."""
    expected = {
        "electra": ("masked_lm", "electra"),
        "tied_all": ("tied", "electra"),
        "two_tower": ("two_tower", "electra"),
        "uniform": ("uniform", "electra"),
        "mlm": ("tied", "mlm"),
        "electric": ("two_tower", "electric"),
    }
    for variant, (generator, objective) in expected.items():
        config = tiny_config(**VARIANTS[variant])
        settings = build_pretrainer(config, SPECIAL_IDS).settings
        assert (settings.generator, settings.objective) == (generator, objective)
