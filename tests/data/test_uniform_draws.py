# SPDX-License-Identifier: Apache-2.0
"""The numbers of the masking are those of the input pipeline, bit for bit."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.data.uniform_draws import uniforms
from electra_tf.pretrain import masking


@pytest.mark.parametrize(
    "seed, step, shape",
    [
        (42, 0, (4, 12)),
        (0, 17, (3, 1)),
        (-5, 10**10, (128, 57)),
        (2**40 + 1, 3, (7, 77)),
    ],
)
def test_the_numbers_are_those_of_tensorflow(seed, step, shape):
    ours = uniforms(seed, step, shape)
    theirs = tf.random.stateless_uniform(shape, tf.constant([seed, step], tf.int64))
    assert ours.dtype == np.float32 and ours.shape == shape
    assert np.array_equal(ours, theirs)
    rows = shape[0]
    for first, count in ((0, rows), (1, rows - 1), (rows // 2, 1), (rows, 0)):
        part = masking.uniforms(seed, step, (first, count), shape[1])
        assert np.array_equal(part, ours[first : first + count])
