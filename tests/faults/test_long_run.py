# SPDX-License-Identifier: Apache-2.0
"""Thousands of steps: no memory and no file is held that is not given back."""

import functools
import json
import os
import random

import pytest

from tests.helpers.forked_runs import digest, metrics_of, pretrain, signal_at
from tests.helpers.runs import tiny

WARM_UP = 0.25  # of the steps: until buffers and graphs are all there


def settings(steps):
    # Twenty saves, of which the older half has been removed again.
    return tiny(
        num_train_steps=steps,
        save_checkpoints_steps=steps // 20,
        keep_checkpoint_max=3,
        log_steps=steps // 10,
    )


def watch_memory(path):
    """Notes step, resident kilobytes and open files each time the graph returns."""
    from electra_tf.train import step as training_step

    run = training_step.TrainingStep.run

    def watched(self, iterator, start, count):
        metrics = run(self, iterator, start, count)
        with open("/proc/self/status", encoding="utf-8") as f:
            memory = next(int(x.split()[1]) for x in f if x.startswith("VmRSS"))
        files = len(os.listdir("/proc/self/fd"))
        with open(path, "a", encoding="utf-8") as f:
            f.write(json.dumps([start + count, memory, files]) + "\n")
        return metrics

    training_step.TrainingStep.run = watched


def growth(path, steps):
    """Resident memory and open files: late ones by early ones, after the warm-up."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if row[0] > WARM_UP * steps]
    part = len(rows) // 5
    assert part > 2
    # Means over a fifth: what a save takes for a moment is no growth.
    early, late = rows[:part], rows[-part:]
    means = [[sum(r[i] for r in some) / part for i in (1, 2)] for some in (early, late)]
    return means[1][0] / means[0][0], means[1][1] / means[0][1]


@pytest.mark.slow
def test_20_000_steps_and_five_resumes(tiny_data, tmp_path):
    steps = 20_000
    path = tmp_path / "memory"
    before = functools.partial(watch_memory, path)
    run = pretrain(tiny_data, "long", settings(steps), before=before).wait(900)
    assert run.returncode == 0, run.stderr
    memory, files = growth(path, steps)
    print(f"memory x {memory:.4f}, open files x {files:.4f}")
    assert memory < 1.01 and files < 1.01

    rng = random.Random(3)
    for step in sorted(rng.sample(range(2, steps - 1000), 5)):
        before = functools.partial(signal_at, step)
        run = pretrain(tiny_data, "cut", settings(steps), before=before).wait(900)
        assert run.returncode == 42, run.stderr
    run = pretrain(tiny_data, "cut", settings(steps)).wait(900)
    assert run.returncode == 0, run.stderr
    cut = tiny_data / "models" / "cut"
    assert [row["step"] for row in metrics_of(cut)] == list(range(1, steps + 1))
    assert digest(cut, steps) == digest(tiny_data / "models" / "long", steps)
