# SPDX-License-Identifier: Apache-2.0
"""Several workers, each a process: they start, decide and end together."""

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import time

import numpy as np
import pytest

from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.train.distribution import CPU_DEVICES_VARIABLE
from tests.helpers.forked_runs import (
    digest,
    full_disk_at_save,
    metrics_of,
    pretrain,
    signal_at,
    tensors_of,
)
from tests.helpers.runs import NO_DROPOUT, tiny, write_tiny_data
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
    """The directory of an undisturbed run of two workers."""
    ended = train(tiny_data, "straight", HPARAMS, own_data={1: elsewhere})
    chief, _ = ended_with(ended, 0, 0)
    assert "Devices: 2 x CPU (2 workers), precision float32" in chief.stdout
    return tiny_data / "models" / "straight"


@pytest.mark.thorough
def test_workers_make_the_steps_of_one_process(tiny_data, elsewhere, straight):
    """With the default number of iterations in a loop; only the chief writes."""
    assert metrics_of(straight)[-1]["step"] == STEPS
    assert not (elsewhere / "models").exists()
    assert pretrain(tiny_data, "alone", HPARAMS).wait().returncode == 0
    other = tiny_data / "models" / "alone"
    for mine, row in zip(metrics_of(straight), metrics_of(other), strict=True):
        assert mine == pytest.approx(row, rel=1e-4, abs=1e-5)
    expected = tensors_of(other / "model.ckpt-25")
    for name, value in tensors_of(straight / "model.ckpt-25").items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-5)


def ended_with(ended, *codes):
    """Checks the workers' exit codes and the absence of tracebacks."""
    assert [e.returncode for e in ended] == list(codes), ended
    assert not any("Traceback" in e.stderr for e in ended), ended
    return ended


@pytest.mark.thorough
def test_bitwise_resume_after_failures_of_workers(tiny_data, elsewhere, straight):
    """Time over, a signal, kill -9 of either."""
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

    before = {1: functools.partial(signal_at, saved + 5, signal.SIGKILL)}
    chief, _ = run(69, -signal.SIGKILL, before=before)
    assert f"Continuing from {directory}/model.ckpt-{saved}." in chief.stdout
    assert "error: worker 1 (127.0.0.1:" in chief.stderr

    before = {0: functools.partial(signal_at, saved + 5, signal.SIGKILL)}
    _, other = run(-signal.SIGKILL, 69, before=before)
    assert "error: worker 0 (127.0.0.1:" in other.stderr

    chief, other = run(0, 0)
    assert "Continuing from" in chief.stdout
    assert not other.stdout and not (elsewhere / "models").exists()
    assert digest(directory, STEPS) == digest(straight, STEPS)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["rate", "phases", "evaluated"])
def test_workers_with_different_hparams_are_refused(tiny_data, tmp_path, kind):
    """They would train or evaluate on different streams."""
    folders = tiny_data, write_tiny_data(tmp_path / "other", examples=40)
    a, b = (str(folder / "pretrain_tfrecords" / "*") for folder in folders)
    parts = [{"num_train_steps": 30, "pretrain_tfrecords": x} for x in (a, b)]
    own, message = {
        "rate": ([{}, {"learning_rate": 1e-3}], "has learning_rate 0.001, worker 0"),
        "phases": ([{"phases": x} for x in (parts, parts[::-1])], "data ["),
        "evaluated": (
            [{"eval_every_steps": 25, "eval_tfrecords": x} for x in (a, b)],
            "evaluation data",
        ),
    }[kind]
    model, own = f"differ_{kind}", dict(enumerate(own))
    for one in ended_with(train(tiny_data, model, HPARAMS, own_hparams=own), 2, 2):
        assert "error: worker 1 (127.0.0.1:" in one.stderr and message in one.stderr
    assert not Checkpoints(tiny_data / "models" / model).steps()


@pytest.mark.thorough
def test_a_signal_ends_the_wait_for_an_absent_worker(tiny_data):
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


@pytest.mark.thorough
def test_a_full_disk_of_the_chief_ends_all(tiny_data, elsewhere):
    """In the save before an evaluation, in which all take part."""
    hparams = HPARAMS | {"eval_every_steps": 25, "num_eval_steps": 2}
    before = {0: functools.partial(full_disk_at_save, 25)}
    other_place = {1: elsewhere}
    ended = train(tiny_data, "full", hparams, own_data=other_place, before=before)
    chief, other = ended_with(ended, 73, 73)
    assert "error: cannot write" in chief.stderr
    assert "error: worker 0 (127.0.0.1:" in other.stderr
    assert "cannot write" in other.stderr
    assert Checkpoints(tiny_data / "models" / "full").newest_intact().step == 0


@pytest.mark.thorough
def test_an_evaluation_is_independent_of_the_number_of_workers(
    tiny_data, elsewhere, straight
):
    settings = HPARAMS | {"do_train": False, "do_eval": True}
    found = {}
    for name, env in (("alone", {}), ("devices", {CPU_DEVICES_VARIABLE: "2"})):
        hparams = settings | {"results_txt": str(straight / f"{name}.txt")}
        run = pretrain(tiny_data, "straight", hparams, env=env)
        assert run.wait().returncode == 0
    hparams = settings | {"results_txt": str(straight / "workers.txt")}
    ended_with(train(tiny_data, "straight", hparams, own_data={1: elsewhere}), 0, 0)
    for name in ("alone", "devices", "workers"):
        found[name] = json.loads((straight / f"{name}.json").read_text())["metrics"]
    assert found["alone"]["loss"] > 1
    assert found["devices"] == pytest.approx(found["alone"], rel=1e-5)
    assert found["workers"] == pytest.approx(found["alone"], rel=1e-5)
