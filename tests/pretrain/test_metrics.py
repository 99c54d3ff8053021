# SPDX-License-Identifier: Apache-2.0
"""The definitions of metrics, and what is made of them for people."""

import numpy as np
import pytest

from electra_tf.config.objectives import OBJECTIVES
from electra_tf.pretrain import metrics
from electra_tf.pretrain.objectives import objective_class
from electra_tf.train.metrics import Ratio
from tests.helpers.runs import ROOT
from tests.helpers.tiny_pretraining import VARIANTS, tiny_batch, tiny_model


def test_docs_are_current():
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics.page(), "python -m electra_tf.pretrain.metrics > that page"


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_objective_has_the_sums_that_its_metrics_need(variant):
    model, batch = tiny_model(variant), tiny_batch()
    own = model.objective.metrics
    sums = model.objective.sums(model(batch), batch)
    values = metrics.evaluation_metrics(own, sums)
    assert values.keys() == {m.name for m in own if m.evaluation}
    assert np.isfinite(list(values.values())).all()
    steps = {k: np.asarray(v)[None] for k, v in sums.items() if not v.shape.rank}
    values = metrics.training_metrics(own, steps)
    assert values.keys() == {m.name for m in own if m.training}
    assert all(value.shape == (1,) for value in values.values())


def test_names_are_unique_and_explained():
    names = [metric.name for metric in metrics.ALL_METRICS]
    assert len(set(names)) == len(names)
    for name in OBJECTIVES:
        assert objective_class(name).name == name
        assert set(objective_class(name).metrics) <= set(metrics.ALL_METRICS)
    for metric in metrics.ALL_METRICS:
        assert (
            metric.label and metric.meaning and (metric.evaluation or metric.training)
        )


def test_a_ratio_without_counts_is_zero():
    sums = {"right": np.array([3.0, 0.0]), "all": np.array([4.0, 0.0])}
    np.testing.assert_array_equal(Ratio("right", "all")(sums), [0.75, 0.0])
