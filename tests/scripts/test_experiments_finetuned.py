# SPDX-License-Identifier: Apache-2.0
"""Experiments that fine-tune: the GLUE summary, a model against random weights."""

import json
import math
import statistics

import pytest

from tests.helpers.runs import pretrain, run_script, tiny, write_tiny_data
from tests.helpers.tiny_finetuning import TINY, write_data

pytestmark = pytest.mark.thorough
SHAPE = ("embedding_size", "model_hparam_overrides", "init_checkpoint")
UNTRAINED = TINY | {"num_train_epochs": 1.0}
PRETRAINED = {k: v for k, v in UNTRAINED.items() if k not in SHAPE}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Task data, and the pre-trained model "m"."""
    folder = write_tiny_data(tmp_path_factory.mktemp("data"))
    write_data(folder)
    drawn = TINY["model_hparam_overrides"] | {"initializer_range": 0.125}
    done = pretrain(folder, "m", tiny(overrides=drawn, num_train_steps=3))
    assert done.returncode == 0, done.stderr
    return folder


def run(command, data, model, hparams, *flags):
    names = (f"--data-dir={data}", f"--model-name={model}")
    hparams = f"--hparams={json.dumps(hparams)}"
    return run_script("experiments/finetuned.py", command, *names, hparams, *flags)


def scores(path, task, metric):
    trials = json.loads(path.read_text())["trials"]
    return [trial["scores"][task][metric] for trial in trials]


def test_glue_has_medians_over_trials_and_their_mean(data):
    done = run("glue", data, "new", UNTRAINED, "--trials=3", "--workers=2")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = data / "models" / "new" / "results"
    medians = []
    for task, metric in (("cola", "mcc"), ("sts", "spearman")):
        found = scores(folder / f"{task}_results.json", task, metric)
        assert len(found) == 3
        medians.append(statistics.median(found))
        assert f"| {task} | {metric} | {medians[-1]:.2f} | 3 |" in done.stdout
    mean = f"**{statistics.fmean(medians):.2f}**"
    assert f"| **mean of cola, sts; not the paper's** | | {mean} | |" in done.stdout
    written = (folder / "glue.md").read_text()
    assert mean in written and "Learning rate 0.003." in written
    # Results of other settings are not taken for those of this command.
    other = run("glue", data, "new", UNTRAINED | {"learning_rate": 1e-4}, "--trials=3")
    assert other.returncode == 2 and "holds results of other settings" in other.stdout


def test_against_random_has_means_with_their_errors(data):
    flags = ("--tasks=sts", "--trials=2", "--workers=2")
    done = run("against_random", data, "m", PRETRAINED, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    model = data / "models" / "m"
    sides = model / "results", model / "random_weights" / "sts_results"
    for metric in ("pearson", "spearman"):
        found = [scores(side / "sts_results.json", "sts", metric) for side in sides]
        means = list(map(statistics.fmean, found))
        errors = [statistics.stdev(values) / math.sqrt(2) for values in found]
        difference = means[0] - means[1]
        row = (
            f"| sts | {metric} | {means[0]:.2f} ± {errors[0]:.2f} "
            f"| {means[1]:.2f} ± {errors[1]:.2f} | {difference:+.2f} "
            f"| {difference / math.hypot(*errors):+.1f} |"
        )
        assert row in (model / "results" / "against_random.md").read_text()
    # The random weights are of the model's shape, drawn as its own were.
    path = model / "random_weights" / "sts_1" / "config.json"
    settings = json.loads(path.read_text())
    assert settings["init_checkpoint"] is None and settings["embedding_size"] == 16
    overrides = settings["model_hparam_overrides"]
    assert overrides["initializer_range"] == 0.125 and overrides["hidden_size"] == 32


RELU = {"model_size": "large", "model_hparam_overrides": {"hidden_act": "relu"}}
SHALLOW = {"model_size": "base", "model_hparam_overrides": {"num_hidden_layers": 6}}


@pytest.mark.parametrize(
    ("hparams", "rate"),
    [
        ({}, 3e-4),
        ({"model_size": "base"}, 1e-4),
        (RELU, 5e-5),
        ({"model_hparam_overrides": {"hidden_size": 32}}, None),
        (SHALLOW, None),
    ],
)
def test_the_learning_rate_is_the_papers(hparams, rate):
    import scales

    assert scales.paper_rate(hparams) == rate


def test_undefined_scores_are_left_out_of_means():
    """A correlation with a constant is null in the results."""
    import finetuned
    import scales

    sides = finetuned.PRETRAINED, finetuned.RANDOM
    results = {
        (task, sides[0]): {metric: [79.0 + number, None, 81.0 + number]}
        for number, (task, metric) in enumerate(scales.GLUE.items())
    }
    assert finetuned.glue_table(results)[-1] == "| **GLUE** | | **83.50** | |"
    results["sts", sides[0]]["spearman"] = [None]
    lines = finetuned.glue_table(results)
    assert "| sts | spearman | - | 0 |" in lines
    assert not any("GLUE" in line for line in lines)
    known, unknown = [11.0, None, 13.0], [None, None]
    for first, second, cells in (
        (known, unknown, "12.00 ± 1.00 | - | - | "),
        (unknown, known, "- | 12.00 ± 1.00 | - | "),
    ):
        pairs = zip(sides, (first, second), strict=True)
        found = {("sts", side): {"pearson": value} for side, value in pairs}
        row = f"| sts | pearson | {cells} |"
        assert finetuned.random_table(found)[-1] == row
