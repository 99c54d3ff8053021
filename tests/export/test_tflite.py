# SPDX-License-Identifier: Apache-2.0
"""TensorFlow Lite files: they compute what the model does, about."""

import json
import warnings

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export import tflite
from electra_tf.export.formats import ExportRequest
from tests.helpers.exporting import LENGTH, NAMES, tiny_source, write_run
from tests.helpers.runs import run_script


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    return write_run(data, tiny_source())


def request(run, folder, **changes):
    data = str(run.parent.parent)
    return ExportRequest("tflite", str(folder), data, run.name, **changes)


@pytest.mark.parametrize(
    "what, precision, output, most",
    [
        ("detector", "float16", "logits", 0.02),
        ("encoder", "int8", "sequence_output", 0.5),
    ],
)
def test_files_compute_what_the_model_does(
    run, tmp_path, capsys, what, precision, output, most
):
    folder = tmp_path / "out"
    tflite.export_tflite(request(run, folder, what=what, precision=precision))
    printed = capsys.readouterr().out
    assert f"TensorFlow Lite, {precision}: {output}, max diff" in printed
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
    gap = np.abs(found - expected)[:, :20].max()
    assert gap < 2 * most


def test_beyond_the_tolerance_nothing_is_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tflite, "convert", lambda *args: b"a model")
    wrong = tflite.verification.Result("logits", "x", 0.2, 0.05)
    monkeypatch.setattr(
        tflite,
        "measure",
        lambda *args: tflite.verification.require([wrong]),
    )
    with pytest.raises(UserError, match="differs by 0.2"):
        tflite.export_tflite(request(run, tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_mistakes(run, tmp_path):
    with pytest.raises(UserError, match="encoder, detector"):
        tflite.export_tflite(request(run, tmp_path / "out", what="scorer"))
    flags = ["--data-dir", str(run.parent.parent), "--model-name", "tiny"]
    flags += ["--output-dir", str(tmp_path / "out"), "--format", "tf1"]
    done = run_script("export_model.py", *flags, "--precision", "int8")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "--precision int8 does not go with --format tf1" in done.stderr
