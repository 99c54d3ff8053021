# SPDX-License-Identifier: Apache-2.0
"""A pre-trained model against random weights, on tiny tasks of GLUE's shapes."""

import json
import math
import os
import statistics
import subprocess
import sys

import pytest

from tests.helpers import forked_runs
from tests.helpers.runs import ROOT, tiny, write_tiny_data
from tests.helpers.tiny_finetuning import TINY, write_data

SHAPE = ("embedding_size", "model_hparam_overrides", "init_checkpoint")
HPARAMS = {k: v for k, v in TINY.items() if k not in SHAPE} | {"num_train_epochs": 1.0}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Task data, and the pre-trained model "m"."""
    folder = write_data(tmp_path_factory.mktemp("data"))
    vocabulary = (folder / "vocab.txt").read_text()
    write_tiny_data(folder)
    (folder / "vocab.txt").write_text(vocabulary)
    drawn = TINY["model_hparam_overrides"] | {"initializer_range": 0.125}
    hparams = tiny(overrides=drawn, num_train_steps=3)
    run = forked_runs.pretrain(folder, "m", hparams).wait()
    assert run.returncode == 0, run.stderr
    return folder


def compare(data, model, hparams, *flags):
    return subprocess.run(
        [
            *(sys.executable, str(ROOT / "experiments" / "against_random.py")),
            *(f"--data-dir={data}", f"--model-name={model}"),
            *(f"--hparams={json.dumps(hparams)}", *flags),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": ""},
        check=False,
    )


def scores(path, metric):
    trials = json.loads(path.read_text())["trials"]
    assert [trial["seed"] for trial in trials] == [42, 43]
    return [trial["scores"]["sts"][metric] for trial in trials]


@pytest.mark.thorough
def test_means_with_their_errors(data):
    flags = ("--tasks=sts", "--trials=2", "--workers=2")
    done = compare(data, "m", HPARAMS, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    run = data / "models" / "m"
    sides = run / "results", run / "random_weights" / "sts_results"
    for metric in ("pearson", "spearman"):
        found = [scores(side / "sts_results.json", metric) for side in sides]
        means = list(map(statistics.fmean, found))
        errors = [statistics.stdev(values) / math.sqrt(2) for values in found]
        difference = means[0] - means[1]
        row = (
            f"| sts | {metric} | {means[0]:.2f} ± {errors[0]:.2f} "
            f"| {means[1]:.2f} ± {errors[1]:.2f} | {difference:+.2f} "
            f"| {difference / math.hypot(*errors):+.1f} |"
        )
        assert row in done.stdout
        assert row in (run / "results" / "against_random.md").read_text()

    # The random weights are of the model's shape, drawn as its own were.
    settings = json.loads(
        (run / "random_weights" / "sts_1" / "config.json").read_text()
    )
    assert settings["init_checkpoint"] is None and settings["embedding_size"] == 16
    overrides = settings["model_hparam_overrides"]
    assert overrides["initializer_range"] == 0.125 and overrides["hidden_size"] == 32

    # Nothing is made again.
    before = sorted(path.stat().st_mtime_ns for path in run.rglob("*.weights*"))
    again = compare(data, "m", HPARAMS, *flags)
    assert again.returncode == 0 and row in again.stdout
    assert before == sorted(path.stat().st_mtime_ns for path in run.rglob("*.weights*"))


@pytest.mark.parametrize(
    ("model", "hparams", "flags", "text"),
    [
        ("no_model", {}, [], "no_model"),
        ("m", {"init_checkpoint": None}, [], "init_checkpoint is null"),
        ("m", {}, ["--tasks=mnli"], "There are: chunk, cola, sts"),
        ("m", {"model_dir": "x"}, [], "model_dir is this command's to set"),
        ("m", {"embedding_size": 8}, [], "embedding_size is 16 there, 8 here"),
    ],
)
def test_mistakes(data, model, hparams, flags, text):
    done = compare(data, model, hparams, *flags)
    assert done.returncode == 2 and text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_mean_that_is_undefined():
    """In the results of a task whose scores are no numbers it is null."""
    import against_random as script

    known = {"mean": 12.0, "std": 2.0, "trials": 4}
    unknown = {"mean": None, "std": None, "trials": 0}
    sides = script.PRETRAINED, script.RANDOM
    for first, second, cells in (
        (known, unknown, "12.00 ± 1.00 | - | - | "),
        (unknown, known, "- | 12.00 ± 1.00 | - | "),
        (known, known, "12.00 ± 1.00 | 12.00 ± 1.00 | +0.00 | +0.0"),
    ):
        pairs = zip(sides, (first, second), strict=True)
        found = {("sts", side): {"pearson": value} for side, value in pairs}
        assert script.table(found)[-1] == f"| sts | pearson | {cells} |"
