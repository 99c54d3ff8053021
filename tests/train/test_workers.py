# SPDX-License-Identifier: Apache-2.0
"""Several workers, each a process: one start, one decision, one end, whatever fails."""

import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import socket
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from electra_tf.train.reporting import EVALUATIONS
from tests.helpers.forked_runs import (
    digest,
    kill_in_save,
    metrics_of,
    pretrain,
    signal_at,
)
from tests.helpers.runs import NO_DROPOUT, by_default, tiny, write_tiny_data
from tests.helpers.workers import Cluster, train

STEPS = 60
HPARAMS = tiny(overrides=NO_DROPOUT, num_train_steps=STEPS, save_checkpoints_steps=25)


@pytest.fixture(scope="module")
def elsewhere(tiny_data, tmp_path_factory):
    """The data directory of a worker on another machine: data, but no checkpoints."""
    copy = tmp_path_factory.mktemp("elsewhere") / "data"
    ignored = shutil.ignore_patterns("models", "logs")
    return shutil.copytree(tiny_data, copy, ignore=ignored)


@pytest.fixture(scope="module")
def straight(tiny_data, elsewhere):
    """A run of two workers that nothing happens to; its directory."""
    ended = train(tiny_data, "straight", HPARAMS, own_data={1: elsewhere})
    chief, _ = ended_with(ended, 0, 0)
    assert "Devices: 2 x CPU (2 workers), precision float32" in chief.stdout
    return tiny_data / "models" / "straight"


def tensors(directory, step):
    reader = tf.train.load_checkpoint(str(directory / f"model.ckpt-{step}"))
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names}


@pytest.mark.thorough
def test_workers_make_the_steps_of_one_process(tiny_data, elsewhere, straight):
    """With the default number of iterations in a loop; only the chief writes."""
    assert metrics_of(straight)[-1]["step"] == STEPS
    assert not (elsewhere / "models").exists()
    devices = {CPU_DEVICES_VARIABLE: "2"}
    assert pretrain(tiny_data, "devices", HPARAMS, env=devices).wait().returncode == 0
    assert pretrain(tiny_data, "alone", HPARAMS).wait().returncode == 0
    for model in ("devices", "alone"):
        other = tiny_data / "models" / model
        for mine, row in zip(metrics_of(straight), metrics_of(other), strict=True):
            assert mine == pytest.approx(row, rel=1e-4, abs=1e-5)
        expected = tensors(other, 25)
        for name, value in tensors(straight, 25).items():
            np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5)


def ended_with(ended, *codes):
    """The workers' ends, after a look at their exit codes and for tracebacks."""
    assert [e.returncode for e in ended] == list(codes), ended
    assert not any("Traceback" in e.stderr for e in ended), ended
    return ended


def goes_on_from(model_dir):
    step = Checkpoints(model_dir).steps()[-1]
    return f"Continuing from {model_dir}/model.ckpt-{step}."


@pytest.mark.thorough
def test_a_run_goes_on_after_whatever_happens_to_a_worker(
    tiny_data, elsewhere, straight
):
    """Time over, a signal, kill -9 of either; then the bits are those of `straight`."""
    directory = tiny_data / "models" / "hit"

    def run(*codes, **faults):
        ended = train(tiny_data, "hit", HPARAMS, own_data={1: elsewhere}, **faults)
        return ended_with(ended, *codes)

    chief, _ = run(42, 42, flags={1: ["--max-wall-time=0"]})
    assert "max_wall_time at worker 1 (127.0.0.1:" in chief.stdout
    assert "saved at step 0." in chief.stdout

    before = {1: functools.partial(signal_at, 10, signal.SIGHUP)}
    chief, _ = run(42, 42, before=before)
    saved = Checkpoints(directory).steps()[-1]
    assert "SIGHUP at worker 1 (127.0.0.1:" in chief.stdout
    assert f"saved at step {saved}." in chief.stdout and 10 <= saved < STEPS
    assert len(metrics_of(directory)) == saved

    expected = goes_on_from(directory)
    before = {1: functools.partial(signal_at, saved + 5, signal.SIGKILL)}
    chief, _ = run(69, -signal.SIGKILL, before=before)
    assert expected in chief.stdout
    assert "error: worker 1 (127.0.0.1:" in chief.stderr

    before = {0: functools.partial(signal_at, saved + 5, signal.SIGKILL)}
    _, other = run(-signal.SIGKILL, 69, before=before)
    assert "error: worker 0 (127.0.0.1:" in other.stderr

    expected = goes_on_from(directory)
    chief, other = run(0, 0)
    assert expected in chief.stdout
    assert not other.stdout and not (elsewhere / "models").exists()
    assert digest(directory, STEPS) == digest(straight, STEPS)


@pytest.mark.parametrize(
    "written",
    [
        pytest.param("weights"),
        pytest.param("order", marks=pytest.mark.thorough),
        pytest.param("phases", marks=pytest.mark.thorough),
        pytest.param("evaluated", marks=pytest.mark.thorough),
    ],
)
def test_workers_that_mix_their_data_differently_are_refused(
    tiny_data, written, tmp_path
):
    """They have the same files, and would train on different streams."""
    folders = tiny_data, write_tiny_data(tmp_path / "other", examples=40)
    a, b = (str(folder / "pretrain_tfrecords" / "*") for folder in folders)

    def of(first, second):
        parts = [{"num_train_steps": 30, "pretrain_tfrecords": x} for x in (a, b)]
        return {
            "weights": {"pretrain_tfrecords": {a: first, b: second}},
            "order": {"pretrain_tfrecords": [a, b][:: second - first]},
            "phases": {"phases": parts[:: second - first]},
            "evaluated": {
                "eval_tfrecords": {a: first, b: second},
                "do_train": False,
                "do_eval": True,
            },
        }[written]

    model = f"mixed_{written}"
    if written == "evaluated":
        short = HPARAMS | {"num_train_steps": 1}
        assert pretrain(tiny_data, model, short).wait().returncode == 0
    own = {0: of(1, 2), 1: of(2, 1)}
    for one in ended_with(train(tiny_data, model, HPARAMS, own_hparams=own), 2, 2):
        assert "error: worker 1 (127.0.0.1:" in one.stderr
        assert "data [" in one.stderr


def test_workers_that_differ_are_refused(tiny_data, elsewhere):
    ended = train(
        tiny_data,
        "differ",
        HPARAMS,
        own_hparams={1: {"learning_rate": 1e-3}},
        own_data={1: elsewhere},
    )
    for one in ended_with(ended, 2, 2):
        assert "error: worker 1 (127.0.0.1:" in one.stderr
        assert "has learning_rate 0.001, worker 0 (127.0.0.1:" in one.stderr
        assert " has 0.002.\n" in one.stderr
    assert not Checkpoints(tiny_data / "models" / "differ").steps()


def test_a_worker_that_never_comes(tiny_data):
    """It is waited for, so long; the one that waits can be stopped meanwhile."""
    hparams = HPARAMS | {"peer_timeout": 3}
    (ended,) = ended_with(train(tiny_data, "waits", hparams, absent=[1]), 69)
    assert "error: waited 3 s for worker 1 (127.0.0.1:" in ended.stderr
    assert "peer_timeout" in ended.stderr
    with Cluster(tiny_data, "stopped", HPARAMS, absent=[1]) as cluster:
        host, port = cluster.places[0].split(":")
        while True:  # until it listens
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection((host, int(port))).close()
                break
            assert cluster.runs[0].process.is_alive()
            time.sleep(0.1)
        os.kill(cluster.runs[0].process.pid, signal.SIGTERM)
        (ended,) = ended_with(cluster.wait(60), 42)
    assert "SIGTERM: nothing to save" in ended.stdout


def test_a_worker_that_waits_for_ever_can_be_stopped(tiny_data, elsewhere):
    """Where the other one lives, but does not come to the step."""
    with Cluster(
        tiny_data,
        "waiting",
        HPARAMS,
        own_data={1: elsewhere},
        before={0: be_impatient, 1: functools.partial(sleep_at, 10)},
    ) as cluster:
        while "asleep" not in cluster.runs[1].stderr.read_text():
            assert cluster.runs[0].process.is_alive()
            time.sleep(0.1)
        os.kill(cluster.runs[0].process.pid, signal.SIGTERM)
        cluster.runs[0].process.join(30)
        cluster.kill()
        ended, _ = ended_with(cluster.wait(), 69, -signal.SIGKILL)
    assert "SIGTERM: no exchange with the other workers was reached" in ended.stdout


@pytest.mark.parametrize("evaluates", by_default([False, True], [False]))
def test_a_full_disk_of_the_chief_ends_all(tiny_data, elsewhere, evaluates):
    """Also in the save before an evaluation, in which all take part."""
    every = {"eval_every_steps": 25, "num_eval_steps": 2} if evaluates else {}
    model = f"full_{evaluates}"
    ended = train(
        tiny_data,
        model,
        HPARAMS | every,
        own_data={1: elsewhere},
        before={0: functools.partial(fill_disk_at_save, 2)},
    )
    chief, other = ended_with(ended, 73, 73)
    assert "error: cannot write" in chief.stderr
    assert "error: worker 0 (127.0.0.1:" in other.stderr
    assert "cannot write" in other.stderr
    assert Checkpoints(tiny_data / "models" / model).newest_intact().step == 0


@pytest.mark.thorough
@pytest.mark.parametrize("steps", [STEPS, 5])
def test_an_evaluation_of_workers_is_left_by_a_signal(tiny_data, elsewhere, steps):
    """The last one, too; the next start makes it."""
    hparams = HPARAMS | {"eval_every_steps": 5, "num_train_steps": steps}
    model, own = f"evaluated_{steps}", {"own_data": {1: elsewhere}}
    longer, before = hparams | {"num_eval_steps": 10**6}, {1: signal_in_evaluation}
    ended = train(tiny_data, model, longer, before=before, **own)
    chief, _ = ended_with(ended, 42, 42)
    assert "Evaluation at step 5 is left to the next start." in chief.stdout
    assert "SIGTERM at worker 1" in chief.stdout and "saved at step 5." in chief.stdout
    folder = tiny_data / "models" / model
    assert not (folder / EVALUATIONS).read_text()
    for flags, codes in ((["--max-wall-time=0"], [42, 42]), ([], [0, 0])):
        ended = train(tiny_data, model, hparams, flags={1: flags}, **own)
        ended_with(ended, *codes)
    rows = [json.loads(line) for line in (folder / EVALUATIONS).open()]
    assert [row["step"] for row in rows] == list(range(5, steps + 1, 5))


def test_other_evaluation_data_are_refused(tiny_data, elsewhere, tmp_path):
    other = write_tiny_data(tmp_path / "other", examples=40) / "pretrain_tfrecords"
    ended = train(
        tiny_data,
        "differently_evaluated",
        HPARAMS | {"eval_every_steps": 25},
        own_hparams={1: {"eval_tfrecords": str(other / "*")}},
        own_data={1: elsewhere},
    )
    for one in ended_with(ended, 2, 2):
        assert "evaluation data" in one.stderr


def test_an_evaluation_does_not_depend_on_how_many_share_it(
    tiny_data, elsewhere, straight
):
    found = {}
    for name, env in (("alone", {}), ("devices", {CPU_DEVICES_VARIABLE: "2"})):
        run = pretrain(tiny_data, "straight", evaluation(straight, name), env=env)
        assert run.wait().returncode == 0
    hparams = evaluation(straight, "workers")
    ended_with(train(tiny_data, "straight", hparams, own_data={1: elsewhere}), 0, 0)
    for name in ("alone", "devices", "workers"):
        found[name] = json.loads((straight / f"{name}.json").read_text())["metrics"]
    assert found["alone"]["loss"] > 1
    assert found["devices"] == pytest.approx(found["alone"], rel=1e-5)
    assert found["workers"] == pytest.approx(found["alone"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "tolerance"),
    [
        ({"electra_objective": False}, 1e-5),
        ({"electra_objective": False, "electric_objective": True}, 1e-5),
        ({"jit_compile": True}, 1e-5),
        ({"gradient_accumulation_steps": 2}, 1e-5),
        ({"precision": "mixed_bfloat16"}, 2e-3),
    ],
    ids=["mlm", "electric", "jit", "accumulation", "bfloat16"],
)
def test_every_kind_of_step_is_that_of_one_process(tiny_data, changes, tolerance):
    name = "_".join(changes)
    hparams = HPARAMS | {"num_train_steps": 10} | changes
    ended_with(train(tiny_data, f"two_{name}", hparams), 0, 0)
    assert pretrain(tiny_data, f"one_{name}", hparams).wait().returncode == 0
    two, one = (tiny_data / "models" / f"{n}_{name}" for n in ("two", "one"))
    for mine, row in zip(metrics_of(two), metrics_of(one), strict=True):
        assert mine["loss"] == pytest.approx(row["loss"], rel=10 * tolerance)
    expected = tensors(one, 10)
    for variable, value in tensors(two, 10).items():
        np.testing.assert_allclose(value, expected[variable], rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "fault"),
    [
        (0, functools.partial(kill_in_save, 2, 3)),
        (0, functools.partial(kill_in_save, 1, 5)),
        (1, functools.partial(signal_at, 1, signal.SIGKILL)),
        (2, functools.partial(signal_at, 30, signal.SIGKILL)),
        (2, functools.partial(signal_at, 30, signal.SIGSTOP)),
    ],
    ids=["in a save", "in the first save", "before the first step", "later", "stopped"],
)
def test_one_of_three_is_lost(tiny_data, three_straight, index, fault):
    model = f"three_{time.monotonic()}"
    hparams = HPARAMS | {"train_batch_size": 6}
    with Cluster(tiny_data, model, hparams, 3, before={index: fault}) as cluster:
        for other in {0, 1, 2} - {index}:
            cluster.runs[other].process.join(100)
        cluster.kill()
        codes = [69, 69, 69]
        codes[index] = -signal.SIGKILL
        ended_with(cluster.wait(), *codes)
    ended_with(train(tiny_data, model, hparams, 3), 0, 0, 0)
    assert digest(cluster.directory, STEPS) == digest(three_straight, STEPS)


@pytest.fixture(scope="module")
def three_straight(tiny_data):
    hparams = HPARAMS | {"train_batch_size": 6}
    ended_with(train(tiny_data, "three", hparams, 3), 0, 0, 0)
    return tiny_data / "models" / "three"


@pytest.mark.slow
def test_a_worker_that_is_a_minute_late(tiny_data):
    hparams = HPARAMS | {"num_train_steps": 5}
    with Cluster(tiny_data, "late", hparams, absent=[0]) as cluster:
        time.sleep(60)
        cluster.start(0)
        ended_with(cluster.wait(), 0, 0)


@pytest.mark.slow
def test_a_diverged_run_keeps_the_whole_batch(tiny_data, elsewhere):
    """Of which each worker has a part."""
    before = dict.fromkeys((0, 1), functools.partial(poison, 8))
    ended = train(
        tiny_data, "diverged", HPARAMS, own_data={1: elsewhere}, before=before
    )
    for one in ended_with(ended, 70, 70):
        assert "diverged at step 9: loss nan" in one.stderr
    path = tiny_data / "models" / "diverged" / "nonfinite_step_9.npz"
    with np.load(path, allow_pickle=False) as batch:
        assert len(batch["input_ids"]) == HPARAMS["train_batch_size"]
        assert np.isnan(batch["masked_lm_weights"]).any()
    assert not (elsewhere / "models").exists()


def poison(step):
    """Makes the loss of a step no number, at the worker where this is called."""
    from electra_tf.pretrain import masking

    mask_batch = masking.mask_batch

    def poisoned(batch, seed, now, *options):
        masked = mask_batch(batch, seed, now, *options)
        factor = tf.where(now == step, np.float32("nan"), 1.0)
        weights = masked["masked_lm_weights"] * factor
        return masked | {"masked_lm_weights": weights}

    masking.mask_batch = poisoned


def evaluation(directory, name):
    settings = {"do_train": False, "do_eval": True}
    return HPARAMS | settings | {"results_txt": str(directory / f"{name}.txt")}


def signal_in_evaluation():
    """Sends this process SIGTERM in its first evaluation, behind the second batch."""
    from electra_tf.train import evaluation

    class Interrupting(evaluation.Progress):
        def update(self, done, *args):
            if done == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            super().update(done, *args)

    evaluation.Progress = Interrupting


def be_impatient():
    from electra_tf.train import stopping

    stopping.PATIENCE_SECONDS, stopping.PATIENCE_FACTOR = 1.0, 0.1


def sleep_at(step):
    """Sleeps instead of making the steps up to `step`."""
    from electra_tf.train import step as training_step

    run = training_step.TrainingStep.run

    def late(self, iterator, start, count):
        if start + count >= step:
            print("asleep", file=sys.stderr, flush=True)
            time.sleep(600)
        return run(self, iterator, start, count)

    training_step.TrainingStep.run = late


def fill_disk_at_save(number):
    """From this process's n-th checkpoint on, the disk is full."""
    from electra_tf.storage import checkpoints

    whole_save, saves = checkpoints.Checkpoints.save, []

    def save(self, step, variables):
        saves.append(step)
        if len(set(saves)) >= number:
            # No file can become as large as a checkpoint.
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        whole_save(self, step, variables)

    checkpoints.Checkpoints.save = save
