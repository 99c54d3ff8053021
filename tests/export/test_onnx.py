# SPDX-License-Identifier: Apache-2.0
"""ONNX files compute in onnxruntime what the model does."""

import json

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export import formats, onnx, onnx_heads
from electra_tf.export.exported import Check
from electra_tf.export.formats import ExportRequest
from electra_tf.export.inputs import NAMES
from electra_tf.interop import networks, sources
from tests.helpers.cards import run_snippets
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.runs import by_default

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def run_of(folder, variant="electra", **hparams):
    write_run(folder, tiny_source(variant, **hparams), **hparams)
    return {"data_dir": str(folder), "model_name": "tiny"}


def export(model, output, **options):
    request = ExportRequest("onnx", str(output), **model, **options)
    return formats.export(request)


def batch_of(rows, length):
    rng = np.random.default_rng(rows)
    ids = rng.integers(5, 97, (rows, length)).astype(np.int32)
    mask = (np.arange(length) < rng.integers(1, length + 1, (rows, 1))).astype(np.int32)
    return dict(zip(NAMES, (ids, mask, mask * 0), strict=True))


ELECTRIC = ("electric", "electric_untied", "electric_unigram")


@pytest.mark.parametrize("act", by_default(["gelu", "gelu_tanh", "relu"], ["gelu"]))
def test_every_part_at_every_length(tmp_path, act):
    overrides = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    overrides |= {"max_position_embeddings": 40, "hidden_act": act}
    model = run_of(tmp_path / "data", model_hparam_overrides=overrides)
    out = tmp_path / "out"
    export(model, out)
    parts = ("detector.onnx", "encoder.onnx", "generator.onnx")
    assert tuple(sorted(p.name for p in out.glob("*.onnx"))) == parts
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["max_difference"] < 1e-4 and manifest["format"] == "onnx"
    stored = sources.read(tmp_path / "data/models/tiny", log=lambda line: None)
    found = networks.split(stored)
    for rows, length in ((1, 1), (3, 40), (5, 17)):
        batch = batch_of(rows, length)
        keys = ("input_ids", "input_mask", "segment_ids")
        named = dict(zip(keys, batch.values(), strict=True))
        real = batch["input_mask"] == 1
        for what, name in (("detector", "discriminator"), ("generator", "generator")):
            inputs = dict(batch)
            if what == "generator":
                inputs[onnx_heads.POSITIONS] = np.tile(
                    np.arange(length), (rows, 1)
                ).astype(np.int32)
            session = onnxruntime.InferenceSession(out / f"{what}.onnx")
            answer = session.run(None, inputs)[0]
            [ours] = networks.outputs([found[name]], named)
            np.testing.assert_allclose(answer[real], ours[name][real], atol=2e-5)


def test_int8_is_smaller_and_measured(tmp_path):
    model = run_of(tmp_path / "data")
    for precision in ("float32", "int8"):
        export(model, tmp_path / precision, what="encoder", precision=precision)
    sizes = [
        (tmp_path / p / "encoder.onnx").stat().st_size for p in ("int8", "float32")
    ]
    assert sizes[0] < sizes[1]
    checks = json.loads((tmp_path / "int8" / "manifest.json").read_text())
    assert 0 < checks["max_difference_measured"] < 0.5
    assert "max_difference" not in checks  # Nothing was verified.


def test_another_computation_is_refused(tmp_path):
    export(run_of(tmp_path / "data"), tmp_path / "out", what="encoder")
    ids = batch_of(2, 9)
    wrong = {
        "sequence_output": np.zeros((2, 9, 16), "f"),
        "pooled_output": np.zeros((2, 16), "f"),
    }
    with pytest.raises(UserError, match="differs by"):
        check = Check("ids", ids, wrong)
        onnx.measure(tmp_path / "out" / "encoder.onnx", check, "float32")


@pytest.mark.parametrize("variant", by_default(ELECTRIC, ["electric"]))
def test_electric_detects_and_scores(tmp_path, variant):
    model = run_of(tmp_path / "data", variant)
    with pytest.raises(UserError, match="no generator .* it has encoder, detector, sc"):
        export(model, tmp_path / "out", what="generator")
    export(model, tmp_path / "out")
    found = {path.stem: path for path in (tmp_path / "out").glob("*.onnx")}
    assert set(found) == {"encoder", "detector", "scorer"}
    source = tiny_source(variant)
    for rows, length in ((1, 3), (4, 40)):
        batch = batch_of(rows, length)
        real = batch["input_mask"] == 1
        ids = [tf.constant(array) for array in batch.values()]
        said = {
            "detector": source.pretrainer.replaced_logits(*ids),
            "scorer": -source.pretrainer.replaced_logits(*ids, net_only=True),
        }
        for what, expected in said.items():
            session = onnxruntime.InferenceSession(found[what])
            answer = session.run(None, batch)[0]
            np.testing.assert_allclose(answer[real], expected.numpy()[real], atol=5e-5)
        assert (answer[~real] == 0).all()


def test_the_snippets_of_the_cards_run_without_tensorflow(tmp_path):
    for what in ("detector", "generator"):
        model = run_of(tmp_path / f"{what}_data")
        export(model, tmp_path / what, what=what)
    cards = [tmp_path / what / "README.md" for what in ("detector", "generator")]
    before = 'import sys; sys.modules["tensorflow"] = None\n'
    said = run_snippets(tmp_path, cards, before)
    assert "'logits': array([[" in said["detector"]
    assert "'mlm_logits': array([[[" in said["generator"]
