# SPDX-License-Identifier: Apache-2.0
"""Every objective is resumed bit for bit: all of its state is in the checkpoints.

In one process: another model, with other weights and after other random numbers,
continues from a checkpoint as the one that wrote it.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.pretrain.pretrain_data import RunData
from electra_tf.pretrain.run import batches_of
from electra_tf.storage.checkpoints import Checkpoints, of_checkpoint
from electra_tf.text.vocabulary import Vocabulary, write_tokens
from electra_tf.train.distribution import create_strategy
from tests.helpers.runs import OF_OBJECTIVE, by_default, tiny
from tests.pretrain.test_electra_variants import Staged

# Networks that hold other variables.
VARIANTS = {
    "scaled": {"precision": "mixed_float16", "gradient_accumulation_steps": 2},
    "unigram": {"generator": "unigram"},
    "uniform_generator": {"uniform_generator": True},
    "untied": {"untied_generator_embeddings": True},
    "disentangled": {"embedding_sharing": "disentangled"},
    "modern": {
        **{"block": "modern", "local_window": 8, "overrides": {"num_hidden_layers": 3}},
        **{"precision": "mixed_bfloat16", "gradient_accumulation_steps": 2},
    },
}
# What some batches have that others do not.
DRAWN = {"curriculum": "temperature"}


def hparams_of(objective):
    """Two steps, each of which changes the weights."""
    found = {"num_train_steps": 2, "num_warmup_steps": 0}
    if objective == "two_stage":  # The second stage begins where the run is cut.
        found["stage_one_steps"] = 1
    if objective in VARIANTS:
        return found | VARIANTS[objective]
    return found | {"objective": objective} | OF_OBJECTIVE.get(objective, {})


class Resumable(Staged):
    """A run's model and steps, without its directory."""

    def __init__(self, data, objective, seed):
        super().__init__(data, **hparams_of(objective))
        keras.utils.set_random_seed(seed)
        rng = np.random.default_rng(seed)
        for variable in self.state.model.trainable_variables:
            variable.assign(rng.normal(0, 0.1, variable.shape))

    def make(self, step):
        """Makes a step, as a run that is begun there; returns its metrics."""
        self.begin(step)
        batches = batches_of(
            self.config, RunData(self.vocab), self.placement, start_step=step
        )
        return self.step.run(batches, step, 1)


@pytest.fixture
def eagerly():
    """Python makes every step, so its own state and random numbers count, too."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module")
def masking_hparams(tiny_data):
    """Hparams of masks that depend on the step or the vocabulary."""
    tokens = (tiny_data / "vocab.txt").read_text().split()
    pieces = write_tokens(
        tiny_data / "pieces.txt", [*tokens[:30], *(f"##{t}" for t in tokens[30:])]
    )
    return {
        "curriculum": {"temperature_start": 4.0},
        "words": {"mask_unit": "word", "vocab_file": pieces.path},
    }


def check_complete(variables, created, model):
    """All created variables are saved, with slots for all trained ones."""
    assert len(created) > 20
    saved = {v.ref() for v in variables.values()}
    assert not [v.name for v in created if v.ref() not in saved]
    assert len(variables) == len(created)
    slots = [n for n in variables if n.endswith(("/adam_m", "/adam_v"))]
    assert len(slots) == 2 * len(model.trainable_variables)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.filterwarnings("ignore:.*run_functions_eagerly")  # not of tf.data
@pytest.mark.parametrize(
    "objective",
    by_default([*OBJECTIVES, *VARIANTS], ["electra", "two_stage", "disentangled"]),
)
def test_a_restored_model_makes_the_same_step(tiny_data, tmp_path, objective):
    created = []

    def create(next_creator, **kwargs):
        created.append(next_creator(**kwargs))
        return created[-1]

    with tf.variable_creator_scope(create):  # Anywhere in the process.
        straight = Resumable(tiny_data, objective, seed=1)
        straight.make(0)
    variables = straight.state.variables()
    check_complete(variables, created, straight.task.model)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, variables)
    assert of_checkpoint(str(tmp_path / "model.ckpt-1")).shapes == {
        name: list(v.shape) for name, v in variables.items()
    }
    expected = straight.make(1)
    resumed = Resumable(tiny_data, objective, seed=2)
    checkpoints.restore(checkpoints.newest_intact(), resumed.state.variables())
    found = resumed.make(1)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    values = resumed.values()
    for name, value in straight.values().items():
        np.testing.assert_array_equal(values[name], value, err_msg=name)


@pytest.mark.parametrize(
    "objective",
    by_default(
        [*OBJECTIVES, "curriculum", "words"],
        ["electra", "electra_15", "curriculum", "words"],
    ),
)
def test_a_batch_is_a_function_of_its_step(tiny_data, masking_hparams, objective):
    """It does not depend on earlier draws of this process."""
    own = masking_hparams.get(objective) or hparams_of(objective)
    hparams = tiny(**own)
    config = PretrainingConfig.from_hparams(str(tiny_data), "m", hparams)
    data = RunData(Vocabulary.load(config.vocab_file))
    place = config, data, create_strategy(config)
    batches = batches_of(*place)
    before, _, expected = (next(batches) for _ in range(3))
    keras.utils.set_random_seed(2)
    found = next(batches_of(*place, start_step=2))
    assert found.keys() == expected.keys()
    assert DRAWN.get(objective, "sample_uniform") in found
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert (before["sample_uniform"] != found["sample_uniform"]).numpy().all()
