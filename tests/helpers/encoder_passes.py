# SPDX-License-Identifier: Apache-2.0
"""A pass through a small encoder and back, in the forms that graphs can have."""

import collections
import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.model import target
from electra_tf.model.encoder import TextEncoder

LENGTH = 20
CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=32,
    attention_probs_dropout_prob=0.3,
)


def operations(function) -> collections.Counter:
    """The types of all operations of a traced function and of those that it calls."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return collections.Counter(node.op for node in nodes)


@contextlib.contextmanager
def traced_for(name: str):
    """For tracing what is for a target, see `model.target`."""
    target.set_target(name)
    try:
        yield
    finally:
        target.set_target("cpu")


def pass_of(jit=False, for_target="cpu", **changes):
    """Output and gradients of an encoder with dropout, and its operations.

    Args:
      changes: of the ModelConfig.
    """
    encoder = TextEncoder(dataclasses.replace(CONFIG, **changes), 16)
    encoder.build(None)
    rng = np.random.default_rng(1)
    for variable in encoder.trainable_variables:
        variable.assign(rng.normal(0, 0.3, variable.shape))
    ids = tf.constant(rng.integers(0, 50, (3, LENGTH)), tf.int32)
    mask = tf.cast(tf.range(LENGTH) < tf.constant([[LENGTH], [13], [1]]), tf.int32)
    weights = tf.constant(rng.normal(size=(3, LENGTH, 24)), tf.float32)
    variables = [v.value for v in encoder.trainable_variables]

    @tf.function(autograph=False, jit_compile=jit)
    def both(ids, mask):
        with tf.GradientTape() as tape:
            output = encoder(ids, mask, tf.zeros_like(ids), tf.constant([1, 2]))
            loss = tf.reduce_sum(output.sequence_output * weights)
        gradients = tape.gradient(loss, variables)
        return [output.sequence_output, *map(tf.convert_to_tensor, gradients)]

    with traced_for(for_target), target.compiled() if jit else contextlib.nullcontext():
        kinds = operations(both.get_concrete_function(ids, mask))
        return [t.numpy() for t in both(ids, mask)], kinds


def assert_same(ours, theirs):
    assert len(theirs) > 30
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
