# SPDX-License-Identifier: Apache-2.0
"""Two stages in one run: what each of them learns, and what it leaves as it was."""

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.pretrain import metrics
from electra_tf.pretrain.electra_variants import TwoStage
from electra_tf.pretrain.pretraining import TrainablePretrainer
from electra_tf.train.step import TrainingStep
from tests.helpers.tiny_pretraining import tiny_batch, tiny_model
from tests.train.test_loop import Trained

STEPS, SWITCH = 6, 3
HPARAMS = {
    "objective": "two_stage",
    "embedding_size": 32,
    "generator_hidden_size": 1.0,
    "num_train_steps": STEPS,
    "num_warmup_steps": 1,
    "gen_weight": 2.0,
    "weight_decay_rate": 0.5,  # Nothing that decays is left as it was.
}


class Staged(Trained):
    """A run as run_pretraining.py makes it, stage by stage."""

    def begin(self, step):
        model, phase = self.state.model, self.config.phase_at(step)
        self.task = TrainablePretrainer(model, phase)
        if step == phase.first:
            self.task.objective.begin(model)
        self.step = TrainingStep(
            self.task,
            self.state,
            self.placement,
            seed=1,
            variables=self.task.objective.trained_variables(model),
            moments_begin_at=phase.first,
        )


def changed(before, after):
    """The names of the variables that are not what they were, bit for bit."""
    return {k for k, v in after.items() if v.tobytes() != before[k].tobytes()}


def is_generators(name):
    return name.startswith("generator")


@pytest.mark.parametrize(
    "init_discriminator", [True, pytest.param(False, marks=pytest.mark.thorough)]
)
def test_what_each_stage_changes(tiny_data, init_discriminator):
    """Weights, and slots: nothing of the other network's, not by decay either."""
    run = Staged(tiny_data, **HPARAMS, init_discriminator=init_discriminator)
    # In each stage, warm-up over one step, then down to nothing.
    rates = [float(run.state.optimizer._learning_rate(step)) for step in range(STEPS)]
    expected = run.config.learning_rate * np.array([0, 2 / 3, 1 / 3] * 2)
    np.testing.assert_allclose(rates, expected, rtol=1e-5, atol=1e-9)
    start = run.values()
    run.begin(0)
    found = run.run(SWITCH)
    assert "disc_loss" not in found
    np.testing.assert_allclose(found["loss"], 2 * found["masked_lm_loss"], rtol=1e-6)
    first = run.values()
    learned = changed(start, first) - {"global_step", "loss_scale/good_steps"}
    assert all(map(is_generators, learned))
    assert len(learned) > 20 and any(name.endswith("/adam_v") for name in learned)

    run.begin(SWITCH)
    begun = run.values()
    copied = changed(first, begun)
    if not init_discriminator:
        assert not copied
    else:
        assert copied and all(n.startswith("electra/") for n in copied)
        for name in [n for n in begun if n.startswith("electra/") and "adam" not in n]:
            theirs = begun[name.replace("electra/", "generator/", 1)]
            np.testing.assert_array_equal(begun[name], theirs)
    # Resuming at the switch does the same again.
    run.begin(SWITCH)
    assert not changed(begun, run.values())

    found = run.run(STEPS - SWITCH, start=SWITCH)
    np.testing.assert_allclose(found["loss"], 50 * found["disc_loss"], rtol=1e-5)
    second = run.values()
    learned = changed(begun, second) - {"global_step", "loss_scale/good_steps"}
    assert not any(map(is_generators, learned))
    trained = run.task.model.objective.trained_variables(run.task.model)
    without_influence = {v.path for v in trained if v.path.endswith("key/bias")}
    assert {v.path for v in trained} <= learned | without_influence
    # Resuming after the switch changes nothing.
    run.begin(SWITCH + 1)
    assert not changed(second, run.values())


@pytest.mark.thorough
def test_moments_are_corrected_from_the_first_step_of_each_stage(tiny_data):
    """AdamW's first update is as large as the rate, whatever the gradient."""
    changes = {"optimizer": "adamw", "schedule": "constant", "num_warmup_steps": 0}
    run = Staged(tiny_data, **HPARAMS | changes | {"weight_decay_rate": 0.0})
    for first in (0, SWITCH):
        run.begin(first)
        before = {k: v.numpy() for k, v in run.state.weights().items()}
        run.run(1, start=first)
        after = {k: v.numpy() for k, v in run.state.weights().items()}
        moved = max(np.abs(after[name] - before[name]).max() for name in before)
        assert moved == pytest.approx(run.config.learning_rate, rel=1e-2)
        run.run(SWITCH - 1, start=first + 1)


def test_a_step_has_the_metrics_of_its_stage():
    model, batch = tiny_model("two_stage"), tiny_batch()
    for stage, names in (
        (1, {m.name for m in metrics.GENERATOR_METRICS}),
        (2, {m.name for m in metrics.DISCRIMINATOR_METRICS}),
    ):
        objective = TwoStage(model.settings, stage)
        sums = objective.sums(model(batch, objective=objective), batch)
        found = metrics.evaluation_metrics(objective.metrics, sums)
        assert names <= found.keys()
        assert ("disc_loss" in found) == (stage == 2)
    assert tf.reduce_all(tf.math.is_finite(list(found.values())))
