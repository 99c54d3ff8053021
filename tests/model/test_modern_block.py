# SPDX-License-Identifier: Apache-2.0
"""The modern block: against transformers, local attention, gradients, its graph."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.model import attention
from electra_tf.model.encoder import TextEncoder
from tests.helpers.encoder_passes import assert_same, pass_of
from tests.helpers.runs import by_default

CONFIG = ModelConfig(
    vocab_size=60,
    hidden_size=24,
    num_hidden_layers=5,
    num_attention_heads=2,
    intermediate_size=20,
    block="modern",
    local_window=8,
    global_rope_theta=1000.0,
    local_rope_theta=50.0,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


def encoder(embedding_size=24, direction="bidirectional", dtype=None, **changes):
    """An encoder with weights that are large enough to matter."""
    config = dataclasses.replace(CONFIG, **changes)
    layer = TextEncoder(config, embedding_size, direction=direction, dtype=dtype)
    layer.build(None)
    rng = np.random.default_rng(0)
    for variable in layer.weights:
        noise = rng.normal(0, 0.3, variable.shape)
        variable.assign(noise + 1.0 * ("gamma" in variable.path))
    return layer


def text(lengths=(37, 20, 1), length=37):
    """input_ids and input_mask, int32 [B, L]."""
    ids = np.random.default_rng(1).integers(5, 60, (len(lengths), length))
    mask = np.arange(length) < np.array(lengths)[:, None]
    return (ids * mask).astype(np.int32), mask.astype(np.int32)


def qkv(length, dtype="float32"):
    rng = np.random.default_rng(length)
    parts = rng.normal(size=(3, 2, 3, length, 4))
    return [tf.constant(part, dtype) for part in parts]


@pytest.mark.parametrize("direction", attention.DIRECTIONS)
@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("length", [1, 3, 5, 12, 13, 16, 31, 40])
def test_local_attention_is_full_attention_with_a_mask(length, is_dynamic, direction):
    """And its gradients are; the window is 4 to each side."""
    inputs = qkv(length)
    mask = tf.constant(np.arange(length) < [[length], [max(1, length - 6)]], tf.int32)
    bias = attention.attention_bias(mask, direction)
    apart = np.arange(length) - np.arange(length)[:, None]
    full = bias + np.where(np.abs(apart) <= 4, 0, -10000.0).astype(np.float32)
    weights = tf.cast(mask, tf.float32)[:, None, :, None] * inputs[0]

    def local(*inputs):
        return attention.attend_locally(*inputs, bias, 4, direction, 0.0, None)

    if is_dynamic:
        spec = tf.TensorSpec([None, 3, None, 4])
        local = tf.function(local, input_signature=[spec] * 3, autograph=False)

    def outputs(function):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            context = function(*inputs)
            loss = tf.reduce_sum(context * weights)
        return [context * tf.abs(tf.sign(weights)), *tape.gradient(loss, inputs)]

    expected = outputs(lambda *qkv: attention.attend(*qkv, full, 0.0, None))
    for one, other in zip(outputs(local), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_no_tensor_of_a_local_layer_grows_with_the_square_of_the_length():
    layer, length = encoder(local_window=16).encoder.transformer_layers[1], 1000

    @tf.function(autograph=False)
    def both(x, bias):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(layer(x, bias, tf.constant([1, 2])))
        return tape.gradient(loss, x)

    specs = [length, 24], [1, 1, 1, length]
    graph = both.get_concrete_function(*map(tf.TensorSpec, specs)).graph
    shapes = [t.shape for op in graph.get_operations() for t in op.outputs]
    assert max(shape.num_elements() or 0 for shape in shapes) < 150 * length


@pytest.mark.parametrize("policy", by_default([None, "mixed_bfloat16"], [None]))
@pytest.mark.parametrize("jit", [False, True])
def test_variants_traced_once_compute_and_learn_the_same(policy, jit):
    """Three traces serve five layers: the first, local ones, global ones."""
    changes = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    layer = encoder(embedding_size=8, dtype=policy, **changes)
    inputs, variables = text(), [v.value for v in layer.trainable_variables]
    real, traces = inputs[1][..., None].astype(np.float32), []
    inner = layer.encoder._layer_with
    layer.encoder._call_with = tf.function(
        lambda variant, *args: traces.append(variant) or inner(variant, *args),
        autograph=False,
    )

    def outputs_and_gradients():
        with tf.GradientTape() as tape:
            found = layer(*inputs, seed=tf.constant([42, 7]))
            states = [tf.cast(x, tf.float32) * real for x in found.all_layer_outputs]
            loss = tf.reduce_sum(tf.sin(states[-1]))
        return [*states, *map(tf.convert_to_tensor, tape.gradient(loss, variables))]

    eager = outputs_and_gradients()
    graph = tf.function(outputs_and_gradients, autograph=False, jit_compile=jit)()
    assert sorted({*traces}) == [(False, False), (False, True), (True, True)]
    for one, other in zip(eager, graph, strict=True):
        if policy:  # Each is 15 % from float32, by the order of its roundings.
            difference = tf.cast(one - other, tf.float32)
            assert tf.norm(difference) <= 0.1 * tf.norm(tf.cast(one, tf.float32))
        else:
            atol = np.abs(one).max() * 1e-5
            np.testing.assert_allclose(one, other, atol=atol)


def test_form_for_tpus_is_the_same():
    shape = {"block": "modern", "local_window": 4, "num_hidden_layers": 4}
    assert_same(pass_of(for_target="tpu", **shape)[0], pass_of(**shape)[0])


def test_gradients_are_the_numerical_ones():
    layer, rng = encoder(embedding_size=8), np.random.default_rng(5)
    inputs = text()
    weights = rng.normal(size=(3, 37, 24)) * inputs[1][..., None]

    def loss():
        states = layer(*inputs).sequence_output
        return tf.reduce_sum(tf.cast(states, tf.float64) * weights)

    with tf.GradientTape() as tape:
        value = loss()
    variables = [v.value for v in layer.trainable_variables]
    gradients = tape.gradient(value, variables)
    for variable, gradient in zip(layer.trainable_variables, gradients, strict=True):
        gradient, start = np.array(tf.convert_to_tensor(gradient)), np.array(variable)
        direction = gradient / np.linalg.norm(gradient)
        values = []
        for step in (1e-3, -1e-3):
            variable.assign(start + step * direction)
            values.append(float(loss()))
        variable.assign(start)
        numerical = (values[0] - values[1]) / 2e-3
        assert numerical == pytest.approx(np.linalg.norm(gradient), rel=0.02)


def test_initialisation():
    """As Megatron's: output projections by the depth; no norm before layer 0."""
    layer = TextEncoder(dataclasses.replace(CONFIG, hidden_size=128), 128)
    layer.build(None)
    ratio = 0.8796  # of a normal distribution cut at two deviations
    for variable in layer.weights:
        values = np.array(variable)
        if "gamma" in variable.path:
            assert (values == 1).all()
            continue
        stddev = 0.02 / np.sqrt(10) if "output/dense" in variable.path else 0.02
        assert values.std() == pytest.approx(ratio * stddev, rel=0.06), variable.path
        assert np.abs(values).max() <= 2.001 * stddev
    paths = {v.path for v in layer.weights}
    assert "electra/encoder/layer_0/attention/LayerNorm/gamma" not in paths
    assert "electra/encoder/layer_1/attention/LayerNorm/gamma" in paths
    assert not any("bias" in path or "beta" in path for path in paths)
