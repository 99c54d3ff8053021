# SPDX-License-Identifier: Apache-2.0
"""Two stages, and a frozen generator: what learns when, and what stays."""

import numpy as np
import pytest

from electra_tf.errors import UserError
from electra_tf.interop import readers
from electra_tf.pretrain import start
from electra_tf.pretrain.pretraining import build_pretrainer, task_of
from electra_tf.train.step import TrainingStep
from tests.helpers.exporting import tiny_source, tiny_vocabulary, write_run
from tests.helpers.tiny_pretraining import SPECIAL_IDS, tiny_batch, tiny_config
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
        self.task = task_of(model, phase)
        if step == phase.first > 0 and self.config.init_discriminator:
            model.begin_from_generator()
        self.step = TrainingStep(
            self.task,
            self.state,
            self.placement,
            seed=1,
            variables=model.trained_in(phase),
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
    trained = run.task.model.trained_in(run.config.phase_at(SWITCH))
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


FROZEN = {"objective": "frozen_generator"}
# The shape of the tiny generator.
ALONE = {
    "model_hparam_overrides": {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 40,
    }
}


def loaded(folder, variant, vocab=None, of_run=None, **hparams):
    """(a model with the generator of a run, the run's model)."""
    source = tiny_source(variant, **(of_run or {}))
    path = write_run(folder, source, **(of_run or {}))
    config = tiny_config(**FROZEN, **hparams)
    model = build_pretrainer(config, SPECIAL_IDS)
    variables = {v.path: v.value for v in model.variables}
    found = readers.find(str(path), print)
    vocab = vocab or tiny_vocabulary()
    start.load_generator(found, config, vocab, variables, print)
    return model, source.pretrainer


@pytest.mark.parametrize(
    "variant, of_run", [("electra", {}), ("disentangled", {}), ("mlm", ALONE)]
)
def test_the_loaded_generator_predicts_as_the_other_model(tmp_path, variant, of_run):
    model, other = loaded(tmp_path, variant, of_run=of_run)
    batch = tiny_batch()
    text = (batch[name] for name in ("masked_input_ids", "input_mask", "segment_ids"))
    text = (*text, batch["masked_lm_positions"])
    expected = other.generator.logits_at(*text)
    np.testing.assert_allclose(model.generator.logits_at(*text), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "hparams, words",
    [
        ({"generator_hidden_size": 1.0}, "hidden_size is 8 there"),
        ({"generator_layers": 2.0}, "num_hidden_layers is 1 there"),
        ({"vocab": tiny_vocabulary(96)}, "another vocabulary"),
        ({"variant": "unigram", "of_run": ALONE}, "not a masked language model"),
    ],
)
def test_another_network_or_vocabulary_is_refused(tmp_path, hparams, words):
    hparams = {"variant": "electra"} | hparams
    with pytest.raises(UserError, match=words):
        loaded(tmp_path, **hparams)


def test_steps_leave_the_generator_as_it_is(tiny_data):
    """It has no slots, and weight decay does not reach it."""
    more = {"num_train_steps": 3, "num_warmup_steps": 0, "weight_decay_rate": 0.5}
    run = Trained(tiny_data, **FROZEN, **more)
    before = run.values()
    found = run.run(2)
    np.testing.assert_allclose(found["loss"], 50 * found["disc_loss"], rtol=1e-5)
    assert "masked_lm_loss" in found
    changed = {k for k, v in run.values().items() if (v != before[k]).any()}
    assert {k for k in changed if k.startswith("electra/")}
    assert not [k for k in changed if k.startswith("generator")]
    assert not [k for k in before if k.startswith("generator") and "adam" in k]
