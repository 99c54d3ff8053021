# SPDX-License-Identifier: Apache-2.0
"""What is traced for another target is the same mathematics."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.model import target
from electra_tf.model.encoder import TextEncoder

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=32,
)


@pytest.fixture(scope="module")
def found():
    """Output and gradients of an encoder with dropout, by target."""
    encoder = TextEncoder(CONFIG, 16)
    encoder.build(None)
    rng = np.random.default_rng(1)
    for variable in encoder.trainable_variables:
        variable.assign(rng.normal(0, 0.3, variable.shape))
    ids = tf.constant(rng.integers(0, 50, (3, 20)), tf.int32)
    mask = tf.cast(tf.range(20) < tf.constant([[20], [13], [1]]), tf.int32)
    weights = tf.constant(rng.normal(size=(3, 20, 24)), tf.float32)

    def pass_of(name):
        variables = [v.value for v in encoder.trainable_variables]

        @tf.function(autograph=False)
        def both():
            with tf.GradientTape() as tape:
                output = encoder(ids, mask, tf.zeros_like(ids), tf.constant([1, 2]))
                loss = tf.reduce_sum(output.sequence_output * weights)
            return output.sequence_output, *tape.gradient(loss, variables)

        target.set_target(name)
        try:
            return [tf.convert_to_tensor(t).numpy() for t in both()]
        finally:
            target.set_target("cpu")

    return {name: pass_of(name) for name in target.TARGETS}


@pytest.mark.parametrize("name", ["gpu", "tpu"])
def test_an_encoder_and_its_gradients_are_the_same(found, name):
    assert len(found["cpu"]) > 30
    for ours, theirs in zip(found[name], found["cpu"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_an_unknown_target():
    with pytest.raises(ValueError, match="one of cpu, gpu, tpu"):
        target.set_target("npu")
