# SPDX-License-Identifier: Apache-2.0
"""The learning rate by step."""

import keras
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.train.optimization import WarmupPolynomialDecay, create_optimizer
from tests.helpers.runs import ROOT
from tests.helpers.tiny_pretraining import tiny_config


@pytest.mark.parametrize(
    ("hparams", "rates"),
    [
        ({"schedule": "constant"}, {0: 0, 5: 0.5, 10: 1, 99: 1, 200: 1}),
        ({"schedule": "linear"}, {0: 0, 5: 0.5, 10: 1, 55: 0.5, 100: 0, 200: 0}),
        ({"schedule": "wsd"}, {0: 0, 5: 0.5, 10: 1, 90: 1, 95: 0.5, 100: 0, 200: 0}),
        (
            {"schedule": "wsd", "decay_proportion": 0.5, "num_warmup_steps": 0},
            {0: 1, 50: 1, 75: 0.5, 100: 0},
        ),
        (
            {"schedule": "polynomial", "lr_decay_power": 0.5},
            {0: 0, 5: 0.5, 10: 1, 55: 0.5**0.5, 100: 0, 200: 0},
        ),
        # Each phase from its own beginning.
        (
            {
                "num_train_steps": 130,
                "phases": [
                    {"num_train_steps": 100, "schedule": "linear"},
                    {"num_train_steps": 20, "num_warmup_steps": 4},
                    {"num_train_steps": 10, "learning_rate": 1.0, "schedule": "wsd"},
                ],
            },
            {5: 0.5, 55: 0.5, 99: 1 / 90, 100: 0, 102: 0.45, 110: 0.5, 119: 0.05}
            | {120: 0, 125: 0.25, 130: 0, 140: 0},
        ),
        # Both at once: the decay starts before the warm-up ends.
        (
            {"schedule": "wsd", "decay_proportion": 1, "num_warmup_steps": 50},
            {0: 0, 25: 0.375, 50: 0.5, 75: 0.25},
        ),
    ],
)
def test_other_schedules(hparams, rates):
    usual = {"learning_rate": 2.0, "num_train_steps": 100, "num_warmup_steps": 10}
    optimizer = create_optimizer(tiny_config(**(usual | hparams)))
    copy = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    copy.build([keras.Variable([1.0])])
    for step, share in rates.items():
        copy.iterations.assign(step)
        assert float(copy.learning_rate) == pytest.approx(2 * share, abs=1e-6)


@pytest.mark.parametrize("power", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("warmup", [(0, 0.0), (10, 0.0), (0, 0.033), (3, 0.2)])
def test_polynomial_decay(power, warmup):
    schedule = WarmupPolynomialDecay(3e-4, 100, *warmup, power)
    wait = max(warmup[0], 100 * warmup[1])
    for step in (0, 1, 5, 10, 11, 99, 100, 101, 10**6):
        expected = 3e-4 * (1 - min(step, 100) / 100) ** power
        expected *= min(1.0, step / wait) if wait else 1.0
        for form in (step, tf.constant(step, tf.int64), float(step)):
            assert float(schedule(form)) == pytest.approx(expected, 1e-5, abs=1e-10)


def test_a_million_steps():
    """float32 counts each of them."""
    schedule = WarmupPolynomialDecay(5e-4, 1_000_000, 10_000)
    for step in (1, 9_999, 10_000, 500_000, 999_999):
        expected = 5e-4 * (1 - step / 1e6) * min(1, step / 1e4)
        rate = float(schedule(tf.constant(step)))
        assert rate == pytest.approx(expected, rel=1e-5, abs=5e-11)


def test_nvidias_two_phases():
    """Each decays from the end of its warm-up with power 1/2."""
    recipe = read_hparams(str(ROOT / "configs" / "nvidia_electra_base.json"))
    optimizer = create_optimizer(PretrainingConfig.from_hparams("D", "m", recipe))
    found = optimizer.get_config()
    assert (found["beta_1"], found["beta_2"]) == (0.878, 0.974)
    assert found["trust_ratio"] and found["bias_correction"]
    optimizer.build([keras.Variable([1.0])])
    for step, rate in (
        *((1000, 3e-3), (2000, 6e-3), (6000, 6e-3 * 0.5**0.5), (10_000, 0)),
        *((10_100, 2e-3), (10_200, 4e-3), (10_933, 0)),
        (10_200 + 733 // 2, 4e-3 * (367 / 733) ** 0.5),
    ):
        optimizer.iterations.assign(step)
        assert float(optimizer.learning_rate) == pytest.approx(rate, abs=1e-8)
