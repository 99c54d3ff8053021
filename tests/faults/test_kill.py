# SPDX-License-Identifier: Apache-2.0
"""kill -9 anywhere, many times: the run continues from what it saved."""

import functools
import os
import random
import re
import signal
import time

import pytest

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.forked_runs import (
    digest,
    kill_in_save,
    kill_when,
    metrics_of,
    pretrain,
)
from tests.helpers.runs import tiny

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
    straight = pretrain(data, f"straight_{kills}", hparams).wait()
    assert straight.returncode == 0, straight.stderr
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
    last = pretrain(data, model, hparams).wait()
    assert last.returncode == 0, last.stderr
    assert continued_from(last.stdout) == at or at == steps
    assert not [n for n in os.listdir(directory) if n.endswith(".partial")]
    assert [row["step"] for row in metrics_of(directory)] == list(range(1, steps + 1))
    expected = digest(data / "models" / f"straight_{kills}", steps)
    assert digest(directory, steps) == expected


def continued_from(text):
    found = re.search(r"Continuing from \S+model\.ckpt-(\d+)\.", text)
    return int(found[1]) if found else None
