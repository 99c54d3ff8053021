# SPDX-License-Identifier: Apache-2.0
"""The chunked log-normaliser: its values, gradients and memory."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain.vocabulary_softmax import log_normalizer
from tests.helpers.encoder_passes import traced_for
from tests.helpers.runs import ROOT

ROWS, WIDTH, VOCAB_SIZE = 23, 8, 37
CHUNK_SIZES = (1, 7, ROWS, 1000)


def inputs(dtype=tf.float32, rows=ROWS, scale=1.0):
    hidden = scale * tf.random.stateless_normal([rows, WIDTH], [0, 1])
    table = tf.random.stateless_normal([VOCAB_SIZE, WIDTH], [0, 2])
    bias = tf.random.stateless_normal([VOCAB_SIZE], [0, 3])
    return tf.cast(hidden, dtype), table, bias


def direct(hidden, table, bias):
    """The same by forming all scores."""
    scores = tf.matmul(hidden, table, transpose_b=True) + bias
    return tf.reduce_logsumexp(scores, axis=-1), tf.argmax(scores, -1)


def with_gradients(function, arguments, upstream=None):
    rows = arguments[0].shape[0]
    if upstream is None:
        upstream = tf.random.stateless_normal([rows], [0, 4])
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        normalizer, best = function(*arguments)
        total = tf.reduce_sum(normalizer * upstream)
    return normalizer, best, tape.gradient(total, arguments)


def chunked(chunk_size):
    def function(hidden, table, bias):
        return log_normalizer(hidden, table, bias, chunk_size)

    return function


def graph(function):
    """Traced for any number of rows."""
    return tf.function(
        function,
        input_signature=[
            tf.TensorSpec([None, WIDTH]),
            tf.TensorSpec([VOCAB_SIZE, WIDTH]),
            tf.TensorSpec([VOCAB_SIZE]),
        ],
    )


def compiled(function):
    return tf.function(function, jit_compile=True)


@pytest.mark.parametrize("chunk_size", CHUNK_SIZES)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function, graph, compiled])
def test_equals_the_direct_computation(wrap, chunk_size):
    arguments = inputs()
    expected = with_gradients(direct, arguments)
    found = with_gradients(wrap(chunked(chunk_size)), arguments)
    assert found[0].shape == (ROWS,)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])
    assert found[1].dtype == tf.int32
    for ours, theirs in zip(found[2], expected[2], strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)


def test_gradients_are_those_of_finite_differences():
    hidden, table, bias = (np.float64(x) for x in inputs(rows=5))
    upstream = np.linspace(-1, 2, 5)
    _, _, gradients = with_gradients(
        chunked(2), inputs(rows=5), tf.constant(upstream, tf.float32)
    )

    def total(hidden, table, bias):
        scores = hidden @ table.T + bias
        top = scores.max(axis=1)
        return upstream @ (top + np.log(np.exp(scores - top[:, None]).sum(axis=1)))

    rng = np.random.default_rng(0)
    for i, gradient in enumerate(gradients):
        direction = rng.normal(size=gradient.shape)
        step = 1e-5
        values = []
        for sign in (1, -1):
            moved = [hidden, table, bias]
            moved[i] = moved[i] + sign * step * direction
            values.append(total(*moved))
        slope = (values[0] - values[1]) / (2 * step)
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-5)


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


def shapes(graph_def):
    """Static shapes of all tensors of a concrete function, loop bodies included."""
    seen, todo = [], [graph_def]
    names = set()
    while todo:
        current = todo.pop()
        for operation in current.get_operations():
            seen += [
                tuple(t.shape.as_list()) for t in operation.outputs if t.shape.rank
            ]
            for attribute in ("body", "cond", "f", "then_branch", "else_branch"):
                try:
                    name = operation.get_attr(attribute).name
                except ValueError:
                    continue
                if name not in names:
                    names.add(name)
                    todo.append(current._get_function(name).graph)
    return seen


@pytest.mark.parametrize("chunk_size", [1, 7])
def test_scores_of_all_rows_never_exist(chunk_size):
    """Neither forward nor backward holds a tensor of rows x vocabulary."""
    arguments = inputs()

    def step(function):
        traced = tf.function(lambda *args: with_gradients(function, args))
        return shapes(traced.get_concrete_function(*arguments).graph)

    def holds_all_scores(found):
        return any(
            VOCAB_SIZE in shape
            and np.prod([d or 1 for d in shape]) >= ROWS * VOCAB_SIZE
            for shape in found
            if None not in shape
        )

    ours = step(chunked(chunk_size))
    # What the search is for is there, one chunk at a time...
    assert (chunk_size, VOCAB_SIZE) in ours
    assert not holds_all_scores(ours)
    # ... and it would be found in the direct computation.
    assert holds_all_scores(step(direct))


@pytest.mark.parametrize(("device", "size"), [("cpu", 128), ("gpu", 1024)])
def test_how_many_rows_at_one_time_suits_the_device(device, size):
    traced = tf.function(chunked(None))
    with traced_for(device):
        found = shapes(traced.get_concrete_function(*inputs(rows=1500)).graph)
    assert {shape for shape in found if shape[1:] == (VOCAB_SIZE,)} == {
        (size, VOCAB_SIZE)
    }


MEMORY_PROGRAM = """
import json, re
import tensorflow as tf
from electra_tf.pretrain.vocabulary_softmax import log_normalizer

ROWS, WIDTH, VOCAB_SIZE = 4096, 8, 10000  # 164 MB of scores
hidden, table = tf.ones([ROWS, WIDTH]), tf.ones([VOCAB_SIZE, WIDTH])
bias = tf.zeros([VOCAB_SIZE])

def direct(hidden, table, bias):
    return tf.reduce_logsumexp(tf.matmul(hidden, table, transpose_b=True) + bias, -1)

def chunked(hidden, table, bias):
    return log_normalizer(hidden, table, bias, 128)[0]

def step(function):
    @tf.function
    def run(*args):
        with tf.GradientTape() as tape:
            tape.watch(args)
            total = tf.reduce_sum(function(*args))
        return tape.gradient(total, args)
    run(hidden[:200], table, bias)
    run(hidden, table, bias)
    # Not getrusage: its peak includes that of the process that started this one.
    with open("/proc/self/status") as file:
        return int(re.search(r"VmHWM:\\s+(\\d+)", file.read())[1]) / 1024

def small(hidden, table, bias):
    return log_normalizer(hidden[:200], table, bias, 128)[0]

print(json.dumps([step(small), step(chunked), step(direct)]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory():
    """Also what the backward pass keeps, which a graph's shapes do not show."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    before, after_chunked, after_direct = json.loads(run.stdout.splitlines()[-1])
    assert after_chunked - before < 80
    assert after_direct - after_chunked > 150  # megabytes: what is avoided
