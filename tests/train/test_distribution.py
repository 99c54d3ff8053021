# SPDX-License-Identifier: Apache-2.0
"""Strategies, batch sizes that do not divide, replicas that agree with one device."""

import json
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.model import target
from electra_tf.train import distribution
from tests.helpers.forked_runs import tensors_of
from tests.helpers.runs import NO_DROPOUT, check_ok, pretrain, python, tiny
from tests.helpers.tpu_stand_in import CORES


def config(**hparams):
    return PretrainingConfig.from_hparams("data", "model", tiny(**hparams))


def test_steps_of_workers_are_exact():
    workers = distribution.create_strategy(config()).workers
    assert workers.gather([2**24 + 1]).tolist() == [[2**24 + 1]]
    assert workers.decide(count=2**31 + 1).count == 2**31 + 1


@pytest.mark.parametrize(
    ("batch", "accumulation", "replicas", "fits"),
    [(8, 1, 1, True), (8, 2, 4, True), (8, 2, 8, False), (8, 4, 4, False)],
)
def test_a_batch_must_divide_into_replicas_and_parts(
    batch, accumulation, replicas, fits
):
    made = config(train_batch_size=batch, gradient_accumulation_steps=accumulation)
    if fits:
        distribution.check_training_batch(made, replicas)
        return
    with pytest.raises(UserError, match=f"train_batch_size {batch} .*{replicas} repl"):
        distribution.check_training_batch(made, replicas)


@pytest.mark.parametrize(
    "when", [{"do_train": False, "do_eval": True}, {"eval_every_steps": 5}]
)
def test_an_evaluation_batch_must_divide_into_replicas(when):
    made = config(**when, train_batch_size=12, eval_batch_size=6)
    distribution.check_evaluation_batch(made, 3)
    with pytest.raises(UserError, match="eval_batch_size 6 does not divide by 4"):
        distribution.check_evaluation_batch(made, 4)


def set_up(monkeypatch, gpus, **hparams):
    """What is set up on a machine that seems to have these GPUs.

    Returns the kind of device, the GPUs whose memory grows, and the inter-op threads.
    """
    grows, threads = [], []
    monkeypatch.setattr(target, "_target", "cpu")  # put back at the end
    for module, name, value in (
        (tf.config, "list_physical_devices", lambda kind: gpus * (kind == "GPU")),
        (tf.config.experimental, "set_memory_growth", lambda *a: grows.append(a)),
        (tf.config.threading, "set_inter_op_parallelism_threads", threads.append),
    ):
        monkeypatch.setattr(module, name, value)
    distribution.configure_devices(config(**hparams))
    with target.compiled():
        return target.compiled_for(), grows, threads


def test_devices_are_set_up(monkeypatch):
    """Without a GPU threads keep their order, unless XLA does."""
    grows = [("first", True), ("second", True)]
    assert set_up(monkeypatch, ["first", "second"]) == ("gpu", grows, [])
    assert set_up(monkeypatch, [], jit_compile=True) == ("cpu", [], [])
    assert set_up(monkeypatch, [], jit_compile=False) == ("cpu", [], [1])


@pytest.mark.thorough
def test_two_replicas_train_like_one(tiny_data):
    """20 steps without dropout give the same weights, whole batch or halves of it."""
    hparams = tiny(overrides=NO_DROPOUT, num_train_steps=20)
    check_ok(pretrain(tiny_data, "one_replica", hparams))
    split = hparams | {"gradient_accumulation_steps": 2, "jit_compile": True}
    devices = {distribution.CPU_DEVICES_VARIABLE: "2"}
    two = check_ok(pretrain(tiny_data, "two_replicas", split, env=devices))
    assert "2 x CPU (MirroredStrategy), precision float32, jit_compile on" in two.stdout
    models = tiny_data / "models"
    first, last = (tensors_of(models / f"one_replica/model.ckpt-{n}") for n in (0, 20))
    other = tensors_of(models / "two_replicas/model.ckpt-20")
    assert last.keys() == other.keys()
    moved = 0.0
    for name in last:
        np.testing.assert_allclose(other[name], last[name], rtol=0, atol=1e-5)
        if "adam" not in name and "global_step" not in name:
            moved = max(moved, np.abs(last[name] - first[name]).max())
    assert moved > 1e-2


def run(data) -> subprocess.CompletedProcess:
    hparams = tiny(use_tpu=True)
    del hparams["jit_compile"]
    command = "-m", "tests.helpers.tpu_stand_in", data, "tpu", json.dumps(hparams)
    return python(*command, TF_CPP_MIN_LOG_LEVEL="2")


@pytest.mark.thorough
def test_all_but_the_tpus_program_is_executed(tiny_data):
    done = check_ok(run(tiny_data))
    found = json.loads(done.stdout)
    assert found["line"] == (
        f"Devices: {CORES} x TPU (TPUStrategy), precision float32, compiled by XLA"
    )
    assert found["replicas"] == CORES
    assert found["inter_op_threads"] == 0  # TensorFlow chooses
    assert found["kind_of_variable"] == "TPUDistributedVariable"
    assert found["restored"]
    assert found["target_is_tpu"]
    assert "belongs to another machine" in found["refused"]
    assert found["parts"] == [[8 // CORES, 32]] * CORES  # of a batch of 8
    counts = found["operations"]
    assert counts["TPUReplicateMetadata"] == counts["While"] == 1
    assert counts["CrossReplicaSum"] > 10  # gradients and sums
    # Nothing that only the host could compute, and no generator that is TPUs' own.
    strange = [op for op in counts if "PyFunc" in op or "Random" in op]
    assert not strange
    # In the form that suits TPUs: no search of a cumulative sum.
    assert counts["Einsum"] and "Cumsum" not in counts
