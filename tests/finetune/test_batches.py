# SPDX-License-Identifier: Apache-2.0
"""The lengths of batches, and outputs of a head in evaluations."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune import batches
from electra_tf.finetune.batches import head_outputs, num_parts
from electra_tf.finetune.model import FinetuningModel
from electra_tf.finetune.preprocessing import FeatureStore
from tests.helpers.tiny_finetuning import TINY

# Mostly short, like the sentences of CoLA; one long example.
SHORT = np.concatenate([np.full(5000, 9), np.full(20, 30), [61]])


def config(**hparams):
    return FinetuningConfig.from_hparams("D", "m", {"task_names": ["cola"], **hparams})


def training(lengths=SHORT, *, steps=1000, is_compiled=True, **hparams):
    return batches.training_buckets(
        config(**hparams), lengths, steps=steps, seed=1, is_compiled=is_compiled
    )


def test_no_length_exceeds_max_seq_length():
    assert training(np.full(100, 99), max_seq_length=99)[-1] == 99
    assert training(np.full(9, 5), max_seq_length=12) == (12,)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [([], (128,)), ([64, 32], (32, 64, 128)), ([500, 32], (32, 128))],
)
def test_length_buckets_have_precedence(chosen, expected):
    assert training(length_buckets=chosen) == expected
    found = batches.evaluation_buckets(config(length_buckets=chosen), SHORT)
    assert found == expected


TASK = {"type": "classification", "train": "t", "dev": "d", "text_a": "x", "label": "y"}
HPARAMS = {"task_names": ["a", "b"], "vocab_size": 9, "tasks": {"a": TASK, "b": TASK}}
CONFIG = FinetuningConfig.from_hparams("D", "m", TINY | HPARAMS)


LABELS = {"a": ("x", "y"), "b": ("x", "y", "z")}
TASKS = {
    k: SimpleNamespace(name=k, names=names, config=CONFIG)
    for k, names in LABELS.items()
}


def store_of(task: str, count: int) -> FeatureStore:
    rng = np.random.default_rng(1)
    ids = rng.integers(1, 9, (count, 24), np.int32)
    mask = (np.arange(24) < rng.integers(3, 25, (count, 1))).astype(np.int32)
    arrays = {"input_ids": ids * mask, "input_mask": mask}
    arrays |= {"segment_ids": np.zeros_like(ids)}
    number = CONFIG.task_names.index(task)
    arrays |= {"task_id": np.full(count, number, np.int32)}
    for name in ("label_ids", "eid"):
        arrays[f"{task}:{name}"] = np.zeros(count, np.int32)
    return FeatureStore(arrays, 2)


@pytest.fixture
def model():
    heads = {"a": {"kind": "classification", "num_labels": 2}}
    heads |= {"b": {"kind": "classification", "num_labels": 3}}
    return FinetuningModel(CONFIG.model_config(), CONFIG.embedding_size, heads)


def logits(model, task, count):
    found = head_outputs(model, TASKS[task], store_of(task, count))
    return np.array([row["logits"] for row in found])


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


def test_outputs_are_in_order_and_independent_of_the_batch(model, monkeypatch):
    store = store_of("a", 30)
    monkeypatch.setattr("electra_tf.finetune.batches._WINDOW", 16)
    counts = []
    found = head_outputs(model, TASKS["a"], store, counts.append)
    found = np.array([row["logits"] for row in found])
    batch = {name: tf.constant(store[name]) for name in store}
    expected = model(batch).outputs["a"]["logits"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert counts == [*range(1, len(counts) + 1)] and len(counts) > 2


@pytest.mark.parametrize(
    ("lengths", "expected"), [([64] * 64, 1), ([8] * 56 + [64] * 8, 4)]
)
def test_parts_are_made_where_they_save_padding(lengths, expected):
    config = FinetuningConfig.from_hparams(
        "D", "m", TINY | HPARAMS | {"train_batch_size": 64}
    )
    assert num_parts(config, np.array(lengths), seed=1) == expected
