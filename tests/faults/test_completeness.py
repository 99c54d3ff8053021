# SPDX-License-Identifier: Apache-2.0
"""All variables of a run are in its checkpoints."""

import pytest
import tensorflow as tf

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.storage.checkpoints import Checkpoints, of_checkpoint
from tests.helpers.runs import OF_OBJECTIVE, by_default
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


@pytest.mark.parametrize(
    "name", by_default(RUNS, ["electra", "disentangled", "electric"])
)
def test_every_variable_is_saved(tiny_data, tmp_path, name):
    hparams, steps = RUNS[name]
    found = []

    def create(next_creator, **kwargs):
        found.append(next_creator(**kwargs))
        return found[-1]

    with tf.variable_creator_scope(create):  # Anywhere in the process.
        trained = Trained(tiny_data, **hparams)
        if steps:
            trained.run(steps)
    assert len(found) > 20
    variables = trained.state.variables()
    saved = {v.ref() for v in variables.values()}
    assert not [v.name for v in found if v.ref() not in saved]
    # Under different names, with slots for all trained variables.
    assert len(variables) == len(found)
    slots = {n for n in variables if n.endswith(("/adam_m", "/adam_v"))}
    assert len(slots) == 2 * len(trained.task.model.trainable_variables)
    Checkpoints(tmp_path).save(3, variables)
    assert of_checkpoint(str(tmp_path / "model.ckpt-3")).shapes == {
        name: list(v.shape) for name, v in variables.items()
    }
