# SPDX-License-Identifier: Apache-2.0
"""A step without variables computes what the step with them does."""

import numpy as np
import pytest
import tensorflow as tf
from variable_free import without_variables

from electra_tf.errors import UserError
from electra_tf.pretrain.pretraining import TrainablePretrainer
from electra_tf.train import distribution, optimization
from electra_tf.train import step as training_step
from tests.helpers.tiny_pretraining import tiny_batch, tiny_config, tiny_model


def make_step(variant, **hparams):
    model = tiny_model(variant, layers=2, dropout=0.1)
    config = tiny_config(**hparams)
    state = training_step.TrainState(model, optimization.create_optimizer(config))
    return training_step.TrainingStep(
        TrainablePretrainer(model),
        state,
        distribution.create_strategy(config)._replace(jit_compile=False),
        seed=3,
        accumulation=config.gradient_accumulation_steps,
    )


def traced(step, batch):
    @tf.function(autograph=False)
    def once(*tensors):
        return step.once(dict(zip(batch, tensors, strict=True)))

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in batch.values()]
    return once, once.get_concrete_function(*specs)


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param("electra", marks=pytest.mark.thorough),
        pytest.param("two_tower", marks=pytest.mark.thorough),
        "electric_unigram",
    ],
)
def test_a_step_without_variables_is_the_same(variant):
    step, batch = make_step(variant), tiny_batch()
    once, concrete = traced(step, batch)
    variables = list(step.state.variables().values())
    function = without_variables(concrete, variables)
    before = [v.numpy() for v in variables]
    *after, row = function(*map(tf.constant, before), *batch.values())
    expected = once(*batch.values())
    np.testing.assert_allclose(row, expected, rtol=1e-5, atol=1e-5)
    changed = 0
    for variable, new, old in zip(variables, after, before, strict=True):
        np.testing.assert_allclose(new, variable.numpy(), atol=1e-6)
        changed += not np.array_equal(old, new)
    assert changed > len(variables) / 2
    if variant == "two_tower":  # scores the vocabulary in a loop of its own
        return
    hlo = function.experimental_get_compiler_ir(*function.input_signature)("hlo")
    assert " while(" not in hlo


def test_what_has_a_loop_over_variables_is_refused():
    step, batch = make_step("electra", gradient_accumulation_steps=2), tiny_batch()
    _, concrete = traced(step, batch)
    variables = list(step.state.variables().values())
    with pytest.raises(UserError, match="cannot be compiled elsewhere"):
        without_variables(concrete, variables)
    with pytest.raises(UserError, match="not in its state"):
        without_variables(concrete, variables[1:])
