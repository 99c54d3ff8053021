# SPDX-License-Identifier: Apache-2.0
"""Runs in phases, and in the two stages of two_stage, on several workers."""

import functools
import signal

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.train.reporting import EVALUATIONS, SAMPLES
from tests.helpers.forked_runs import digest, metrics_of, pretrain, signal_at
from tests.helpers.runs import NO_DROPOUT, tiny
from tests.helpers.workers import train
from tests.pretrain.test_run import rows, two_lengths  # noqa: F401 (a fixture)

SWITCH, STEPS = 8, 14
CASES = {
    "phases": {
        "phases": [
            {"num_train_steps": SWITCH, "max_seq_length": 16, "train_batch_size": 16},
            {"num_train_steps": STEPS - SWITCH, "max_seq_length": 32},
        ],
        "eval_every_steps": 4,
        "sample_steps": 4,
    },
    "two_stage": {
        "objective": "two_stage",
        "embedding_size": 32,
        "generator_hidden_size": 1.0,
        "stage_one_steps": SWITCH,
    },
}


def tensors(directory, step):
    reader = tf.train.load_checkpoint(str(directory / f"model.ckpt-{step}"))
    return {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}


@pytest.mark.parametrize(
    "name", [pytest.param("phases", marks=pytest.mark.thorough), "two_stage"]
)
def test_two_workers_make_the_run_of_one(two_lengths, name):  # noqa: F811
    """To rounding; and when one is killed behind the switch, to the bit."""
    data, models = two_lengths, two_lengths / "models"
    usual = tiny(overrides=NO_DROPOUT, num_train_steps=STEPS, num_eval_steps=2)
    hparams = usual | CASES[name]
    if name == "two_stage":
        hparams |= {"pretrain_tfrecords": str(data / "pretrain_tfrecords_32" / "*")}
    alone = pretrain(data, f"{name}_alone", hparams).wait()
    assert alone.returncode == 0, alone
    for model, faults, codes in (
        ("workers", {}, [0, 0]),
        ("killed", {0: (SWITCH + 2, signal.SIGKILL)}, [-signal.SIGKILL, 69]),
        ("killed", {}, [0, 0]),
    ):
        before = {k: functools.partial(signal_at, *v) for k, v in faults.items()}
        ended = train(data, f"{name}_{model}", hparams, before=before, seconds=300)
        assert [e.returncode for e in ended] == codes, ended
    folder = models / f"{name}_workers"
    one, two = metrics_of(models / f"{name}_alone"), metrics_of(folder)
    assert [row["step"] for row in two] == list(range(1, STEPS + 1))
    for mine, row in zip(two, one, strict=True):
        assert mine == pytest.approx(row, rel=1e-3, abs=1e-4)
    expected = tensors(models / f"{name}_alone", STEPS)
    for variable, value in tensors(folder, STEPS).items():
        np.testing.assert_allclose(value, expected[variable], rtol=0, atol=1e-4)
    assert digest(models / f"{name}_killed", STEPS) == digest(folder, STEPS)
    if name == "phases":
        for file in (EVALUATIONS, SAMPLES):
            assert rows(models / f"{name}_killed", file) == rows(folder, file)
            assert [row["step"] for row in rows(folder, file)] == [4, 8, 12]
