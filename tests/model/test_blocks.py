# SPDX-License-Identifier: Apache-2.0
"""The parts of a layer, and the forms they take for a compiler or another target."""

import math

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.model.layers import gelu, softmax
from tests.helpers.encoder_passes import assert_same, pass_of


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_softmax_and_its_gradient(dtype):
    rng = np.random.default_rng(1)
    scores = tf.constant(rng.normal(0, 3, (2, 3, 50)), tf.float32)
    d_probs = tf.cast(rng.normal(size=scores.shape), dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(scores)
        probs, exact = softmax(scores, dtype), tf.nn.softmax(scores)
    assert probs.dtype == dtype
    assert np.array_equal(probs, tf.cast(exact, dtype))
    found = tape.gradient(probs, scores, d_probs).numpy()
    d_exact = tf.cast(d_probs, tf.float32)
    if dtype == "float32":
        assert np.array_equal(found, tape.gradient(exact, scores, d_exact))
    p, d = tf.cast(probs, tf.float32).numpy(), d_exact.numpy()
    expected = p * (d - (p * d).sum(-1, keepdims=True))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_gelu_has_the_gradient_of_its_formula(dtype):
    x = tf.cast(np.linspace(-9, 9, 1001), dtype)
    dy = tf.cast(np.random.default_rng(1).normal(size=x.shape), dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        found, root = gelu(x), tf.cast(math.sqrt(0.5), dtype)
        expected = tf.cast(0.5, dtype) * x * (1 + tf.math.erf(x * root))
    assert np.array_equal(found, expected)
    gradients = tape.gradient(found, x, dy), tape.gradient(expected, x, dy)
    assert np.array_equal(*gradients)


def test_the_gradient_of_gelu_keeps_nothing_but_its_input():
    @tf.function(input_signature=[tf.TensorSpec([9])] * 2, autograph=False)
    def gradient(x, dy):
        return tf.gradients(gelu(x), x, dy)

    graph = gradient.get_concrete_function().graph
    [copy] = [op for op in graph.get_operations() if op.control_inputs]
    assert copy.inputs[0] is graph.inputs[0]
    erfs = [op for op in graph.get_operations() if op.type == "Erf"]
    assert len(erfs) == 2  # of x, and of its copy when dy is there


def test_an_encoder_and_its_gradients_are_the_same():
    expected, plain = pass_of()
    for form in ({"jit": True}, {"for_target": "tpu"}):
        found, kinds = pass_of(**form)
        assert_same(found, expected)
        # By other operations.
        assert kinds["BiasAddGrad"] < plain["BiasAddGrad"]
