# SPDX-License-Identifier: Apache-2.0
"""The GLUE summary, on tiny tasks of GLUE's shapes."""

import json
import os
import statistics
import subprocess
import sys

import pytest

from tests.helpers.runs import ROOT
from tests.helpers.tiny_finetuning import TINY, write_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


def glue(data, model, hparams, *flags):
    return subprocess.run(
        [
            *(sys.executable, str(ROOT / "experiments" / "glue.py")),
            *(f"--data-dir={data}", f"--model-name={model}"),
            *(f"--hparams={json.dumps(hparams)}", *flags),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": ""},
        check=False,
    )


@pytest.mark.thorough
def test_medians_over_trials_and_their_mean(data):
    hparams = TINY | {"num_train_epochs": 2.0}
    done = glue(data, "m", hparams, "--trials=3", "--workers=2")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = data / "models" / "m" / "results"
    medians = []
    for task, metric in (("cola", "mcc"), ("sts", "spearman")):
        trials = json.loads((folder / f"{task}_results.json").read_text())["trials"]
        scores = [trial["scores"][task][metric] for trial in trials]
        assert len(scores) == 3
        medians.append(statistics.median(scores))
        assert f"| {task} | {metric} | {medians[-1]:.2f} | 3 |" in done.stdout
    mean = f"**{statistics.fmean(medians):.2f}**"
    assert f"| **mean of cola, sts; not the paper's** | | {mean} | |" in done.stdout
    written = (folder / "glue.md").read_text()
    assert mean in written and "Learning rate 0.003, of --hparams." in written

    # A task that is named twice is one, whose finished runs are there.
    twice = glue(data, "m", hparams, "--trials=3", "--tasks=sts,sts", "--workers=2")
    assert twice.returncode == 0, twice.stdout + twice.stderr
    assert "mean of sts;" in twice.stdout

    # Results of other settings are not taken for those of this command.
    other = glue(data, "m", hparams | {"learning_rate": 1e-4}, "--trials=3")
    assert other.returncode == 2 and "holds results of other settings" in other.stdout
    assert "not the paper's" not in other.stdout


@pytest.mark.parametrize(
    ("hparams", "flags", "text"),
    [
        ({}, [], "no_model"),
        ({"init_checkpoint": None}, ["--tasks=mnli"], "There are: cola, sts"),
        ({"num_trials": 2}, [], "num_trials is this command's to set"),
        ({"do_eval": False}, [], "do_eval is this command's to set"),
        ({}, ["--trials=0"], "trials"),
        ({"tasks": 5}, [], "tasks"),
        ({"epochs": 2, "init_checkpoint": None}, [], "epochs"),
    ],
)
def test_mistakes(data, hparams, flags, text):
    done = glue(data, "no_model", hparams, *flags)
    assert done.returncode in (1, 2) and text in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("hparams", "rate"),
    [
        ({}, 3e-4),
        ({"model_size": "base"}, 1e-4),
        (
            {"model_size": "large", "model_hparam_overrides": {"hidden_act": "relu"}},
            5e-5,
        ),
        ({"model_hparam_overrides": {"hidden_size": 256}}, 3e-4),
        ({"model_hparam_overrides": {"hidden_size": 32}}, None),
        (
            {"model_size": "base", "model_hparam_overrides": {"num_hidden_layers": 6}},
            None,
        ),
    ],
)
def test_the_learning_rate_is_the_papers(hparams, rate):
    import glue as script
    import scales

    assert scales.paper_rate(hparams) == rate
    set_here, said = script.learning_rate({}, hparams)
    assert set_here == ({"learning_rate": rate} if rate else {})
    assert (f"{rate:g}" if rate else "no such") in said
    set_here, said = script.learning_rate({"learning_rate": 2e-5}, hparams)
    assert not set_here and "2e-05, of --hparams" in said


def test_the_mean_of_all_eight_is_the_papers():
    import glue as script
    from scales import GLUE

    results = {}
    for number, (task, metric) in enumerate(GLUE.items()):
        results[task] = {metric: {"median": 80.0 + number, "trials": 10}}
    assert script.table(results)[-1] == "| **GLUE** | | **83.50** | |"

    # A correlation with a constant is null in the results.
    results["sts"]["spearman"] = {"median": None, "trials": 0}
    lines = script.table(results)
    assert "| sts | spearman | - | 0 |" in lines
    assert lines[-1] == "Without a defined score, and left out of the mean: sts."
    assert not any("GLUE" in line for line in lines)
    assert "| - |" not in script.table({"cola": results["cola"]})[-1]
    only = script.table({"sts": results["sts"]})
    assert "| **mean of nothing; not the paper's** | | **-** | |" in only
