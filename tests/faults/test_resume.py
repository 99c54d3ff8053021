# SPDX-License-Identifier: Apache-2.0
"""A run that is interrupted ends like the same run undisturbed, bit for bit."""

import functools
import random
import signal

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from tests.helpers.forked_runs import digest, metrics_of, pretrain, signal_at
from tests.helpers.runs import NO_DROPOUT, by_default, tiny

STEPS = 60  # of 8 examples: 100 of them make an epoch of 12.5 steps


def settings(**changes):
    return tiny(num_train_steps=STEPS, save_checkpoints_steps=20, **changes)


def finish(data, model, hparams, **kwargs):
    run = pretrain(data, model, hparams, **kwargs).wait()
    assert run.returncode == 0, run.stderr
    return run


def stopped(data, model, hparams, step, number=signal.SIGTERM, **kwargs):
    """Sends a run a signal at about `step`; returns the step that it saves."""
    before = functools.partial(signal_at, step, number)
    run = pretrain(data, model, hparams, before=before, **kwargs).wait()
    assert run.returncode == 42, run.stderr
    at = Checkpoints(data / "models" / model).steps()[-1]
    assert f"{number.name}: saved at step {at}" in run.stdout
    assert len(metrics_of(data / "models" / model)) == at
    return at


JIT = {"jit_compile": True}
STAGES = {"objective": "two_stage", "embedding_size": 32, "generator_hidden_size": 1.0}
# Hparams, devices, and how often the run is interrupted or at which steps.
CASES = {
    "replicas": ({}, "2", 1),
    "graph": ({}, "1", 1),
    # Saved at 20, 30 (where the discriminator starts) and 40.
    "stages": (STAGES, "1", [14, 44]),
}
SLOW_CASES = {
    "jit": (JIT | {"gradient_accumulation_steps": 2}, "1", 4),
    "replicas_jit": (JIT, "2", 2),
    "stages_jit": (STAGES | JIT, "1", [14, 44]),
    "replicas_accumulation": ({"gradient_accumulation_steps": 2}, "2", 2),
    "electric": (JIT | {"electric_objective": True}, "1", 2),
    "mlm": (JIT | {"electra_objective": False}, "1", 2),
    "mixed_bfloat16": ({"precision": "mixed_bfloat16"}, "1", 4),
    "mixed_float16": ({"precision": "mixed_float16"}, "1", 4),
}


@pytest.mark.parametrize(
    "name",
    by_default(CASES, ["graph"])
    + [pytest.param(name, marks=pytest.mark.slow) for name in SLOW_CASES],
)
def test_bitwise_resume(tiny_data, name):
    hparams, devices, points = (CASES | SLOW_CASES)[name]
    hparams, env = settings(**hparams), {CPU_DEVICES_VARIABLE: devices}
    models = tiny_data / "models"
    finish(tiny_data, f"{name}_straight", hparams, env=env)
    expected = digest(models / f"{name}_straight", STEPS)
    # So far apart, and in loops so short, that no signal comes with the last step.
    loops = {"iterations_per_loop": 3}
    if isinstance(points, int):
        points = sorted(random.Random(1).sample(range(2, STEPS - 4, 4), points))
    for number, point in enumerate(points):
        sent = (signal.SIGTERM, signal.SIGINT)[number % 2]
        at = stopped(tiny_data, f"{name}_cut", hparams | loops, point, sent, env=env)
        assert point <= at < STEPS
    last = finish(tiny_data, f"{name}_cut", hparams, env=env)
    assert f"Continuing from {models}/{name}_cut/model.ckpt-{at}." in last.stdout
    assert digest(models / f"{name}_cut", STEPS) == expected


@pytest.mark.thorough
def test_resume_on_another_number_of_replicas(tiny_data):
    """1 -> 2 -> 1 devices: what changes is the order in which numbers are summed."""
    hparams = settings(overrides=NO_DROPOUT)
    finish(tiny_data, "one_straight", hparams)
    stopped(tiny_data, "one_two_one", hparams, 15)
    two = {CPU_DEVICES_VARIABLE: "2"}
    stopped(tiny_data, "one_two_one", hparams, 35, env=two)
    finish(tiny_data, "one_two_one", hparams)
    runs = [tiny_data / "models" / name for name in ("one_straight", "one_two_one")]
    for ours, theirs in zip(*map(metrics_of, runs), strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    a, b = (tf.train.load_checkpoint(str(run / f"model.ckpt-{STEPS}")) for run in runs)
    for name in a.get_variable_to_shape_map():
        if "adam" not in name:
            one, other = a.get_tensor(name), b.get_tensor(name)
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("devices", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_resume_after_a_signal_a_kill_and_damage(tiny_data, devices):
    """As most runs are: XLA compiles the step. With microbatches, too."""
    env = {CPU_DEVICES_VARIABLE: devices}
    hparams = settings(**JIT, gradient_accumulation_steps=2)
    straight, model = f"straight_{devices}", f"broken_{devices}"
    finish(tiny_data, straight, hparams, env=env)
    stopped(tiny_data, model, hparams, 5, env=env)
    broken = tiny_data / "models" / model
    kill = functools.partial(signal_at, 45, signal.SIGKILL)
    run = pretrain(tiny_data, model, hparams, env=env, before=kill).wait()
    assert run.returncode == -signal.SIGKILL
    newest = Checkpoints(broken, read_only=True).newest_intact().step
    name = f"model.ckpt-{newest}.data-00000-of-00001"
    data = bytearray((broken / name).read_bytes())
    data[len(data) // 2] ^= 1
    (broken / name).write_bytes(data)
    run = finish(tiny_data, model, hparams, env=env)
    assert f"Damaged checkpoint of step {newest} passed over" in run.stdout
    assert (broken / f"{name}.corrupt").exists()
    expected = digest(tiny_data / "models" / straight, STEPS)
    assert digest(broken, STEPS) == expected
