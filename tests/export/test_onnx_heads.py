# SPDX-License-Identifier: Apache-2.0
"""Heads of fine-tuned models compute the same in onnxruntime."""

import functools
import json

import numpy as np
import pytest

from electra_tf.export import finetuned_task, formats
from electra_tf.export.formats import ExportRequest
from tests.helpers.cards import run_snippets
from tests.helpers.runs import by_default
from tests.helpers.tiny_trials import SQUAD, answers, batch_of, write_data, write_trials

ONNX = ("cola", "sts", "chunk", "topics", "joint", "plain", "at_cls")
ONNX += ("no_start",)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A function: name -> (the task, the folder of its ONNX file)."""
    pytest.importorskip("onnx")
    folders = write_trials(write_data(tmp_path_factory.mktemp("data")))

    @functools.cache
    def convert(name):
        (folder, what), out = folders[name], tmp_path_factory.mktemp(name) / name
        request = ExportRequest("onnx", str(out), what=what)
        formats.export(request._replace(init_checkpoint=str(folder)))
        return finetuned_task.read_task(folder, what), out

    return convert


@pytest.mark.thorough
@pytest.mark.parametrize("name", by_default(ONNX, ["joint"]))
def test_outputs_are_those_of_the_model(converted, name):
    onnxruntime = pytest.importorskip("onnxruntime")
    task, folder = converted(name)
    facts, batch = task.facts, batch_of(task, 3)
    [path] = folder.glob("*.onnx")
    session = onnxruntime.InferenceSession(path)
    outputs = [output.name for output in session.get_outputs()]
    found = dict(zip(outputs, session.run(None, batch), strict=True))
    expected = answers(task, batch)
    assert found.keys() == expected.keys()
    real = batch["input_mask"] == 1 if name == "chunk" else ...
    for key, array in expected.items():
        assert found[key].dtype == array.dtype, key
        gap = {"atol": 5e-5, "rtol": 1e-5}
        np.testing.assert_allclose(found[key][real], array[real], **gap, err_msg=key)
    if name == "topics":
        assert (found["probabilities"].sum(1) > 1.01).any()  # each by itself
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["labels"] == list(facts.labels)
    settings = manifest["task"]["hparams"]
    if facts.kind == "qa":
        for key in ("doc_stride", "max_query_length", "max_answer_length"):
            assert settings[key] == SQUAD[key]
        assert settings["qa_na_threshold"] == task.config.qa_na_threshold


@pytest.mark.thorough
def test_snippets_of_the_cards_run(converted, tmp_path):
    run_snippets(tmp_path, [converted(n)[1] / "README.md" for n in ("cola", "joint")])
