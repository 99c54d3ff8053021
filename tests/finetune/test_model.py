# SPDX-License-Identifier: Apache-2.0
"""Heads, and the model that they are part of."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.model import ModelConfig
from electra_tf.errors import UserError
from electra_tf.finetune import qa_graph
from electra_tf.finetune.model import (
    FinetuningModel,
    TaskHead,
    build_finetuning_model,
    freeze,
    training_task,
)
from electra_tf.finetune.qa import SpanHead
from electra_tf.model.layers import gelu
from electra_tf.train.optimization import create_finetuning_optimizer
from electra_tf.train.step import TrainState

SHAPE = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
)
HEADS = {
    "cola": {"kind": "classification", "num_labels": 2},
    "sts": {"kind": "regression"},
    "chunk": {"kind": "tagging", "num_labels": 5},
    "squad": {"kind": "qa", "beam_size": 3},
}


def make_model(heads=None, seed=0, block="bert", **kwargs) -> FinetuningModel:
    shape = dataclasses.replace(SHAPE, block=block)
    model = FinetuningModel(shape, 8, heads or HEADS, **kwargs)
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = rng.normal(0, 0.2, variable.shape)
        variable.assign(noise + 1.0 * ("gamma" in variable.path))
    return model


def make_batch(rows=8, length=12, seed=0) -> dict[str, tf.Tensor]:
    """Examples of all four tasks, padded by one column at least; the last is none."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, 50, (rows, length)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[:, -1] = 0
    segments = (np.arange(length) >= 4).astype(np.int32) * mask
    task_id = np.arange(rows, dtype=np.int32) % 4
    task_id[-1] = 4
    words = rng.integers(0, 6, (rows, 6)).astype(np.int32)
    batch = {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": segments,
        "task_id": task_id,
        "cola:label_ids": rng.integers(0, 2, rows).astype(np.int32),
        "sts:targets": rng.uniform(0, 1, rows).astype(np.float32),
        "chunk:labeled_positions": words,
        "chunk:labels": rng.integers(0, 5, (rows, 6)).astype(np.int32),
        "chunk:labels_mask": (words > 1).astype(np.float32),
        "squad:start_positions": np.full(rows, 5, np.int32),
        "squad:end_positions": np.full(rows, 7, np.int32),
        "squad:is_impossible": rng.integers(0, 2, rows).astype(np.int32),
    }
    batch |= {f"{name}:eid": np.arange(rows, dtype=np.int32) for name in HEADS}
    return {name: tf.constant(value) for name, value in batch.items()}


def test_loss_is_the_sum_over_examples_of_their_own_task():
    output = make_model()(make_batch(), training=True)
    losses = output.losses.numpy()
    for row in range(8):
        chosen = row % 4 if row < 7 else None
        for number, name in enumerate(HEADS):
            expected = output.outputs[name]["loss"][row] if number == chosen else 0
            assert losses[row, number] == pytest.approx(float(expected))
    assert float(output.total_loss) == pytest.approx(losses.sum(), rel=1e-6)


def test_dropout_needs_a_seed_and_is_repeatable():
    model, batch = make_model(), make_batch()

    def loss(training, seed=None):
        return float(model(batch, training=training, seed=seed).total_loss)

    assert loss(True) == loss(True)
    seeds = [tf.constant([1, n], tf.int32) for n in (0, 1)]
    assert loss(True, seeds[0]) == loss(True, seeds[0])
    assert len({loss(True), loss(True, seeds[0]), loss(True, seeds[1])}) == 3


def test_head_drops_a_tenth_of_the_pooled_state():
    model = FinetuningModel(SHAPE, 8, {"sts": {"kind": "regression"}})
    head = model.heads[0]
    head.dense["dense"].kernel.assign(np.ones((16, 1)))
    features = {"targets": tf.zeros(4000), "eid": tf.zeros(4000, tf.int32)}
    hidden = tf.ones([4000, 2, 16])
    out = head(hidden, features, training=True, seed=tf.constant([3, 4], tf.int32))
    kept = out["predictions"].numpy() * 0.9  # of the 16 entries
    assert kept.mean() / 16 == pytest.approx(0.9, abs=0.01)
    assert kept.std() == pytest.approx(np.sqrt(16 * 0.9 * 0.1), rel=0.1)
    still = head(hidden, features, training=True, seed=None)["predictions"]
    np.testing.assert_allclose(still, 16.0)


def test_output_is_independent_of_padding():
    model, short = make_model(), make_batch()
    long = dict(short)
    for name in ("input_ids", "input_mask", "segment_ids"):
        long[name] = tf.pad(short[name], [[0, 0], [0, 9]])
    for training in (True, False):
        a, b = model(short, training=training), model(long, training=training)
        # Outside training the end's loss is that of a uniform guess, log(length).
        heads = slice(None) if training else slice(3)
        np.testing.assert_allclose(
            a.losses[:, heads], b.losses[:, heads], rtol=1e-4, atol=1e-4
        )
    for name in ("start_top_log_probs", "end_top_log_probs", "answerable_logit"):
        np.testing.assert_allclose(
            a.outputs["squad"][name], b.outputs["squad"][name], atol=1e-4
        )


def test_ends_are_scored_as_by_one_wide_layer():
    """The product is split in two; the paper describes one."""
    head = TaskHead(
        dataclasses.replace(SHAPE, hidden_size=6), SpanHead(beam_size=2), name="qa"
    )
    head.build()
    rng = np.random.default_rng(0)
    for variable in head.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    hidden = tf.constant(rng.normal(size=(3, 5, 6)), tf.float32)
    starts = tf.constant([[0, 1], [2, 4], [3, 3]])
    ours = qa_graph.ends_given(head.dense, hidden, starts).numpy()
    for row in range(3):
        for number in range(2):
            start = tf.tile(hidden[row, starts[row, number]][None], [5, 1])
            both = tf.concat([start, hidden[row]], -1)
            scores = head.dense["dense_1"](gelu(head.dense["qa_hidden"](both)))[:, 0]
            np.testing.assert_allclose(ours[row, number], scores, rtol=1e-4, atol=1e-4)


def test_task_counts_examples_by_task():
    task = training_task(make_model())
    batch = make_batch()
    assert float(task.divisors(batch)) == 7
    loss, sums = task.loss(batch, None, None)
    assert [float(sums[f"{name}/examples"]) for name in HEADS] == [2, 2, 2, 1]
    total = sum(float(sums[f"{name}/loss"]) for name in HEADS)
    assert total == pytest.approx(float(loss), rel=1e-6)
    metrics = {m.name: m.training(sums) for m in task.metrics if m.training}
    assert float(metrics["cola_loss"]) == pytest.approx(float(sums["cola/loss"]) / 2)


def config_of(**hparams):
    hparams = {"task_names": ["cola"], "model_hparam_overrides": {}} | hparams
    hparams["model_hparam_overrides"] = {"num_hidden_layers": 2}
    return FinetuningConfig.from_hparams("D", "m", hparams)


def gradients_of(model, seed=3):
    """By variable, in a graph as in training, with dropout."""
    trained = model.trainable_variables

    @tf.function(autograph=False)
    def gradients(batch):
        with tf.GradientTape() as tape:
            loss = model(batch, training=True, seed=tf.constant([seed, 1])).total_loss
        return [
            tf.convert_to_tensor(g)
            for g in tape.gradient(loss, [v.value for v in trained])
        ]

    names = [v.path for v in trained]
    return dict(zip(names, gradients(make_batch()), strict=True))


@pytest.mark.parametrize("layers", [1, pytest.param(0, marks=pytest.mark.thorough)])
def test_frozen_layers_do_not_change(layers):
    """They have no gradient, decay or slots; the others learn as without."""
    model, whole = make_model(), make_model()
    freeze(model, layers)
    state = TrainState(model, create_finetuning_optimizer(config_of(), 10))
    frozen = ["/embeddings/", "/embeddings_project/"]
    frozen += [f"/layer_{i}/" for i in range(layers)]
    before = {v.path: v.numpy() for v in model.variables}
    gradients = gradients_of(model)
    for name, theirs in gradients_of(whole).items():
        if any(part in name for part in frozen):
            assert name not in gradients and f"{name}/adam_m" not in state.variables()
        else:
            np.testing.assert_allclose(gradients[name], theirs, rtol=1e-5, atol=1e-6)
            assert f"{name}/adam_v" in state.variables()
    state.optimizer.iterations.assign(3)
    state.optimizer.apply(list(gradients.values()), model.trainable_variables)
    now = {v.path: v.numpy() for v in model.variables}
    changed = [name for name in now if not np.array_equal(before[name], now[name])]
    assert not [name for name in changed if any(part in name for part in frozen)]
    assert len(changed) > len(gradients) - 3  # A softmax has no use for a bias.
    assert set(state.weights()) == set(before)
    with pytest.raises(UserError, match="freeze_layers 3 and num_hidden_layers 2: "):
        config_of(freeze_layers=3)


def test_smoothing_and_class_weights_apply_in_training_only():
    plain = make_model()
    options = {"label_smoothing": 0.2, "class_weights": [0.5, 3.0]}
    heads = HEADS | {"cola": HEADS["cola"] | options}
    heads["chunk"] = HEADS["chunk"] | {"label_smoothing": 0.2}
    model, batch = make_model(heads), make_batch()
    for training in (False, True):
        theirs, ours = (m(batch, training=training).outputs for m in (plain, model))
        expected = {name: theirs[name]["loss"].numpy() for name in ("cola", "chunk")}
        for name in expected if training else ():
            logits = theirs[name]["logits"].numpy().astype(np.float64)
            shares = np.log(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))
            labels = batch["cola:label_ids" if name == "cola" else "chunk:labels"]
            right = np.take_along_axis(shares, labels.numpy()[..., None], -1)[..., 0]
            losses = -0.8 * right - 0.2 * shares.mean(axis=-1)
            if name == "cola":
                expected[name] = losses * np.array([0.5, 3.0])[labels]
            else:
                mask = batch["chunk:labels_mask"]
                expected[name] = np.sum(losses * mask, axis=-1)
        for name, losses in expected.items():
            np.testing.assert_allclose(ours[name]["loss"], losses, rtol=1e-5)
    copy = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(model)
    )
    assert copy.head_settings == heads
    copy.set_weights(model.get_weights())
    np.testing.assert_array_equal(model(batch).losses, copy(batch).losses)


def test_task_whose_name_begins_with_anothers():
    """Only the heads run whose features are in the batch, as in an evaluation."""
    given = {"kind": "classification", "num_labels": 2}
    model = make_model({"cola": given, "cola_hard": given, "task": given})
    batch = make_batch()
    shared = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}
    for name in ("cola", "cola_hard", "task"):
        own = {f"{name}:{k}": batch[f"cola:{k}"] for k in ("label_ids", "eid")}
        found = model({**shared, **own, "task_id": batch["task_id"]}).outputs
        assert list(found) == [name]


def test_class_weights_of_a_multilabel_task_apply_to_positive_labels():
    given = {"kind": "multilabel", "num_labels": 2}
    weights = [1.0, 4.0]
    batch = make_batch() | {
        "topics:label_flags": tf.constant([[0.0, 1.0]] * 4 + [[1.0, 0.0]] * 4),
        "topics:eid": tf.range(8),
    }
    batch["task_id"] = tf.zeros([8], tf.int32)
    plain = make_model({"topics": given})
    model = make_model({"topics": given | {"class_weights": weights}})
    found = plain(batch, training=True).outputs["topics"]
    flags = batch["topics:label_flags"].numpy()
    losses = tf.nn.sigmoid_cross_entropy_with_logits(flags, found["logits"]).numpy()
    expected = np.mean(losses * np.where(flags > 0, weights, 1.0), axis=-1)
    ours = model(batch, training=True).outputs["topics"]["loss"]
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    ours = model(batch).outputs["topics"]["loss"]
    np.testing.assert_array_equal(ours, found["loss"])


def test_bfloat16_computes_losses_in_float32():
    model = make_model(dtype="mixed_bfloat16")
    output = model(make_batch(), training=True, seed=tf.constant([1, 2], tf.int32))
    assert output.total_loss.dtype == tf.float32
    exact = make_model()(make_batch()).total_loss
    rough = model(make_batch()).total_loss
    assert float(rough) == pytest.approx(float(exact), rel=0.05)


def test_config_reaches_heads_and_rates():
    given = {
        "joint_prediction": False,
        "answerable_weight": 0.3,
        "layerwise_lr_offset": "fixed",
        "model_hparam_overrides": {"hidden_size": 16, "num_hidden_layers": 2},
    }
    config = FinetuningConfig.from_hparams("D", "m", {"task_names": ["squad"], **given})
    model = build_finetuning_model(config, {"squad": SpanHead.stored(None, config)})
    assert not model.heads[0].head.joint_prediction
    assert model.heads[0].head.answerable_weight == 0.3
    factor = create_finetuning_optimizer(config, 10).layer_factor
    assert factor("electra/encoder/layer_1/x") == pytest.approx(0.8)
    assert factor("electra/embeddings/x") == pytest.approx(0.8**3)
    flat = FinetuningConfig.from_hparams("D", "m", {"layerwise_lr_decay": 0})
    assert create_finetuning_optimizer(flat, 10).layer_factor is None


@pytest.mark.parametrize("block", ["bert", "modern"])
def test_keras_file_has_encoder_and_heads(tmp_path, block):
    model, batch = make_model(block=block), make_batch()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    found, expected = loaded(batch), model(batch)
    np.testing.assert_array_equal(found.losses, expected.losses)
    assert loaded.get_config() == model.get_config()
