# SPDX-License-Identifier: Apache-2.0
"""What is traced for a compiler or another target is the same mathematics."""

import pytest

from electra_tf.model import target
from tests.helpers.encoder_passes import assert_same, pass_of


def test_an_encoder_and_its_gradients_are_the_same():
    expected, plain = pass_of()
    for form in ({"jit": True}, {"for_target": "tpu"}):
        found, kinds = pass_of(**form)
        assert_same(found, expected)
        # It is another form.
        assert kinds["BiasAddGrad"] < plain["BiasAddGrad"]


def test_what_xla_compiles_for():
    assert target.compiled_for() is None
    with target.compiled():
        assert target.compiled_for() == "cpu"
        with target.compiled():
            pass
        assert target.compiled_for() == "cpu"
    assert target.compiled_for() is None


def test_an_unknown_target():
    with pytest.raises(ValueError, match="one of cpu, gpu, tpu"):
        target.set_target("npu")
