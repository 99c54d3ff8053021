# SPDX-License-Identifier: Apache-2.0
"""Outputs of a head in repeated evaluations."""

import numpy as np
import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.batches import head_outputs
from electra_tf.finetune.model import FinetuningModel
from electra_tf.finetune.preprocessing import FeatureStore
from tests.helpers.tiny_finetuning import TINY

TASK = {"type": "classification", "train": "t", "dev": "d", "text_a": "x", "label": "y"}
HPARAMS = {"task_names": ["a", "b"], "vocab_size": 9, "tasks": {"a": TASK, "b": TASK}}
CONFIG = FinetuningConfig.from_hparams("D", "m", TINY | HPARAMS)


def store_of(task: str, count: int) -> FeatureStore:
    ids = np.random.default_rng(1).integers(1, 9, (count, 24), np.int32)
    arrays = {"input_ids": ids, "input_mask": np.ones_like(ids)}
    arrays |= {"segment_ids": np.zeros_like(ids)}
    number = CONFIG.task_names.index(task)
    arrays |= {"task_id": np.full(count, number, np.int32)}
    for name in ("label_ids", "eid"):
        arrays[f"{task}:{name}"] = np.zeros(count, np.int32)
    return FeatureStore(arrays, "", 2, [])


@pytest.fixture
def model():
    heads = {"a": {"kind": "classification", "num_labels": 2}}
    heads |= {"b": {"kind": "classification", "num_labels": 3}}
    return FinetuningModel(CONFIG.model_config(), CONFIG.embedding_size, heads)


def logits(model, task, count):
    found = head_outputs(model, task, CONFIG, store_of(task, count))
    return np.array([row["logits"] for rows in found for row in rows])


def test_later_evaluation_does_not_trace_again(model, monkeypatch):
    traced, call = [], FinetuningModel.call
    monkeypatch.setattr(
        FinetuningModel, "call", lambda *a, **k: traced.append(1) or call(*a, **k)
    )
    first = logits(model, "a", 12)
    np.testing.assert_array_equal(logits(model, "a", 12), first)
    assert logits(model, "a", 20).shape == (20, 2)
    assert len(traced) == 1
    assert logits(model, "b", 12).shape == (12, 3)
    assert len(traced) == 2
    for variable in model.trainable_variables:
        variable.assign(2 * variable)
    assert np.abs(logits(model, "a", 12) - first).max() > 1e-3
