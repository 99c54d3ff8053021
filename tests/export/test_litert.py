# SPDX-License-Identifier: Apache-2.0
"""LiteRT files compute nearly the same as the model."""

import json
import warnings

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export import formats, litert
from electra_tf.export.formats import ExportRequest
from tests.helpers.exporting import LENGTH, NAMES, tiny_source, write_run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    write_run(data, tiny_source())
    return data


@pytest.mark.parametrize(
    "what, precision, output, most",
    [
        ("detector", "float16", "logits", 0.02),
        pytest.param(
            *("encoder", "int8", "sequence_output", 0.5), marks=pytest.mark.thorough
        ),
    ],
)
def test_output_is_nearly_the_models(data, tmp_path, what, precision, output, most):
    folder = tmp_path / "out"
    request = ExportRequest("tflite", str(folder), str(data), "tiny", what=what)
    formats.export(request._replace(precision=precision))
    names = sorted(p.name for p in folder.iterdir())
    assert names == [f"{what}.tflite", "manifest.json", "vocab.txt", "vocab.txt.json"]
    manifest = json.loads((folder / "manifest.json").read_text())
    [check] = manifest["verification"]
    assert 1e-7 < check["difference"] < most
    assert manifest["seq_length"] == LENGTH and manifest["precision"] == precision

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lite = tf.lite.Interpreter(str(folder / f"{what}.tflite"))
    ids = np.random.default_rng(1).integers(5, 90, [1, LENGTH]).astype(np.int32)
    mask = (np.arange(LENGTH) < 20).astype(np.int32)[None]
    inputs = dict(zip(NAMES, (ids, mask, 0 * ids), strict=True))
    found = lite.get_signature_runner()(**inputs)[output]
    model = tiny_source().pretrainer
    expected = model.electra(*inputs.values()).sequence_output
    if what == "detector":
        expected = model.discriminator_predictions(expected)
    assert np.abs(found - expected)[:, :20].max() < 2 * most


def test_file_that_differs_is_not_written(data, tmp_path, monkeypatch):
    monkeypatch.setattr(litert, "convert", lambda *args: b"a model")
    wrong = litert.verification.Result("logits", "x", 0.2, 0.05)
    require = litert.verification.require
    monkeypatch.setattr(litert, "measure", lambda *args: require([wrong]))
    request = ExportRequest("litert", str(tmp_path / "out"), str(data), "tiny")
    with pytest.raises(UserError, match="differs by 0.2"):
        formats.export(request)
    wrong = wrong._replace(difference=float("inf"), tolerance=None)  # int8 gave NaN
    with pytest.raises(UserError, match="differs by inf"):
        formats.export(request)
    with pytest.raises(UserError, match="encoder, detector"):
        formats.export(request._replace(what="scorer"))
    with pytest.raises(UserError, match="int8 does not go with --format tf1"):
        formats.export(request._replace(format="tf1", precision="int8"))
    assert list(tmp_path.iterdir()) == []
