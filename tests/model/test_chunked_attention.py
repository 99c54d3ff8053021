# SPDX-License-Identifier: Apache-2.0
"""Attention of some queries at a time, and its gradient, are those of all at once."""

import numpy as np
import pytest

from electra_tf.model.encoder import DIRECTIONS
from tests.helpers.encoder_passes import LENGTH, assert_same, pass_of
from tests.helpers.runs import by_default


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("chunk_size", by_default([1, 5, 19], [5]))
def test_result_is_independent_of_the_chunk_size(direction, chunk_size):
    expected, plain = pass_of(direction)
    found, chunked = pass_of(direction, attention_chunk_size=chunk_size)
    assert_same(found, expected)
    loops = {"While", "StatelessWhile"}
    assert loops & set(chunked) and not loops & set(plain)


@pytest.mark.thorough
@pytest.mark.parametrize("for_target", ["cpu", "tpu"])
def test_compiled_and_for_another_target(for_target):
    compiled = pass_of(jit=True, for_target=for_target, attention_chunk_size=7)
    assert_same(compiled[0], pass_of()[0])


def test_a_chunk_of_the_whole_length_is_plain_attention():
    expected, plain = pass_of()
    found, same = pass_of(attention_chunk_size=LENGTH)
    assert same == plain
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
