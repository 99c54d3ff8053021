# SPDX-License-Identifier: Apache-2.0
"""Whatever a run holds in a variable is in its checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.stored_tensors import of_checkpoint
from tests.helpers.runs import OF_OBJECTIVE
from tests.train.test_loop import Trained

# Hparams, and the steps that are made: variables might wait for the first one.
RUNS = {
    "electra": ({"precision": "mixed_float16", "gradient_accumulation_steps": 2}, 1),
    "unigram": ({"generator": "unigram"}, 0),
    "uniform_generator": ({"uniform_generator": True}, 0),
    "untied": ({"untied_generator_embeddings": True}, 0),
    "disentangled": ({"embedding_sharing": "disentangled"}, 0),
}
RUNS |= {
    name: ({"objective": name} | OF_OBJECTIVE.get(name, {}), 0)
    for name in OBJECTIVES
    if name not in RUNS
}


def made_variables(make):
    """All variables that come to be anywhere in the process while `make` runs."""
    found = []

    def create(next_creator, **kwargs):
        variable = next_creator(**kwargs)
        found.append(variable)
        return variable

    with tf.variable_creator_scope(create):
        result = make()
    return result, found


def not_saved(state, found):
    saved = {v.ref() for v in state.variables().values()}
    return [v.name for v in found if v.ref() not in saved]


@pytest.mark.parametrize("name", RUNS)
def test_every_variable_is_saved(tiny_data, tmp_path, name):
    hparams, steps = RUNS[name]

    def make():
        trained = Trained(tiny_data, **hparams)
        if steps:
            trained.run(steps)
        return trained

    trained, found = made_variables(make)
    state = trained.state
    assert len(found) > 20
    assert not not_saved(state, found)
    # Saved under names of their own, with slots for all that learns.
    variables = state.variables()
    assert len(variables) == len(found)
    slots = {n for n in variables if n.endswith(("/adam_m", "/adam_v"))}
    assert len(slots) == 2 * len(trained.task.model.trainable_variables)
    Checkpoints(tmp_path).save(3, variables)
    assert of_checkpoint(str(tmp_path / "model.ckpt-3")).shapes == {
        name: list(v.shape) for name, v in variables.items()
    }


@pytest.mark.parametrize("what", ["metric", "random state", "weight"])
def test_a_variable_that_is_not_saved_is_seen(tiny_data, what):
    def make():
        trained = Trained(tiny_data)
        if what == "metric":
            trained.kept = tf.keras.metrics.Mean()
        elif what == "random state":
            trained.kept = tf.keras.layers.Dropout(0.1)
        else:
            trained.kept = tf.Variable(np.zeros(3, "f4"), name="forgotten")
        return trained

    trained, found = made_variables(make)
    assert not_saved(trained.state, found)
