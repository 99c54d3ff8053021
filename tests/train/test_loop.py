# SPDX-License-Identifier: Apache-2.0
"""The training step and loop: equal however a batch is cut, safe when it diverges."""

import io

import keras
import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.console import Console
from electra_tf.errors import UserError
from electra_tf.model import target
from electra_tf.pretrain import pretraining
from electra_tf.pretrain.pretrain_data import RunData
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import Vocabulary
from electra_tf.train import loop as training
from electra_tf.train import optimization
from electra_tf.train.distribution import create_strategy
from electra_tf.train.loop import MAX_SKIPPED_IN_A_ROW
from electra_tf.train.reporting import overflowed, read_metrics
from electra_tf.train.step import TrainingStep, TrainState, _next_loss_scale
from electra_tf.train.supervisor import StopRequest
from tests.helpers.runs import NO_DROPOUT, by_default, tiny


class Trained:
    """A tiny model with its step, without a run directory."""

    def __init__(self, data, **hparams):
        self.config = PretrainingConfig.from_hparams(str(data), "m", tiny(**hparams))
        self.vocab = Vocabulary.load(self.config.vocab_file)
        self.placement = create_strategy(self.config)
        keras.utils.set_random_seed(1)
        special_ids = (self.vocab.cls_id, self.vocab.sep_id, self.vocab.mask_id)
        model = pretraining.build_pretrainer(self.config, special_ids)
        optimizer = optimization.create_optimizer(self.config)
        self.state = TrainState(model, optimizer)
        self.task = pretraining.task_of(model)
        self.step = TrainingStep(
            self.task,
            self.state,
            self.placement,
            seed=self.config.seed,
            accumulation=self.config.gradient_accumulation_steps,
        )

    def dataset(self, start=0):
        size = {"batch_size": self.config.train_batch_size}
        data = RunData(self.vocab)
        return data.dataset(self.config, True, start_step=start, **size)

    def run(self, count, start=0, dataset=None):
        batches = iter(dataset or self.dataset(start))
        return self.step.run(batches, start, count)

    def values(self):
        return {k: v.numpy() for k, v in self.state.variables().items()}


def largest_difference(one, other):
    assert one.keys() == other.keys()
    return max(np.abs(one[k] - other[k]).max() for k in one if "loss_scale" not in k)


@pytest.fixture(scope="module")
def straight(tiny_data):
    """20 steps of float32 without dropout: metrics and final values."""
    trained = Trained(tiny_data, overrides=NO_DROPOUT, num_train_steps=20)
    return trained.run(20), trained.values()


def test_accumulation_gives_the_same_weights(tiny_data, straight):
    steps = {"num_train_steps": 20, "gradient_accumulation_steps": 4}
    trained = Trained(tiny_data, overrides=NO_DROPOUT, **steps)
    metrics = trained.run(20)
    assert largest_difference(trained.values(), straight[1]) < 1e-5
    for name, values in straight[0].items():
        np.testing.assert_allclose(metrics[name], values, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_jit_agrees_with_the_graph(tiny_data, straight):
    trained = Trained(
        tiny_data, overrides=NO_DROPOUT, num_train_steps=20, jit_compile=True
    )
    assert trained.placement.jit_compile
    targets, sums = set(), trained.task.loss

    def recorded_sums(*args):
        targets.add(target.compiled_for())
        return sums(*args)

    trained.task.loss = recorded_sums
    trained.run(20)
    assert targets == {"cpu"} and target.compiled_for() is None
    # It concerns the step alone.
    assert not tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]
    assert largest_difference(trained.values(), straight[1]) < 1e-5


def test_metrics_of_a_step(straight):
    metrics, values = straight
    names = "loss masked_lm_loss masked_lm_accuracy sampled_masked_lm_accuracy "
    names += "disc_loss disc_accuracy disc_precision disc_recall "
    names += "learning_rate global_norm finite"
    assert set(metrics) == set(names.split())
    assert all(v.shape == (20,) for v in metrics.values())
    np.testing.assert_allclose(
        metrics["loss"],
        metrics["masked_lm_loss"] + 50 * metrics["disc_loss"],
        rtol=1e-5,
    )
    # Warm-up of 4 steps times a decay over 20: 0, then f(k) as the original has it.
    k = np.arange(20)
    rates = 2e-3 * (1 - k / 20) * np.minimum(1, k / 4)
    np.testing.assert_allclose(metrics["learning_rate"], rates, rtol=1e-5)
    assert values["global_step"] == 20 and metrics["finite"].all()
    assert metrics["loss"][-1] < 0.75 * metrics["loss"][0]


@pytest.mark.thorough
def test_dropout_is_a_function_of_seed_and_step(tiny_data):
    """The same batch and weights (the learning rate is 0 at step 0), other keys."""

    def loss(trained, start):
        trained.state.optimizer.iterations.assign(0)
        return trained.run(1, start, trained.dataset().take(1))["loss"][0]

    one, other = Trained(tiny_data), Trained(tiny_data)
    other.step.seed = one.step.seed + 1
    assert loss(one, 0) == pytest.approx(loss(one, 0), rel=1e-6)
    assert abs(loss(one, 0) - loss(one, 7)) > 1e-4
    assert abs(loss(one, 0) - loss(other, 0)) > 1e-4


PRECISIONS = by_default(["mixed_bfloat16", "mixed_float16"], ["mixed_float16"])


@pytest.mark.thorough
@pytest.mark.parametrize("precision", PRECISIONS)
def test_mixed_precision_learns(tiny_data, straight, precision):
    trained = Trained(
        tiny_data, overrides=NO_DROPOUT, num_train_steps=20, precision=precision
    )
    assert trained.task.model.compute_dtype == precision.removeprefix("mixed_")
    trained.state.loss_scale.assign(2.0**9)  # low enough for every step from the start
    metrics = trained.run(20)
    assert metrics["finite"].all()
    loss = straight[0]["loss"]
    # Not the same run, but close to it all the way.
    np.testing.assert_allclose(metrics["loss"], loss, rtol=0.05)
    assert not np.array_equal(metrics["loss"], loss)
    assert all(
        v.dtype == np.float32
        for v in map(np.asarray, trained.values().values())
        if v.dtype.kind == "f"
    )
    assert ("loss_scale" in metrics) == (precision == "mixed_float16")


def test_steps_that_overflowed():
    metrics = {"loss": np.array([1.0, np.nan, 1.0]), "finite": np.zeros(3)}
    scale = {"loss_scale": np.array([2.0, 2.0, 1.0])}
    assert overflowed(metrics | scale).tolist() == [True, False, False]
    assert not overflowed(metrics).any()


@pytest.mark.thorough
def test_an_overflow_lowers_the_loss_scale_and_changes_nothing_else(tiny_data):
    trained = Trained(tiny_data, precision="mixed_float16")
    trained.state.loss_scale.assign(2.0**40)
    before = trained.values()
    metrics = trained.run(1)
    after = trained.values()
    assert not metrics["finite"][0] and np.isfinite(metrics["loss"][0])
    assert after["loss_scale"] == 2.0**39
    for name in before.keys() - {"loss_scale", "loss_scale/good_steps", "global_step"}:
        np.testing.assert_array_equal(after[name], before[name])
    # It goes on falling until gradients fit, and then the model learns.
    metrics = trained.run(40, start=1)
    assert metrics["finite"][-1] and 1 < metrics["loss_scale"][-1] < 2.0**39


def test_the_loss_scale_grows_after_many_good_steps():
    scale, good = tf.constant(8.0), tf.constant(1998, tf.int64)
    for norm, expected in ((1.0, (8, 1999)), (1.0, (16, 0)), (np.inf, (8, 0))):
        scale, good = _next_loss_scale(scale, good, tf.constant(norm))
        assert (scale.numpy(), good.numpy()) == expected


def poisoned(dataset, *bad):
    """The data set with batches `bad` whose loss is not a number."""

    def poison(number, batch):
        is_bad = tf.reduce_any(number == tf.constant(bad, tf.int64))
        factor = tf.where(is_bad, np.float32("nan"), 1.0)
        weights = batch["masked_lm_weights"] * factor
        return batch | {"masked_lm_weights": weights}

    return dataset.enumerate().map(poison)


def test_a_nan_loss_changes_nothing(tiny_data):
    trained = Trained(tiny_data, gradient_accumulation_steps=2)
    batches = iter(poisoned(trained.dataset(), 3))
    trained.step.run(batches, 0, 3)
    before = trained.values()
    metrics = trained.step.run(batches, 3, 1)
    assert metrics["finite"][0] == 0 and np.isnan(metrics["loss"][0])
    after = trained.values()
    for name in before.keys() - {"global_step"}:
        np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert trained.step.run(batches, 4, 2)["finite"].all()


class NoStop(StopRequest):
    """Records the seconds that the loop wants to have left."""

    def __init__(self):
        super().__init__()
        self.needed = []

    def reason(self, needed=0.0):
        self.needed.append(needed)


def loop(trained, directory, on_nonfinite="stop", bad=(), stop=None):
    """Runs the loop in `directory`; returns (result, text on the console)."""
    stream = io.StringIO()
    config = trained.config
    checkpoints = Checkpoints(directory, log=lambda text: stream.write(f"{text}\n"))
    result = training.Loop(
        trained.step,
        lambda start: iter(poisoned(trained.dataset(start), *(b - start for b in bad))),
        checkpoints,
        Console(stream),
        trained.placement,
        config.replaced(log_steps=5, on_nonfinite=on_nonfinite),
        num_train_steps=config.num_train_steps,
    ).run(stop or StopRequest())
    return result, stream.getvalue()


@pytest.mark.thorough
def test_a_diverged_run_stops_and_keeps_its_checkpoint(tiny_data, tmp_path):
    trained = Trained(tiny_data)
    with pytest.raises(UserError, match="diverged at step 9: loss nan") as e:
        loop(trained, tmp_path, bad=[8])
    assert e.value.exit_code == 70
    assert len(str(e.value).splitlines()) <= 3
    assert str(tmp_path / "model.ckpt-5") in str(e.value)
    assert Checkpoints(tmp_path).newest_intact().step == 5
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")][-1] == 9


@pytest.mark.thorough
@pytest.mark.parametrize(
    "precision", by_default(["float32", "mixed_float16"], ["float32"])
)
def test_nan_gradients_of_a_finite_loss(tiny_data, tmp_path, precision):
    """mixed_float16 tries lower loss scales first."""
    trained = Trained(tiny_data, precision=precision)
    trained.state.loss_scale.assign(4.0)
    sums_of = trained.task.loss

    def steep_sums(batch, seed, weights):
        loss, sums = sums_of(batch, seed, weights)
        # The root of 0 is 0, and infinitely steep.
        return loss + tf.sqrt(0.0 * loss), sums

    trained.task.loss = steep_sums
    before = trained.values()
    step = 3 if precision == "mixed_float16" else 1
    with pytest.raises(UserError, match=rf"diverged at step {step}: loss \d") as e:
        loop(trained, tmp_path)
    assert e.value.exit_code == 70 and "global_norm nan" in str(e.value)
    found = Checkpoints(tmp_path)
    manifest = found.newest_intact()
    found.restore(manifest, trained.state.variables())
    for name in before.keys() - {"global_step", "loss_scale", "loss_scale/good_steps"}:
        np.testing.assert_array_equal(trained.values()[name], before[name])


@pytest.mark.thorough
def test_skip_continues_for_a_limited_number_of_steps(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "LOOP_SECONDS", 10.0)
    stop = NoStop()
    done, text = loop(Trained(tiny_data), tmp_path / "a", "skip", [2, 3, 8], stop)
    assert done
    # Until the time of a loop is known, twice the usual one is kept back.
    assert 20 <= stop.needed[1] < 60
    assert [n for n in (3, 4, 9) if f"Step {n} left out: loss nan" in text] == [3, 4, 9]
    assert text.count("left out") == 3
    rows = list(read_metrics(tmp_path / "a" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert [row["step"] for row in rows if row["loss"] is None] == [3, 4, 9]

    many = Trained(tiny_data, num_train_steps=40)
    with pytest.raises(UserError, match=r"diverged at step 25 \(20 steps in a row\)"):
        loop(many, tmp_path / "b", "skip", bad=range(5, 40))


@pytest.mark.thorough
def test_overflows_of_the_loss_scale_do_not_end_the_run(tiny_data, tmp_path):
    """More of them in a row than steps may be skipped for other reasons."""
    trained = Trained(tiny_data, precision="mixed_float16", num_train_steps=40)
    trained.state.loss_scale.assign(2.0**50)
    done, text = loop(trained, tmp_path, "stop")
    assert done and "left out" not in text
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    overflows = [row["finite"] for row in rows].index(1)
    assert overflows > MAX_SKIPPED_IN_A_ROW
    assert rows[overflows]["loss_scale"] < 2.0 ** (51 - overflows)
