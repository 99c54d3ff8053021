# SPDX-License-Identifier: Apache-2.0
"""examples/: the model there, the notebook, the task of the quickstart, Ray Tune."""

import collections
import json
import runpy
import subprocess
import sys

import numpy as np
import pytest

import electra_tf
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.registry import make_own_task
from tests.helpers.runs import ROOT, check_ok, run_script
from tests.helpers.tiny_finetuning import TINY, write_data

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "electra_tf_tour.ipynb"
CELLS = [
    cell
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]
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


@pytest.mark.thorough
def test_replaced_tokens_look_more_replaced_than_others():
    """An AUC of 0.5 is chance. Loading has verified the model's checksums."""
    model = electra_tf.load(EXAMPLES / "novels_model")
    # Its last phase read 128 tokens; it has 512 positions.
    assert model.config.max_seq_length == 128
    lines = (EXAMPLES / "heldout/lost_world_opening.txt").read_text().split("\n")
    texts = [line for line in lines if 40 < len(line) < 120][:150]
    tokens = [t for row in model.corrupt(texts, seed=1) for t in row]
    replaced = np.array([t.probability for t in tokens if t.is_replaced])
    others = np.array([t.probability for t in tokens if not t.is_replaced])
    assert len(replaced) > 100
    assert (replaced[:, None] > others).mean() > 0.6


def test_stored_outputs_are_complete_and_small():
    assert NOTEBOOK.stat().st_size < 300_000
    kinds = [o["output_type"] for cell in CELLS for o in cell["outputs"]]
    assert "error" not in kinds and "display_data" in kinds
    assert [cell["execution_count"] for cell in CELLS] == [*range(1, len(CELLS) + 1)]


@pytest.mark.slow
def test_cells_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    script = tmp_path / "tour.py"
    script.write_text("\n".join("".join(cell["source"]) + "\n" for cell in CELLS))
    script.write_text(script.read_text().replace("STEPS = 1300", "STEPS = 20"))
    names = runpy.run_path(str(script))
    assert names["STEPS"] == 20
    assert names["answer"]["label"].numpy()[0].decode() in {"Burnett", "Doyle"}


@pytest.mark.thorough
def test_the_author_task_is_balanced_and_its_dev_set_is_held_out(tmp_path):
    check_ok(run_script("examples/author_task.py", str(tmp_path / "data")))
    (tmp_path / "data/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    hparams = json.loads((EXAMPLES / "author_task.json").read_text())
    config = FinetuningConfig.from_hparams(str(tmp_path / "data"), "m", hparams)
    task = make_own_task("author", config, None)
    train, dev = task.examples("train"), task.examples("dev")
    for examples, count in (train, 400), (dev, 200):
        labels = collections.Counter(example.label for example in examples)
        assert labels == {"Doyle": count, "Burnett": count}
    assert len({e.text_a for e in train + dev}) == 1200


@pytest.mark.thorough
def test_score_of_a_trial_is_that_of_the_kept_model(tmp_path):
    """The dev scores are turned around, so the last evaluation is not the best."""
    data = write_data(tmp_path / "data")
    dev = data / "finetuning_data" / "sts" / "dev.tsv"
    header, *lines = dev.read_text().splitlines()
    cells = [line.rpartition("\t") for line in lines]
    lines = [f"{left}\t{5 - float(score):.3f}" for left, _, score in cells]
    dev.write_text("\n".join([header, *lines, ""]))
    hparams = {"num_train_epochs": 4.0, "eval_every_steps": 24, "keep": "best"}
    args = [EXAMPLES / "ray_sweep.py", data, json.dumps(HPARAMS | hparams)]
    command = [sys.executable, "-c", TRIAL, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    check_ok(done)
    path = data / "p" / "rate_0.001_decay_0.9_1" / "evaluations.jsonl"
    scores = [json.loads(line)["score"] for line in path.read_text().splitlines()]
    assert scores[-1] < max(scores) - 1
    [line] = [x for x in done.stdout.splitlines() if x.lstrip().startswith("0.001")]
    assert line.split()[3:] == [f"{max(scores):.2f}"] * 2
