# SPDX-License-Identifier: Apache-2.0
"""A graph for a compiler or another target computes the same."""

from electra_tf.model import target
from tests.helpers.encoder_passes import assert_same, pass_of


def test_an_encoder_and_its_gradients_are_the_same():
    expected, plain = pass_of()
    for form in ({"jit": True}, {"for_target": "tpu"}):
        found, kinds = pass_of(**form)
        assert_same(found, expected)
        # By other operations.
        assert kinds["BiasAddGrad"] < plain["BiasAddGrad"]


def test_target_of_compilation():
    assert target.compiled_for() is None
    with target.compiled():
        assert target.compiled_for() == "cpu"
        with target.compiled():
            pass
        assert target.compiled_for() == "cpu"
    assert target.compiled_for() is None
