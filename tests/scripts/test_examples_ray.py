# SPDX-License-Identifier: Apache-2.0
"""The example for Ray Tune, without Ray, which the tests do not install."""

import json
import subprocess
import sys

import pytest

from tests.helpers.runs import ROOT
from tests.helpers.tiny_finetuning import TINY, write_data

pytestmark = pytest.mark.thorough
SCRIPT = str(ROOT / "examples/ray_sweep.py")
HPARAMS = TINY | {"task_names": ["sts"], "num_train_epochs": 1.0}
# One trial as Ray calls it, without Ray, and its report.
TRIAL = """
import json, pathlib, runpy, sys, types
from absl import flags
script, data, hparams = sys.argv[1:]
sweep = runpy.run_path(script)
flags.FLAGS(["x", f"--data_dir={data}", "--model_name=m", "--seeds=1"])
place = pathlib.Path(data, "p")
trial = sweep["trainable"](object, json.loads(hparams), place)()
config = {"learning_rate": 1e-3, "layerwise_lr_decay": 0.9, "trial": 1}
trial.setup(config)
row = trial.step()
while not row["done"]:
    row = trial.step()
sweep["report"]([types.SimpleNamespace(config=config, metrics=row)])
"""


def python(*args):
    command = [sys.executable, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900)


def test_score_of_a_trial_is_that_of_the_kept_model(tmp_path):
    """The dev scores are turned around, so the last evaluation is not the best."""
    data = write_data(tmp_path / "data")
    dev = data / "finetuning_data" / "sts" / "dev.tsv"
    header, *lines = dev.read_text().splitlines()
    cells = [line.rpartition("\t") for line in lines]
    lines = [f"{left}\t{5 - float(score):.3f}" for left, _, score in cells]
    dev.write_text("\n".join([header, *lines, ""]))
    hparams = {"num_train_epochs": 4.0, "eval_every_steps": 24, "keep": "best"}
    done = python("-c", TRIAL, SCRIPT, data, json.dumps(HPARAMS | hparams))
    assert done.returncode == 0, done.stderr
    path = data / "p" / "rate_0.001_decay_0.9_1" / "evaluations.jsonl"
    scores = [json.loads(line)["score"] for line in path.read_text().splitlines()]
    assert scores[-1] < max(scores) - 1
    [line] = [x for x in done.stdout.splitlines() if x.lstrip().startswith("0.001")]
    assert line.split()[3:] == [f"{max(scores):.2f}"] * 2
