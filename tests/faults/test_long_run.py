# SPDX-License-Identifier: Apache-2.0
"""Thousands of steps: all memory and files are released again."""

import functools
import json
import os

import pytest

from tests.helpers.forked_runs import pretrain
from tests.helpers.runs import tiny

STEPS = 20_000


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


@pytest.mark.slow
def test_memory_and_open_files_do_not_grow(tiny_data, tmp_path):
    path = tmp_path / "memory"
    # Twenty saves; the older half was removed again.
    saves = {"save_checkpoints_steps": STEPS // 20, "keep_checkpoint_max": 3}
    hparams = tiny(num_train_steps=STEPS, log_steps=STEPS // 10, **saves)
    before = functools.partial(watch_memory, path)
    run = pretrain(tiny_data, "long", hparams, before=before).wait(900)
    assert run.returncode == 0, run.stderr
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [row for row in rows if row[0] > STEPS // 4]  # Buffers and graphs are there.
    part = len(rows) // 5
    assert part > 2
    # Means over a fifth: what a save takes for a moment is not growth.
    early, late = rows[:part], rows[-part:]
    for kind in (1, 2):
        assert sum(r[kind] for r in late) < 1.01 * sum(r[kind] for r in early)
