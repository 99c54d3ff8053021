# SPDX-License-Identifier: Apache-2.0
"""The definitions of metrics, and what is made of them for people."""

import numpy as np
import pytest

from electra_tf.pretrain import metrics
from electra_tf.train.reporting import Ratio
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
