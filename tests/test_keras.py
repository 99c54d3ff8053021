# SPDX-License-Identifier: Apache-2.0
"""Models in Keras: fit, predict, save, load, clone, subclasses."""

import json
import os

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

import electra_tf as et
from electra_tf.pretrain.metrics import (
    DISCRIMINATOR_METRICS,
    NUM_THRESHOLDS,
    evaluation_metrics,
)
from electra_tf.pretrain.pretraining import RunningMetric
from tests.helpers.runs import check_ok, python
from tests.helpers.tiny_pretraining import tiny_batch, tiny_model

TINY = {
    "max_seq_length": 32,
    "train_batch_size": 8,
    "num_train_steps": 8,
    "num_warmup_steps": 0,
    "embedding_size": 16,
    "model_hparam_overrides": {"hidden_size": 16, "num_hidden_layers": 1}
    | {"num_attention_heads": 2, "intermediate_size": 32},
}
# In a process of its own, which imports nothing else of this package.
LOAD = """
import sys
import keras
from electra_tf import ElectraPretrainer, TextEncoder
model = keras.saving.load_model(sys.argv[1])
import numpy as np
batch = dict(np.load(sys.argv[2]))
np.save(sys.argv[3], model.predict(batch, verbose=0))
print(int(model.optimizer.iterations))
model.fit(batch, verbose=0)
"""


def text_of(batch):
    return {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The steps of docs/keras.md: (model, history, vocabulary, records, config)."""
    folder = tmp_path_factory.mktemp("fit")
    (folder / "a.txt").write_text("the cat sat on the mat\nthe dog ran\n\n" * 40)
    pattern = str(folder / "*.txt")
    vocab = et.train_vocabulary(pattern, size=400)
    records = et.build_dataset(pattern, vocab, folder / "records", max_seq_length=32)
    config = et.PretrainingConfig(**TINY)
    model = et.build_pretrainer(config, vocab)
    model.compile(et.create_optimizer(config))
    history = model.fit(
        et.make_dataset(records, config, vocab),
        steps_per_epoch=2,
        epochs=2,
        validation_data=et.make_dataset(records, config, vocab, num_batches=1),
        callbacks=[keras.callbacks.EarlyStopping("val_disc_auc", mode="max")],
        verbose=0,
    ).history
    return model, history, vocab, records, config


def test_fit_reports_the_objectives_metrics(fitted):
    model, history, vocab, records, _ = fitted
    names = {metric.name for metric in model.objective.metrics}
    assert history.keys() == names | {f"val_{name}" for name in names}
    assert model.model_config.vocab_size == len(vocab) <= 400
    # Outlives the temporary vocabulary.
    beside = os.path.join(os.path.dirname(records), "vocab.txt")
    assert et.Vocabulary.load(beside).sha256 == vocab.sha256
    assert str(vocab).startswith(f"Vocabulary({len(vocab)} tokens")
    assert {"ElectraPretrainer", "load"} <= set(dir(et)) and "sys" not in dir(et)


def test_predict_gives_the_probability_of_replacement(fitted):
    model, _, vocab, records, config = fitted
    data = et.make_dataset(records, config, vocab, num_batches=2)
    batches = list(data)
    found = model.predict(data, verbose=0)
    logits = [model.replaced_logits(*text_of(batch).values()) for batch in batches]
    np.testing.assert_allclose(found, tf.sigmoid(tf.concat(logits, 0)), atol=1e-6)
    with pytest.raises(ValueError, match="mlm has no discriminator"):
        tiny_model("mlm").predict(text_of(tiny_batch()), verbose=0)


def test_a_saved_model_is_loaded_and_trained_in_another_process(fitted, tmp_path):
    model, _, vocab, records, config = fitted
    [batch] = et.make_dataset(records, config, vocab, num_batches=1)
    np.savez(tmp_path / "batch.npz", **{k: v.numpy() for k, v in batch.items()})
    model.save(tmp_path / "model.keras")
    names = ("model.keras", "batch.npz", "found.npy")
    done = check_ok(python("-c", LOAD, *(tmp_path / name for name in names)))
    assert int(done.stdout) == int(model.optimizer.iterations) == 4
    expected = model.predict(batch, verbose=0)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), expected)


@pytest.mark.parametrize(
    "options", [{"loss": "mse"}, {"metrics": ["accuracy"]}, {"weighted_metrics": ["a"]}]
)
def test_another_loss_or_metric_is_refused(options):
    with pytest.raises(ValueError, match="its own loss and metrics"):
        tiny_model().compile("adam", **options)


def test_networks_are_exported(tmp_path):
    model = tiny_model()
    ids = keras.Input((8,), dtype="int32")
    states = keras.Model(ids, model.electra(ids).sequence_output)
    states.export(tmp_path / "encoder", verbose=False)
    given = np.arange(16, dtype=np.int32).reshape(2, 8)
    loaded = tf.saved_model.load(tmp_path / "encoder")
    np.testing.assert_allclose(loaded.serve(given), states(given), rtol=1e-5, atol=1e-6)


def test_running_metrics_are_those_of_an_evaluation():
    model, sums = tiny_model(), []
    for seed in range(3):
        batch = tiny_batch(seed=seed)
        sums.append(model(batch).sums)
    total = {name: sum(np.asarray(one[name]) for one in sums) for name in sums[0]}
    for metric in DISCRIMINATOR_METRICS:
        running = RunningMetric(metric)
        for one in sums:
            running.update_state(one)
        expected = evaluation_metrics([metric], total)[metric.name]
        assert float(running.result()) == pytest.approx(expected, abs=1e-5)


def test_running_auc_without_positives_is_that_of_an_evaluation():
    [auc] = (m for m in DISCRIMINATOR_METRICS if m.name == "disc_auc")
    histogram = np.zeros([2, NUM_THRESHOLDS + 1], np.float32)
    histogram[0, [3, 70, 150]] = 4, 2, 1
    running = RunningMetric(auc)
    running.update_state({"auc": histogram})
    expected = auc.evaluation({"auc": histogram})
    assert expected > 0.9
    assert float(running.result()) == pytest.approx(expected, abs=1e-6)


class OwnModel(keras.Model):
    """An encoder in a subclass, with inputs as KerasHub names them."""

    def __init__(self):
        super().__init__()
        self.encoder = et.TextEncoder(tiny_model(dropout=0.1).model_config, 8)

    def call(self, inputs):
        return self.encoder(inputs).sequence_output


def test_encoder_has_dropout_in_a_functional_model(tmp_path):
    config = tiny_model(dropout=0.1).model_config
    ids, mask = (keras.Input((None,), dtype="int32") for _ in range(2))
    states = et.TextEncoder(config, 8)(ids, mask).sequence_output
    model = keras.Model([ids, mask], keras.layers.Dense(2)(states[:, 0]))
    batch = tiny_batch()
    inputs = [batch["input_ids"], batch["input_mask"]]
    first, second = (model(inputs, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    expected = model(inputs)
    np.testing.assert_array_equal(model(inputs, training=False), expected)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(inputs), expected)
    assert keras.models.clone_model(model).count_params() == model.count_params()


def test_encoder_takes_inputs_as_keras_hub_names_them():
    model, batch = OwnModel(), text_of(tiny_batch())
    named = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"] > 0,
        "segment_ids": batch["segment_ids"],
    }
    np.testing.assert_array_equal(model(named), model(batch))
    assert np.abs(model(named, training=True) - model(named)).max() > 1e-3
    ids = batch["input_ids"][:1]  # is not padded
    whole = {"input_ids": ids, "input_mask": tf.ones_like(ids)}
    whole |= {"segment_ids": tf.zeros_like(ids)}
    np.testing.assert_array_equal(model.encoder(ids).sequence_output, model(whole))


def test_places_of_weights_in_files_are_fixed(tmp_path):
    tiny_model(layers=2).save_weights(tmp_path / "model.weights.h5")
    with h5py.File(tmp_path / "model.weights.h5") as f:
        encoder = f["electra/encoder/transformer_layers"]
        assert sorted(encoder) == ["bert_block", "bert_block_1"]
        for module in (
            *(f"attention/self_attention/{name}" for name in ("query", "key", "value")),
            *("attention/output_layer/dense", "attention/output_layer/layer_norm"),
            *("intermediate/dense", "output_layer/dense", "output_layer/layer_norm"),
        ):
            assert sorted(encoder["bert_block_1"][module]["vars"]) == ["0", "1"]


def test_global_dtype_policy_where_precision_is_not_set():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        assert tiny_model().electra.compute_dtype == "bfloat16"
        assert tiny_model(precision="mixed_float16").electra.compute_dtype == "float16"
    finally:
        keras.config.set_dtype_policy("float32")
    assert tiny_model().electra.compute_dtype == "float32"


MIRRORED = """
import keras, tensorflow as tf
cpu, = tf.config.list_physical_devices("CPU")
halves = 2 * [tf.config.LogicalDeviceConfiguration()]
tf.config.set_logical_device_configuration(cpu, halves)
import json, sys
import electra_tf as et
keras.config.set_dtype_policy("mixed_bfloat16")
vocab = et.Vocabulary.load(sys.argv[2])
config = et.PretrainingConfig(**json.loads(sys.argv[4]))
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = et.build_pretrainer(config, vocab)
    model.compile(et.create_optimizer(config))
board = keras.callbacks.TensorBoard(sys.argv[3])
data = et.make_dataset(sys.argv[1], config, vocab)
history = model.fit(data, steps_per_epoch=3, callbacks=[board], verbose=0).history
assert 0 < history["masked_lm_loss"][0] < 10, history
assert model.electra.compute_dtype == "bfloat16"
"""


@pytest.mark.thorough
def test_mirrored_strategy_with_mixed_precision_and_tensorboard(fitted, tmp_path):
    _, _, vocab, records, _ = fitted
    args = MIRRORED, records, vocab.path, tmp_path / "logs", json.dumps(TINY)
    check_ok(python("-c", *args))
    assert list((tmp_path / "logs").rglob("events*"))
