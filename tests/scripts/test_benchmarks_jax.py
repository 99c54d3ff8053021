# SPDX-License-Identifier: Apache-2.0
"""What benchmarks do on a machine without TensorFlow; JAX is replaced by a stand-in."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import without_tensorflow


def run(code: str, tmp_path, *args) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        env=os.environ | without_tensorflow.environment(tmp_path / "blocked"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", ["run_compiled_step", "gpu_first_hour"])
def test_without_tensorflow_they_can_be_imported(script, tmp_path):
    done = run(f"import {script}", tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["tensorflow", "keras"])
def test_the_check_can_fail(name, tmp_path):
    done = run(f"import {name}", tmp_path)
    assert f"import of {name} halted" in done.stderr


# A device that needs 7 s to give its state away, and no time for all else.
TRAINING = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
import run_compiled_step as script

class Program:
    device, compile_s = SimpleNamespace(device_kind="stand-in"), 0.0
    def __init__(self, folder, spec, state):
        self.step = int(state["global_step"])
    def put(self, array):
        return array
    def __call__(self, batch):
        self.step += 1
        return np.zeros(1)
    def state(self):
        clock.now += 7.0
        return state | {"global_step": np.int64(self.step)}
    def facts(self):
        return {}

class Stop:
    def reason(self, needed=0.0):
        asked.append(needed)
        return "max_wall_time" if len(asked) == 3 else None

clock, asked = SimpleNamespace(now=0.0), []
script.time = SimpleNamespace(monotonic=lambda: clock.now)
script.Program, script.report = Program, lambda *_: None
script.FLAGS(["script", "--step_dir=.", "--log_steps=2", *sys.argv[1:]])
spec = {"num_train_steps": 20, "seed": 1, "train_batch_size": 2}
state = {"global_step": np.int64(0), "w": np.ones(2), "w/adam_m": np.ones(2)}
spec |= {"state": {n: [list(v.shape), v.dtype.name] for n, v in state.items()}}
spec |= {"inputs": {"draws": [[2, 3]]}}
np.savez("initial_state.npz", **state)
names = ("input_ids", "input_mask", "segment_ids")
np.savez("tokens.npz", **{name: np.zeros((4, 8), np.int32) for name in names})
code = script.train(Path(), spec, Stop())
saved = [np.load(f"{name}.npz") for name in ("state", "weights")]
found = {"asked": asked, "code": code, "names": [sorted(s.files) for s in saved]}
print(json.dumps(found | {"saved": [int(s["global_step"]) for s in saved]}))
"""


def test_the_time_that_a_save_takes_is_kept_back(tmp_path):
    """Where the wall clock ends a job, it must be over before."""
    done = run(TRAINING, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["code"], found["saved"]) == (42, [6, 6])
    assert found["names"] == [["global_step", "w", "w/adam_m"], ["global_step", "w"]]
    assert min(found["asked"]) >= 7.0
