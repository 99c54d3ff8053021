# SPDX-License-Identifier: Apache-2.0
"""Several workers, each a process: one start, one decision, one end, whatever fails."""

import functools
import os
import shutil
import signal
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


@pytest.mark.parametrize("index", [0, 1])
def test_a_signal_at_one_worker_ends_all(tiny_data, elsewhere, straight, index):
    """At one step, with one checkpoint; the same commands go on to the same bits."""
    model = f"signal_{index}"
    number = (signal.SIGTERM, signal.SIGHUP)[index]
    with Cluster(
        tiny_data,
        model,
        HPARAMS,
        own_data={1: elsewhere},
        before={index: functools.partial(signal_at, 10, number)},
    ) as cluster:
        ended = cluster.wait()
    assert [e.returncode for e in ended] == [42, 42], ended
    saved, first = Checkpoints(cluster.directory).steps()[-1], 0
    assert 10 <= saved < STEPS
    place = f"{number.name} at worker {index} (127.0.0.1:"
    assert place in ended[0].stdout and f"saved at step {saved}." in ended[0].stdout
    assert len(metrics_of(cluster.directory)) == saved
    ended = train(tiny_data, model, HPARAMS, own_data={1: elsewhere})
    assert [e.returncode for e in ended] == [0, 0], ended
    assert f"Continuing from {cluster.directory}/model.ckpt-{saved}." in ended[0].stdout
    assert digest(cluster.directory, STEPS) == digest(straight, STEPS)


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_worker_ends_the_others(tiny_data, elsewhere, straight, index):
    model = f"killed_{index}"
    before = {index: functools.partial(signal_at, 30, signal.SIGKILL)}
    started = time.monotonic()
    with Cluster(
        tiny_data, model, HPARAMS, own_data={1: elsewhere}, before=before
    ) as cluster:
        cluster.runs[index].process.join(100)
        started = time.monotonic()
        ended = cluster.wait(60)
    print(time.monotonic() - started)
    assert ended[index].returncode == -signal.SIGKILL
    other = ended[1 - index]
    assert other.returncode == 69, other
    assert f"worker {index} (127.0.0.1:" in other.stderr
    assert "Traceback" not in other.stderr
    ended = train(tiny_data, model, HPARAMS, own_data={1: elsewhere})
    assert [e.returncode for e in ended] == [0, 0], ended
    assert digest(cluster.directory, STEPS) == digest(straight, STEPS)
