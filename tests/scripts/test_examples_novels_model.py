# SPDX-License-Identifier: Apache-2.0
"""The model in examples/ is whole, and has learned."""

import hashlib
import json

import numpy as np
import pytest

import electra_tf
from tests.helpers.runs import ROOT

pytestmark = pytest.mark.thorough
MODEL = ROOT / "examples" / "novels_model"


@pytest.mark.parametrize("network", ["discriminator", "generator"])
def test_checksums_match_manifest(network):
    folder = MODEL / network
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, facts in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == facts["sha256"], name


def test_replaced_tokens_look_more_replaced_than_others():
    """An AUC of 0.5 is chance."""
    model = electra_tf.load(MODEL)
    # Its last phase read 128 tokens; it has 512 positions.
    assert model.config.max_seq_length == 128
    lines = (ROOT / "examples/heldout/lost_world_opening.txt").read_text().split("\n")
    texts = [line for line in lines if 40 < len(line) < 120][:150]
    tokens = [t for row in model.corrupt(texts, seed=1) for t in row]
    replaced = np.array([t.probability for t in tokens if t.is_replaced])
    others = np.array([t.probability for t in tokens if not t.is_replaced])
    assert len(replaced) > 100
    assert (replaced[:, None] > others).mean() > 0.6
