# SPDX-License-Identifier: Apache-2.0
"""A run that is interrupted ends like the same run undisturbed, bit for bit."""

import functools
import random
import shutil
import signal

import numpy as np
import pytest

from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.stored_tensors import of_checkpoint
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from tests.helpers.forked_runs import digest, metrics_of, pretrain, signal_at
from tests.helpers.runs import NO_DROPOUT, tiny, write_tiny_data

STEPS = 60  # of 8 examples: 100 of them make an epoch of 12.5 steps


def settings(**changes):
    return tiny(num_train_steps=STEPS, save_checkpoints_steps=20, **changes)


def finish(data, model, hparams, **kwargs):
    run = pretrain(data, model, hparams, **kwargs).wait()
    assert run.returncode == 0, run.stderr
    return run


def stopped(data, model, hparams, step, number=signal.SIGTERM, **kwargs):
    """Lets a run go on to about `step`, where a signal ends it; returns the step."""
    before = functools.partial(signal_at, step, number)
    run = pretrain(data, model, hparams, before=before, **kwargs).wait()
    assert run.returncode == 42, run.stderr
    at = Checkpoints(data / "models" / model).steps()[-1]
    assert f"{number.name}: saved at step {at}" in run.stdout
    assert len(metrics_of(data / "models" / model)) == at
    return at


CASES = {
    # As most runs are: XLA compiles the step. Microbatches, too.
    "jit": ({"jit_compile": True, "gradient_accumulation_steps": 2}, "1", 1),
    "replicas": ({}, "2", 1),
    "graph": ({}, "1", 2),
}
LONG_CASES = {
    "jit": (CASES["jit"][0], "1", 4),
    "replicas": ({}, "2", 4),
    "replicas_jit": ({"jit_compile": True}, "2", 2),
    "replicas_accumulation": ({"gradient_accumulation_steps": 2}, "2", 2),
    "graph": ({}, "1", 8),
    "electric": ({"electric_objective": True, "jit_compile": True}, "1", 2),
    "mlm": ({"electra_objective": False, "jit_compile": True}, "1", 2),
    "mixed_bfloat16": ({"precision": "mixed_bfloat16"}, "1", 4),
    "mixed_float16": ({"precision": "mixed_float16"}, "1", 4),
}


# Saved at 20, 30 (where the discriminator starts) and 40.
TWO_STAGE = {
    "objective": "two_stage",
    "embedding_size": 32,
    "generator_hidden_size": 1.0,
    "jit_compile": True,
}


def check_resume(data, name, case, seed, points=None):
    hparams, devices, interruptions = case
    hparams = settings(**hparams)
    env = {CPU_DEVICES_VARIABLE: devices}
    finish(data, f"{name}_straight", hparams, env=env)
    rng = random.Random(seed)
    # So far apart, and in loops so short, that no signal comes with the last step.
    loops = {"iterations_per_loop": 3}
    points = points or sorted(rng.sample(range(2, STEPS - 4, 4), interruptions))
    for number, point in enumerate(points):
        sent = (signal.SIGTERM, signal.SIGINT)[number % 2]
        at = stopped(data, f"{name}_cut", hparams | loops, point, sent, env=env)
        assert point <= at < STEPS
    last = finish(data, f"{name}_cut", hparams, env=env)
    assert f"Continuing from {data}/models/{name}_cut/model.ckpt-{at}." in last.stdout
    models = data / "models"
    expected = digest(models / f"{name}_straight", STEPS)
    assert digest(models / f"{name}_cut", STEPS) == expected


@pytest.mark.parametrize(
    "name",
    [
        "jit",
        pytest.param("replicas", marks=pytest.mark.thorough),
        pytest.param("graph", marks=pytest.mark.thorough),
    ],
)
def test_bitwise_resume(tiny_data, name):
    check_resume(tiny_data, name, CASES[name], seed=1)


@pytest.mark.thorough
def test_bitwise_resume_across_the_switch_of_stages(tiny_data):
    check_resume(tiny_data, "stages", (TWO_STAGE, "1", 2), seed=1, points=[14, 44])
    # And from what was saved at the switch itself, before anything is copied.
    models = tiny_data / "models"
    shutil.copytree(models / "stages_straight", models / "stages_switch")
    for path in (models / "stages_switch").glob("model.ckpt-[46]0.*"):
        path.unlink()
    (models / "stages_switch" / "checkpoint").unlink()
    last = finish(tiny_data, "stages_switch", settings(**TWO_STAGE))
    assert "stages_switch/model.ckpt-30." in last.stdout
    expected = digest(models / "stages_straight", STEPS)
    assert digest(models / "stages_switch", STEPS) == expected


@pytest.mark.thorough
def test_bitwise_resume_of_rare_masks_and_verdicts_on_texts(tmp_path):
    data = write_tiny_data(tmp_path)
    counts = "".join(f"{n}\n" for n in range(60))
    (data / "pretrain_tfrecords" / "token_counts.txt").write_text(counts)
    hparams = {"objective": "electra_sentence", "repeated_masks": "fixed"}
    case = (hparams | {"rare_mask_power": 0.5}, "1", 1)
    check_resume(data, "rare", case, seed=1)


@pytest.mark.thorough
def test_bitwise_resume_of_masks_by_a_word_list(tmp_path):
    data = write_tiny_data(tmp_path)
    tokens = (data / "vocab.txt").read_text().split()
    tokens[5:] = [chr(0x4E00 + i) for i in range(55)]
    (data / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    # Sentences are of tokens one after the other.
    words = ["".join(tokens[i : i + 2]) for i in range(5, 59, 2)]
    (tmp_path / "words.txt").write_text("\n".join(words))
    hparams = {"mask_unit": "word", "word_list": str(tmp_path / "words.txt")}
    check_resume(data, "words", (hparams, "1", 1), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_CASES)
def test_bitwise_resume_at_many_points(tiny_data, name):
    check_resume(tiny_data, f"long_{name}", LONG_CASES[name], seed=2)


@pytest.mark.thorough
def test_resume_on_another_number_of_replicas(tiny_data):
    """1 -> 2 -> 1 devices: what changes is the order in which numbers are summed."""
    hparams = settings(overrides=NO_DROPOUT)
    finish(tiny_data, "one_straight", hparams)
    stopped(tiny_data, "one_two_one", hparams, 15)
    two = {CPU_DEVICES_VARIABLE: "2"}
    stopped(tiny_data, "one_two_one", hparams, 35, env=two)
    finish(tiny_data, "one_two_one", hparams)
    models = tiny_data / "models"
    straight, moved = models / "one_straight", models / "one_two_one"
    for ours, theirs in zip(metrics_of(moved), metrics_of(straight), strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
    assert largest_difference(straight, moved) < 1e-5


def largest_difference(one, other):
    """Between the weights of two runs' last checkpoints."""
    import tensorflow as tf

    prefixes = [str(run / f"model.ckpt-{STEPS}") for run in (one, other)]
    worst = 0.0
    for name, shape in tf.train.list_variables(prefixes[0]):
        if "adam" in name or name in ("global_step", "loss_scale/good_steps"):
            continue
        pair = [{name: tf.Variable(tf.zeros(shape))} for _ in prefixes]
        for prefix, variables in zip(prefixes, pair, strict=True):
            of_checkpoint(prefix).assign_to(variables)
        a, b = (variables[name].numpy() for variables in pair)
        worst = max(worst, np.abs(a - b).max())
    return worst


@pytest.mark.parametrize("devices", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_kills_a_signal_and_a_damaged_checkpoint(tiny_data, devices):
    env = {CPU_DEVICES_VARIABLE: devices}
    hparams = settings()
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
