# SPDX-License-Identifier: Apache-2.0
"""A run that is interrupted ends like the same run undisturbed, bit for bit.

After damage of its newest checkpoint: test_checkpoint_faults.py.
"""

import functools
import os
import random
import re
import signal
import time

import numpy as np
import pytest

from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from electra_tf.train.reporting import EVALUATIONS, read_metrics
from tests.helpers.forked_runs import (
    digest,
    kill_in_save,
    kill_when,
    metrics_of,
    pretrain,
    signal_at,
    signal_in,
    tensors_of,
)
from tests.helpers.runs import NO_DROPOUT, TINY, check_ok, tiny

STEPS = 60  # of 8 examples: 100 of them make an epoch of 12.5 steps


def settings(**changes):
    return tiny(num_train_steps=STEPS, save_checkpoints_steps=20, **changes)


def finish(data, model, hparams, **kwargs):
    return check_ok(pretrain(data, model, hparams, **kwargs).wait())


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


def test_a_stopped_run_ends_as_one_without_a_stop(tiny_data, pretrained):
    loops = TINY | {"iterations_per_loop": 3}
    assert 6 <= stopped(tiny_data, "stopped", loops, 6) < 12
    finish(tiny_data, "stopped", TINY)
    runs = (tiny_data / "models/stopped", pretrained("electra") / "models/electra")
    assert digest(runs[0], 12) == digest(runs[1], 12)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough) for name in CASES]
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


# Functions in which a signal prevents the evaluation of step 5: in the run, and in two
# starts that would make it up.
BEFORE_AN_EVALUATION = (
    "electra_tf.pretrain.run:PeriodicEvaluation.__call__",
    "electra_tf.pretrain.run:check_data",
    "electra_tf.train.step:Evaluation._replica_sums",
)


@pytest.mark.thorough
def test_a_signal_does_not_wait_for_an_evaluation(tiny_data):
    hparams = tiny(num_train_steps=10, eval_every_steps=5)
    for place in BEFORE_AN_EVALUATION:
        before = functools.partial(signal_in, place)
        run = pretrain(tiny_data, "evaluating", hparams, before=before).wait()
        assert run.returncode == 42, run.stderr
        assert "SIGTERM: nothing to save." in run.stdout
        assert "Evaluation at step" not in run.stdout
    assert stopped(tiny_data, "evaluating", hparams, 10) == 10  # the last step
    last = finish(tiny_data, "evaluating", hparams)
    assert "Evaluation at step 10: " in last.stdout
    folder = tiny_data / "models" / "evaluating"
    assert [row["step"] for row in read_metrics(folder / EVALUATIONS)] == [5, 10]


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
    a, b = (tensors_of(run / f"model.ckpt-{STEPS}") for run in runs)
    for name in a:
        if "adam" not in name:
            np.testing.assert_allclose(a[name], b[name], rtol=0, atol=1e-5)


# kill -9 anywhere: the run continues from what it saved.

# File operations of a save that removes an old checkpoint; there may be fewer.
OPERATIONS = 16


@pytest.mark.thorough
def test_kills(tiny_data):
    kill_again_and_again(tiny_data, kills=6, steps=60, seed=1)


@pytest.mark.slow
def test_100_kills(tiny_data):
    kill_again_and_again(tiny_data, kills=100, steps=900, seed=2)


def kill_again_and_again(data, kills, steps, seed):
    """Kills a run `kills` times, two of three times inside a save."""
    rng = random.Random(seed)
    saves = {"save_checkpoints_steps": 4, "keep_checkpoint_max": 3}
    hparams = tiny(num_train_steps=steps, **saves)
    finish(data, f"straight_{kills}", hparams)
    model = f"killed_{kills}"
    directory = data / "models" / model
    inside = at = 0
    for number in range(kills):
        if number % 3 < 2:
            # On average this leaves each start as many steps as the next.
            save = rng.randint(1 if at else 2, max(2, 2 * steps // (5 * kills)))
            before = functools.partial(kill_in_save, save, rng.randrange(OPERATIONS))
            ended = pretrain(data, model, hparams, before=before).wait()
        else:
            run = pretrain(data, model, hparams)
            if number % 2:
                time.sleep(3 * rng.random())  # before training starts
                run.process.kill()
            rows = at + rng.randrange(1, max(2, steps // kills))
            kill_when(run, directory / "metrics.jsonl", rows, rng.random() * 0.02)
            ended = run.wait()
        if ended.returncode == 0:
            continue
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        inside += number % 3 < 2
        started = continued_from(ended.stdout)
        has_begun = "Running training" in ended.stdout
        # The next start continues from what is on the disk now.
        found = Checkpoints(directory, read_only=True).newest_intact()
        assert started == at or not has_begun or (started is None and at == 0)
        now = found.step if found else 0
        assert now >= at
        at = now
    assert inside >= kills // 2
    last = finish(data, model, hparams)
    assert continued_from(last.stdout) == at or at == steps
    assert not [n for n in os.listdir(directory) if n.endswith(".partial")]
    assert [row["step"] for row in metrics_of(directory)] == list(range(1, steps + 1))
    expected = digest(data / "models" / f"straight_{kills}", steps)
    assert digest(directory, steps) == expected


def continued_from(text):
    found = re.search(r"Continuing from \S+model\.ckpt-(\d+)\.", text)
    return int(found[1]) if found else None
