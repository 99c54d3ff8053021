# SPDX-License-Identifier: Apache-2.0
"""examples/: the model there, the notebook, the task of the quickstart."""

import collections
import json
import runpy

import numpy as np
import pytest

import electra_tf
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.registry import TYPES
from tests.helpers.runs import ROOT, check_ok, run_script

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "electra_tf_tour.ipynb"
CELLS = [
    cell
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    if cell["cell_type"] == "code"
]


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
    task = TYPES["classification"].task("author", config, None)
    train, dev = task.examples("train"), task.examples("dev")
    for examples, count in (train, 400), (dev, 200):
        labels = collections.Counter(example.label for example in examples)
        assert labels == {"Doyle": count, "Burnett": count}
    assert len({e.text_a for e in train + dev}) == 1200
