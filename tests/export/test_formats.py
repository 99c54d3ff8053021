# SPDX-License-Identifier: Apache-2.0
"""The table of formats, and what an export costs: no model is built twice."""

import importlib

import keras
import pytest
import tensorflow as tf

from electra_tf.export import formats, onnx, saved_models, tflite
from electra_tf.interop import networks
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.tiny_pretraining import VOCAB_SIZE


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    write_run(data, tiny_source())
    return data


@pytest.fixture
def embeddings_made(monkeypatch):
    """Grows by one with every table of word embeddings that is filled."""
    made = []
    original = keras.initializers.TruncatedNormal.__call__

    def counting(self, shape, dtype=None):
        if tuple(shape)[0] == VOCAB_SIZE and tf.executing_eagerly():
            made.append(tuple(shape))
        return original(self, shape, dtype)

    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", counting)
    return made


def test_the_parts_that_any_format_knows_are_those_that_no_task_may_be_called():
    """`finetune.own_tasks` refuses them."""
    known = saved_models.WHAT, onnx.WHAT, tflite.WHAT, networks.WHAT
    assert {name for names in known for name in names} == {*networks.PARTS}


@pytest.mark.parametrize("name", formats.FORMATS)
def test_every_format_has_its_function(name):
    module = importlib.import_module(formats.FORMATS[name].module)
    assert callable(getattr(module, f"export_{name}"))


@pytest.mark.parametrize(
    "name, networks, more",
    [
        ("saved_model", 1, {"what": "encoder"}),
        ("saved_model", 2, {"what": "encoder", "precision": "mixed_bfloat16"}),
        ("tflite", 1, {"what": "detector"}),
        ("tf1", 2, {}),  # discriminator and generator, each to be compared
        ("huggingface", 2, {}),
    ],
)
def test_a_network_is_built_once(data, tmp_path, embeddings_made, name, networks, more):
    if name == "huggingface":
        pytest.importorskip("safetensors")
    output = tmp_path / "out"
    request = formats.ExportRequest(name, str(output), str(data), "tiny", **more)
    assert formats.export(request) == str(output)
    assert len(embeddings_made) == networks
