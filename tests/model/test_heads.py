# SPDX-License-Identifier: Apache-2.0
"""The chunked log-normaliser: its values, gradients and memory."""

from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.model import heads
from tests.helpers.encoder_passes import traced_for

ROWS, WIDTH, VOCAB_SIZE = 23, 8, 37


def inputs(dtype=tf.float32, rows=ROWS, scale=1.0):
    hidden = scale * tf.random.stateless_normal([rows, WIDTH], [0, 1])
    table = tf.random.stateless_normal([VOCAB_SIZE, WIDTH], [0, 2])
    bias = tf.random.stateless_normal([VOCAB_SIZE], [0, 3])
    return tf.cast(hidden, dtype), table, bias


def direct(hidden, table, bias):
    """The same by forming all scores."""
    scores = tf.matmul(hidden, table, transpose_b=True) + bias
    return tf.reduce_logsumexp(scores, axis=-1), tf.argmax(scores, -1)


def with_gradients(function, arguments):
    upstream = tf.random.stateless_normal([arguments[0].shape[0]], [0, 4])
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        normalizer, best = function(*arguments)
        total = tf.reduce_sum(normalizer * upstream)
    return normalizer, best, tape.gradient(total, arguments)


def chunked(chunk_size):
    """The function with chunks of that many rows."""

    def function(hidden, table, bias):
        with mock.patch.object(heads, "_CPU_ROWS", chunk_size):
            return heads.log_normalizer(hidden, table, bias)

    return function


def traced(function):
    """For any number of rows."""
    table, bias = tf.TensorSpec([VOCAB_SIZE, WIDTH]), tf.TensorSpec([VOCAB_SIZE])
    return tf.function(
        function, input_signature=[tf.TensorSpec([None, WIDTH]), table, bias]
    )


def compiled(function):
    return tf.function(function, jit_compile=True)


@pytest.mark.parametrize("chunk_size", [1, 7, ROWS, 1000])
@pytest.mark.parametrize("wrap", [lambda f: f, traced, compiled])
def test_equals_the_direct_computation(wrap, chunk_size):
    arguments = inputs()
    expected = with_gradients(direct, arguments)
    found = with_gradients(wrap(chunked(chunk_size)), arguments)
    assert found[0].shape == (ROWS,)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[1].dtype == tf.int32
    for ours, theirs in zip(found[2], expected[2], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


def test_large_scores_do_not_overflow():
    hidden, table, bias = inputs(scale=200.0)
    normalizer, _, gradients = with_gradients(chunked(7), (hidden, table, bias))
    expected = with_gradients(direct, (hidden, table, bias))
    np.testing.assert_allclose(normalizer, expected[0], rtol=1e-6)
    for ours, theirs in zip(gradients, expected[2], strict=True):
        # A score of 1000 keeps 1e-4 of absolute precision, in both.
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_reduced_precision_scores_have_float32_results(dtype):
    hidden, table, bias = inputs(dtype)
    normalizer, _, gradients = with_gradients(chunked(7), (hidden, table, bias))
    assert normalizer.dtype == tf.float32
    assert [g.dtype for g in gradients] == [dtype, tf.float32, tf.float32]
    exact, _, expected = with_gradients(direct, inputs())
    np.testing.assert_allclose(normalizer, exact, atol=0.1)
    for ours, theirs in zip(gradients, expected, strict=True):
        error = tf.linalg.norm(tf.cast(ours, tf.float32) - theirs)
        assert error < 0.03 * tf.linalg.norm(theirs)


def shapes(graph):
    """Static shapes of the tensors of a graph and of the functions that it calls.

    Returns: those of all, and those that loops keep in lists.
    """
    seen, kept, todo, names = [], [], [graph], set()
    while todo:
        current = todo.pop()
        for operation in current.get_operations():
            tensors = [*operation.inputs, *operation.outputs]
            found = [tuple(t.shape.as_list()) for t in tensors if t.shape.rank]
            seen += found
            kept += found if operation.type.startswith("TensorList") else []
            for attribute in operation.node_def.attr.values():
                name = attribute.func.name
                if name and name not in names:
                    names.add(name)
                    todo.append(current._get_function(name).graph)
    return seen, kept


def of_each_row(hidden, table, bias):
    """The same in a loop, whose gradient keeps the scores of each iteration."""
    rows = tf.map_fn(lambda row: direct(row[None], table, bias)[0][0], hidden)
    return rows, None


def test_scores_of_all_rows_never_exist():
    """Neither forward nor backward holds rows x vocabulary, at once or in a loop."""
    arguments, chunk_size = inputs(), 7

    def step(function):
        both = tf.function(lambda *args: with_gradients(function, args)[2])
        return shapes(both.get_concrete_function(*arguments).graph)

    def largest(found):
        sizes = (np.prod([d or 1 for d in s]) for s in found if VOCAB_SIZE in s)
        return max(sizes, default=0)

    seen, kept = step(chunked(chunk_size))
    assert (chunk_size, VOCAB_SIZE) in seen
    assert largest(seen) < ROWS * VOCAB_SIZE
    assert not largest(kept)
    # Both would be found.
    assert largest(step(direct)[0]) >= ROWS * VOCAB_SIZE
    assert largest(step(of_each_row)[1])


@pytest.mark.parametrize(("device", "size"), [("cpu", 128), ("gpu", 1024)])
def test_default_chunk_size_suits_the_device(device, size):
    function = tf.function(heads.log_normalizer)
    with traced_for(device):
        graph = function.get_concrete_function(*inputs(rows=1500)).graph
    found, _ = shapes(graph)
    scores = {shape for shape in found if shape[1:] == (VOCAB_SIZE,)}
    assert scores == {(size, VOCAB_SIZE)}
