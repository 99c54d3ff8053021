# SPDX-License-Identifier: Apache-2.0
"""The model in examples/ is whole, and does what its README says."""

import hashlib
import json

import numpy as np
import pytest

import electra_tf
from tests.helpers.runs import ROOT, run_script

MODEL = ROOT / "examples" / "novels_model"
HELD_OUT = "The old man sat by the fire and talked of his youth."
NETWORKS = ("discriminator", "generator")


@pytest.mark.parametrize("network", NETWORKS)
def test_files_are_those_of_the_manifest(network):
    folder = MODEL / network
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, facts in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == facts["sha256"], name
    digest = manifest["files"]["model.safetensors"]["sha256"]
    page = (ROOT / "docs/measurements/novels_model.md").read_text()
    assert f"`{network}/model.safetensors`" in page and digest[:16] in page


def test_long_texts_are_read_in_windows_of_what_was_trained():
    """Its last phase read 128 tokens; it has 512 positions."""
    assert electra_tf.load(MODEL).config.max_seq_length == 128


def test_it_is_loaded_and_has_learned():
    """Replaced tokens look more replaced than others: an AUC of 0.5 is chance."""
    lines = (ROOT / "examples/heldout/lost_world_opening.txt").read_text().split("\n")
    texts = [line for line in lines if 40 < len(line) < 120][:150]
    tokens = [t for row in electra_tf.load(MODEL).corrupt(texts, seed=1) for t in row]
    replaced = np.array([t.probability for t in tokens if t.is_replaced])
    others = np.array([t.probability for t in tokens if not t.is_replaced])
    assert len(replaced) > 100
    auc = (replaced[:, None] > others).mean()
    assert auc > 0.6


def test_the_command_of_its_readme():
    flags = ("--model", str(MODEL), "--corrupt", "--format", "jsonl")
    run = run_script("run_inference.py", "detect", *flags, text=HELD_OUT)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["text"] == HELD_OUT
