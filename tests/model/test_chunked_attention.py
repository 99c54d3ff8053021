# SPDX-License-Identifier: Apache-2.0
"""Attention of some queries at a time is attention, and so is its gradient."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.model import target
from electra_tf.model.encoder import DIRECTIONS, TextEncoder

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


def operations(function) -> set[str]:
    """Types of operations, with those of the functions that are called."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return {node.op for node in nodes}


def pass_of(chunk_size, direction="bidirectional", jit=False):
    """Output and gradients of an encoder with dropout, and its operations."""
    config = dataclasses.replace(CONFIG, attention_chunk_size=chunk_size)
    encoder = TextEncoder(config, 16, direction=direction)
    encoder.build(None)
    rng = np.random.default_rng(1)
    for variable in encoder.trainable_variables:
        variable.assign(rng.normal(0, 0.3, variable.shape))
    ids = tf.constant(rng.integers(0, 50, (3, LENGTH)), tf.int32)
    mask = tf.cast(tf.range(LENGTH) < tf.constant([[LENGTH], [13], [1]]), tf.int32)
    weights = tf.constant(rng.normal(size=(3, LENGTH, 24)), tf.float32)
    variables = [v.value for v in encoder.trainable_variables]

    @tf.function(autograph=False, jit_compile=jit)
    def both():
        with tf.GradientTape() as tape:
            output = encoder(ids, mask, tf.zeros_like(ids), tf.constant([1, 2]))
            loss = tf.reduce_sum(output.sequence_output * weights)
        gradients = tape.gradient(loss, variables)
        return [output.sequence_output, *map(tf.convert_to_tensor, gradients)]

    return [t.numpy() for t in both()], operations(both.get_concrete_function())


def assert_same(ours, theirs):
    assert len(theirs) > 30
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("chunk_size", [1, 5, 8, 19])
def test_the_chunks_do_not_change_the_result(direction, chunk_size):
    expected, plain = pass_of(0, direction)
    found, chunked = pass_of(chunk_size, direction)
    assert_same(found, expected)
    loops = {"While", "StatelessWhile"}
    assert chunked & loops and not plain & loops


def test_compiled_and_for_another_target():
    expected, _ = pass_of(0)
    assert_same(pass_of(7, jit=True)[0], expected)
    target.set_target("tpu")
    try:
        assert_same(pass_of(7, jit=True)[0], expected)
    finally:
        target.set_target("cpu")


def test_a_chunk_that_holds_all_is_attention_as_it_was():
    expected, plain = pass_of(0)
    found, same = pass_of(LENGTH)
    assert same == plain
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
