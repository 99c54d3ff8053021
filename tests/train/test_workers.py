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
import time

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from tests.helpers.forked_runs import digest, metrics_of, pretrain, signal_at
from tests.helpers.runs import NO_DROPOUT, tiny
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
    assert [e.returncode for e in ended] == [0, 0], ended
    return tiny_data / "models" / "straight"


def tensors(directory, step):
    reader = tf.train.load_checkpoint(str(directory / f"model.ckpt-{step}"))
    names = reader.get_variable_to_shape_map()
    return {name: reader.get_tensor(name) for name in names}


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


def test_a_run_goes_on_after_whatever_happens_to_a_worker(
    tiny_data, elsewhere, straight
):
    """Time over, a signal, kill -9 of either; then the bits are those of `straight`."""
    directory = tiny_data / "models" / "hit"

    def run(*codes, **faults):
        ended = train(tiny_data, "hit", HPARAMS, own_data={1: elsewhere}, **faults)
        return ended_with(ended, *codes)

    chief, _ = run(42, 42, flags={1: ["--max-wall-time=1s"]})
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
        (ended,) = ended_with(cluster.wait(20), 42)
    assert "SIGTERM: nothing to save" in ended.stdout


def test_a_full_disk_of_the_chief_ends_all(tiny_data, elsewhere):
    ended = train(
        tiny_data,
        "full",
        HPARAMS,
        own_data={1: elsewhere},
        before={0: functools.partial(fill_disk_at_save, 2)},
    )
    chief, other = ended_with(ended, 73, 73)
    assert "error: cannot write" in chief.stderr
    assert "error: worker 0 (127.0.0.1:" in other.stderr
    assert "cannot write" in other.stderr
    assert Checkpoints(tiny_data / "models" / "full").newest_intact().step == 0


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


def evaluation(directory, name):
    settings = {"do_train": False, "do_eval": True}
    return HPARAMS | settings | {"results_txt": str(directory / f"{name}.txt")}


def fill_disk_at_save(number):
    """From this process's n-th checkpoint on, the disk is full."""
    from electra_tf.storage import checkpoints

    whole_save, saves = checkpoints.Checkpoints.save, []

    def save(self, step, variables):
        saves.append(step)
        if len(set(saves)) >= number:
            # No file can become as large as a checkpoint.
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        whole_save(self, step, variables)

    checkpoints.Checkpoints.save = save
