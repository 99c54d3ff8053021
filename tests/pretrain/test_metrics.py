# SPDX-License-Identifier: Apache-2.0
"""Metrics, and alarms: in made-up metrics, and in a run that diverges."""

import types

import numpy as np
import pytest

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import EXIT_DIVERGED
from electra_tf.pretrain import metrics
from electra_tf.pretrain.metrics import HealthMonitor
from electra_tf.pretrain.objectives import objective_of
from electra_tf.train.reporting import Ratio
from tests.helpers.forked_runs import metrics_of, pretrain
from tests.helpers.runs import refused, tiny
from tests.helpers.tiny_pretraining import each_variant, shared_model, shared_output


@pytest.mark.parametrize("variant", each_variant())
def test_an_objective_has_the_sums_that_its_metrics_need(variant):
    own = shared_model(variant).objective.metrics
    sums = shared_output(variant).sums
    values = metrics.evaluation_metrics(own, sums)
    assert values.keys() == {m.name for m in own if m.evaluation}
    assert np.isfinite(list(values.values())).all()
    steps = {k: np.asarray(v)[None] for k, v in sums.items() if not v.shape.rank}
    values = {m.name: m.training(steps) for m in own if m.training}
    assert values.keys() == {m.name for m in own if m.training}
    assert all(value.shape == (1,) for value in values.values())


def test_a_step_logs_what_an_evaluation_computes():
    """But disc_loss: over the tokens of a step, over sequences as in the original."""
    both = [m for m in metrics.ALL_METRICS if m.training and m.evaluation]
    differ = [m.name for m in both if m.training != m.evaluation]
    assert len(both) > 10 and differ == ["disc_loss"]


def test_a_ratio_without_counts_is_zero():
    sums = {"right": np.array([3.0, 0.0]), "all": np.array([4.0, 0.0])}
    np.testing.assert_array_equal(Ratio("right", "all")(sums), [0.75, 0.0])


@pytest.mark.parametrize(
    ("objective", "generator", "is_drawn"),
    [
        *(("electra", "masked_lm", True), ("mlm", "tied", True)),
        *(("two_stage", "masked_lm", True), ("frozen_generator", "masked_lm", False)),
        *(("multi_choice", "unigram", False), ("electra", "uniform", False)),
    ],
)
def test_generators_that_learn_nothing_have_no_curves(objective, generator, is_drawn):
    names = {metric.name for metric in metrics.plotted(objective, generator)}
    assert ("masked_lm_loss" in names) == is_drawn
    assert {"loss", "disc_loss", "token_loss"} <= names


# Alarms.


def healthy(steps, seed=0):
    """Metrics of a run that learns, with the noise of small batches."""
    random = np.random.default_rng(seed)
    at = np.arange(1, steps + 1) / steps

    def noisy(values, share):
        return values * (1 + share * random.standard_normal(steps))

    recall = np.clip(noisy(0.5 * at, 0.3), 0, 1)
    return {
        "loss": noisy(10 + 40 * np.exp(-6 * at), 0.15),
        "masked_lm_loss": noisy(3 + 7 * np.exp(-8 * at), 0.15),
        "disc_loss": noisy(0.4 - 0.2 * at, 0.1),
        "disc_accuracy": noisy(0.88 + 0.05 * at, 0.02),
        "disc_recall": recall,
        "finite": np.ones(steps),
    }


def watch(metrics, policy="warn", **options):
    steps, lines, chunk = len(metrics["loss"]), [], 7
    monitor = HealthMonitor(
        policy,
        types.SimpleNamespace(log=lines.append),
        warmup=steps // 10,
        vocab_size=30_522,
        **options,
    )
    for start in range(0, steps, chunk):
        rows = {name: values[start : start + chunk] for name, values in metrics.items()}
        monitor(start + 1, rows)
    return lines


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_learns_has_no_warning(seed):
    assert watch(healthy(6000, seed)) == []


def from_step(step, **values):
    """Sets metrics from a step on, to values or to functions of what they were."""

    def change(metrics):
        for name, value in values.items():
            tail = metrics[name][step:]
            metrics[name][step:] = value(tail) if callable(value) else value

    return change


# A loss of 0.325 is the entropy of 0.1.
nothing_replaced = from_step(2000, disc_recall=0, disc_accuracy=0.9, disc_loss=0.325)
all_replaced = from_step(2000, disc_recall=1, disc_accuracy=0.1, disc_loss=0.33)


def spike(metrics, step=3000):
    metrics["loss"][step : step + 15] *= 4


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (nothing_replaced, "discriminator collapse up to step "),
        (all_replaced, "discriminator collapse up to step "),
        (from_step(3000, masked_lm_loss=lambda x: x + 1), "generator does not learn"),
        (from_step(0, masked_lm_loss=10.2), "does not learn up to step 1,"),
        (spike, "divergence up to step 3,"),
    ],
)
def test_a_fault_is_reported_once(fault, text):
    metrics = healthy(6000)
    fault(metrics)
    (line,) = watch(metrics)
    assert text in line
    refused(lambda: watch(metrics, "stop"), "stopped by", text, code=EXIT_DIVERGED)


def test_a_discriminator_that_knows_more_than_the_share():
    """Though it calls no token replaced yet."""
    metrics = healthy(6000)
    nothing_replaced(metrics)
    metrics["disc_loss"][2000:] = 0.3
    assert watch(metrics) == []


def test_guessing_is_not_inferred_from_a_loss_of_other_tokens():
    """electra_15 learns from masked tokens alone, most of which are replaced."""
    metrics = healthy(6000)
    all_replaced(metrics)
    metrics["disc_loss"][2000:] = 0.5  # guessing 7 of 10 has 0.61
    assert watch(metrics, counts_all_tokens=False) == []
    assert len(watch(metrics)) == 1
    config = PretrainingConfig()
    partial = [n for n in OBJECTIVES if not objective_of(n, config).counts_all_tokens]
    assert partial == ["electra_15"]


def test_steps_that_were_left_out_do_not_count():
    metrics = healthy(6000)
    for values in metrics.values():
        values[3000:3015] = np.nan
    metrics["finite"][3000:3015] = 0
    assert watch(metrics) == []


def test_a_fault_that_returns_is_reported_again():
    metrics = healthy(6000)
    spike(metrics, 2000)
    spike(metrics, 4000)
    assert len(watch(metrics)) == 2


@pytest.mark.thorough
def test_a_rate_that_is_too_high_ends_the_run_with_the_state_saved(tiny_data):
    hparams = tiny(
        num_train_steps=700,
        num_warmup_steps=600,
        learning_rate=3.0,
        save_checkpoints_steps=999,
        on_alarm="stop",
    )
    run = pretrain(tiny_data, "too_high", hparams).wait()
    assert run.returncode == EXIT_DIVERGED, run.stdout
    assert 'error: stopped by "on_alarm": generator does not learn' in run.stderr
    folder = tiny_data / "models" / "too_high"
    last = metrics_of(folder)[-1]["step"]
    assert (folder / f"model.ckpt-{last}.json").is_file()
    again = pretrain(tiny_data, "too_high", hparams | {"on_alarm": "warn"}).wait()
    assert again.returncode == 0 and f"from {folder}/model.ckpt-{last}" in again.stdout
