# SPDX-License-Identifier: Apache-2.0
"""The parts of a layer."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.model.transformer_layer import softmax


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
