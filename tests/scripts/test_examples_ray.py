# SPDX-License-Identifier: Apache-2.0
"""The example for Ray Tune: a real search by two workers, where ray is installed."""

import json
import subprocess
import sys

import pytest

from tests.helpers.runs import ROOT
from tests.helpers.tiny_finetuning import TINY, write_data

SCRIPT = str(ROOT / "examples/ray_sweep.py")
HPARAMS = TINY | {"task_names": ["sts"], "num_train_epochs": 1.0}
FLAGS = ("--learning-rates=3e-3,1e-6", "--layer-decays=0.9", "--seeds=2")
CALLS = """
import json, pathlib, runpy, sys
from absl import flags
script, data, hparams = sys.argv[1:]
sweep = runpy.run_path(script)
flags.FLAGS(["x", f"--data_dir={data}", "--model_name=m"])
place = pathlib.Path(data, "place")
command = sweep["command_of"](json.loads(hparams), place, 1e-3, 0.9)
trial = sweep["trainable"](object, {(1e-3, 0.9): command})()
trial.setup({"learning_rate": 1e-3, "decay": 0.9, "trial": 2})
rows = [trial.step(), trial.step()]
trial.cleanup()
print(json.dumps([trial.process.returncode, *rows]))
"""

BEST = """
import json, pathlib, runpy, sys, types
from absl import flags
script, data, hparams = sys.argv[1:]
sweep = runpy.run_path(script)
flags.FLAGS(["x", f"--data_dir={data}", "--model_name=m", "--seeds=1"])
command = sweep["command_of"](json.loads(hparams), pathlib.Path(data, "p"), 1e-3, 0.9)
commands = {(1e-3, 0.9): command}
trial = sweep["trainable"](object, commands)()
config = {"learning_rate": 1e-3, "decay": 0.9, "trial": 1}
trial.setup(config)
row = trial.step()
while not row["done"]:
    row = trial.step()
sweep["report"]([types.SimpleNamespace(config=config, metrics=row)], commands)
"""


def search(data, hparams, *flags):
    return subprocess.run(
        [
            *(sys.executable, SCRIPT, f"--data-dir={data}", "--model-name=m"),
            *(f"--hparams={json.dumps(hparams)}", *FLAGS, *flags),
        ],
        capture_output=True,
        text=True,
        timeout=900,
    )


def test_a_search_by_two_workers(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install -e .[ray]")
    data = write_data(tmp_path / "data")
    done = search(data, HPARAMS | {"eval_every_steps": 12}, "--reduction=2")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("learning rate  layer decay  finished")
    scores = [line.split()[4:] for line in lines if line.lstrip()[:1].isdigit()]
    assert [len(row) for row in scores] == [2, 2]
    ended = sum(score.endswith("*") for row in scores for score in row)
    # Those that ASHA left have results, which --merge has collected; the others none.
    place = data / "models" / "m" / "ray_sweep"
    merged = [json.loads(p.read_text()) for p in place.glob("*_results/*_results.json")]
    assert sum(len(results["trials"]) for results in merged) == 4 - ended
    counts = [p.read_text().count("\n") for p in place.glob("rate_*/evaluations.jsonl")]
    assert len(counts) == 4 and sum(n < max(counts) for n in counts) <= ended < 4


def test_a_trial_that_is_ended_is_saved(tmp_path):
    """As Ray calls it; without Ray."""
    data = write_data(tmp_path / "data")
    (tmp_path / "calls.py").write_text(CALLS)
    hparams = HPARAMS | {"eval_every_steps": 2, "num_train_epochs": 90.0}
    done = subprocess.run(
        [sys.executable, tmp_path / "calls.py", SCRIPT, data, json.dumps(hparams)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    code, *rows = json.loads(done.stdout)
    assert code == 42
    path = data / "place" / "rate_0.001_decay_0.9_2" / "evaluations.jsonl"
    told = [json.loads(line)["score"] for line in path.read_text().splitlines()]
    assert [row["score"] for row in rows] == told[:2]
    assert not any(row["finished"] for row in rows)


def test_a_trial_is_worth_what_is_kept_of_it(tmp_path):
    """As Ray calls it. The more is learnt, the worse is a dev set of turned scores."""
    data = write_data(tmp_path / "data")
    dev = data / "finetuning_data" / "sts" / "dev.tsv"
    header, *lines = dev.read_text().splitlines()
    cells = [line.rpartition("\t") for line in lines]
    lines = [f"{left}\t{5 - float(score):.3f}" for left, _, score in cells]
    dev.write_text("\n".join([header, *lines, ""]))
    (tmp_path / "best.py").write_text(BEST)
    hparams = {"num_train_epochs": 4.0, "eval_every_steps": 24, "keep": "best"}
    done = subprocess.run(
        [
            sys.executable,
            tmp_path / "best.py",
            SCRIPT,
            data,
            json.dumps(HPARAMS | hparams),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    path = data / "p" / "rate_0.001_decay_0.9_1" / "evaluations.jsonl"
    scores = [json.loads(line)["score"] for line in path.read_text().splitlines()]
    assert scores[-1] < max(scores) - 1
    [path] = (data / "p").glob("*_results/sts_results.json")
    merged = json.loads(path.read_text())["statistics"]["sts"]["pearson"]["mean"]
    [line] = [x for x in done.stdout.splitlines() if x.lstrip().startswith("0.001")]
    assert line.split()[3:] == [f"{merged:.2f}"] * 2


NONE = """
import runpy, sys, types
from absl import flags
sweep = runpy.run_path(sys.argv[1])
flags.FLAGS(["x", "--data_dir=d", "--model_name=m"])
config = {"learning_rate": 1e-3, "decay": 0.9, "trial": 1}
ended = {"score": 1.0, "finished": False}
found = [types.SimpleNamespace(config=config, metrics=ended)]
sweep["report"](found, {(1e-3, 0.9): []})
"""


def test_what_to_do_where_all_were_ended(tmp_path):
    """Of those at a rung one in --reduction goes on: a greater one ends more."""
    done = subprocess.run(
        [sys.executable, "-c", NONE, SCRIPT], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "1.00*" in done.stdout and "a smaller --reduction" in done.stdout


@pytest.mark.parametrize(
    ("changes", "flags", "problem", "code"),
    [
        ({"eval_every_steps": None}, (), 'set "eval_every_steps"', 2),
        ({"keep_all_models": False}, (), 'leave "keep_all_models" out', 2),
        ({}, ["--layer-decays=0.8,x"], "--layer-decays: could not convert", 1),
        ({}, ["--learning-rates="], "--learning-rates: ", 1),
    ],
)
def test_mistakes(tmp_path, changes, flags, problem, code):
    """Known before Ray is started, or even there."""
    done = search(tmp_path, HPARAMS | {"eval_every_steps": 6} | changes, *flags)
    assert done.returncode == code and problem in done.stderr
    assert "Traceback" not in done.stderr


def test_a_trial_that_fails(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install -e .[ray]")
    done = search(tmp_path, HPARAMS | {"eval_every_steps": 6})
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "a trial failed" in done.stderr and "vocab" in done.stderr


def test_without_ray(tmp_path):
    code = f"import sys; sys.modules['ray'] = None; sys.argv[0] = {SCRIPT!r}; "
    code += f"import runpy; runpy.run_path({SCRIPT!r}, run_name='__main__')"
    flags = [f"--data-dir={tmp_path}", "--model-name=m"]
    done = subprocess.run(
        [sys.executable, "-c", code, *flags, '--hparams={"eval_every_steps": 1}'],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "needs the package ray" in done.stderr
