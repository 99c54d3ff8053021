# SPDX-License-Identifier: Apache-2.0
"""Heads of fine-tuned models answer in onnxruntime as they do here."""

import json
from pathlib import Path

import numpy as np
import pytest

from electra_tf.export import finetuned, formats
from electra_tf.export.formats import ExportRequest
from tests.helpers.cards import run_snippets
from tests.helpers.tiny_trials import (
    SQUAD,
    answers,
    batch_of,
    write_data,
    write_trials,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write_trials(write_data(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="module")
def tasks(folders):
    """Name -> the model that was read from there."""
    return {name: finetuned.read_task(*place) for name, place in folders.items()}


ONNX = ("cola", "sts", "chunk", "topics", "joint", "plain", "at_cls")
ONNX += ("no_null", "no_start")


@pytest.fixture(scope="module")
def sessions(folders, tmp_path_factory):
    """Name -> a session with the file that export_model.py writes."""
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    parent, found = tmp_path_factory.mktemp("onnx"), {}
    for name in ONNX:
        folder, what = folders[name]
        request = ExportRequest(
            "onnx", str(parent / name), init_checkpoint=str(folder), what=what
        )
        formats.export(request)
        found[name] = onnxruntime.InferenceSession(parent / name / f"{what}.onnx")
    return found


@pytest.mark.parametrize("name", ONNX)
def test_onnxruntime_answers_as_the_model(sessions, tasks, name):
    batch = batch_of(tasks[name], 3)
    outputs = [output.name for output in sessions[name].get_outputs()]
    found = dict(zip(outputs, sessions[name].run(None, batch), strict=True))
    expected = answers(tasks[name], batch)
    assert found.keys() == expected.keys()
    real = batch["input_mask"] == 1 if name == "chunk" else ...
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        gap = {"atol": 5e-5, "rtol": 1e-5}
        np.testing.assert_allclose(found[key][real], array[real], **gap, err_msg=key)
    if name == "topics":
        assert (found["probabilities"].sum(1) > 1.01).any()  # each by itself


@pytest.mark.parametrize("name", ONNX)
def test_the_manifest_says_what_the_outputs_are(sessions, tasks, name):
    folder, facts = Path(sessions[name]._model_path).parent, tasks[name].facts
    manifest = json.loads((folder / "manifest.json").read_text())
    card = (folder / "README.md").read_text()
    assert manifest["labels"] == list(facts.labels)
    assert ("`labels`" in card) == bool(facts.labels)
    settings = manifest["task"]["hparams"]
    if facts.kind == "qa":
        for key in ("doc_stride", "max_query_length", "max_answer_length"):
            assert settings[key] == SQUAD[key]
        assert settings["qa_na_threshold"] == tasks[name].config.qa_na_threshold
        assert "`task`" in card


def test_the_snippets_of_onnx_cards_run(sessions, tmp_path):
    cards = [
        Path(sessions[name]._model_path).parent / "README.md"
        for name in ("cola", "joint")
    ]
    run_snippets(tmp_path, cards)
