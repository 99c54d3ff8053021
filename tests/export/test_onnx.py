# SPDX-License-Identifier: Apache-2.0
"""ONNX files compute the same in onnxruntime."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export import ExportRequest, formats, onnx
from electra_tf.export.signatures import NAMES, Check
from electra_tf.inference.finetuned import read_trial
from electra_tf.interop import networks
from tests.helpers.cards import run_snippets
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.interop_models import read_model
from tests.helpers.runs import by_default
from tests.helpers.tiny_trials import SQUAD, answers, write_data, write_trials
from tests.helpers.tiny_trials import batch_of as questions_of

pytest.importorskip("tf2onnx")
onnxruntime = pytest.importorskip("onnxruntime")
HEADS = ("cola", "sts", "chunk", "topics", "joint", "plain", "at_cls")
HEADS += ("no_start",)


def export(folder, variant="electra", hparams=None, **options):
    """Writes a run and exports it; returns the folder."""
    if not (folder / "data").exists():
        source = tiny_source(variant, **(hparams or {}))
        write_run(folder / "data", source, **(hparams or {}))
    out = folder / "out"
    formats.export(
        ExportRequest("onnx", str(out), str(folder / "data"), "tiny", **options)
    )
    return out


def batch_of(rows, length):
    rng = np.random.default_rng(rows)
    ids = rng.integers(5, 97, (rows, length)).astype(np.int32)
    mask = (np.arange(length) < rng.integers(1, length + 1, (rows, 1))).astype(np.int32)
    return dict(zip(NAMES, (ids, mask, mask * 0), strict=True))


SHAPES = {act: {"hidden_act": act} for act in ("gelu", "gelu_tanh", "relu")}
SHAPES["modern"] = {"block": "modern", "local_window": 8}


@pytest.mark.parametrize("kind", by_default(SHAPES, ["gelu", "modern"]))
def test_every_part_at_every_length(tmp_path, kind):
    overrides = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    overrides |= {"max_position_embeddings": 40} | SHAPES[kind]
    out = export(tmp_path, hparams={"model_hparam_overrides": overrides})
    parts = ("detector.onnx", "encoder.onnx", "generator.onnx")
    assert tuple(sorted(p.name for p in out.glob("*.onnx"))) == parts
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["max_difference"] < 1e-4 and manifest["format"] == "onnx"
    stored = read_model(tmp_path / "data/models/tiny", log=lambda line: None)
    found = networks.split(stored)
    for rows, length in ((1, 1), (3, 40), (5, 17)):
        batch = batch_of(rows, length)
        keys = ("input_ids", "input_mask", "segment_ids")
        named = dict(zip(keys, batch.values(), strict=True))
        real = batch["input_mask"] == 1
        positions = np.tile(np.arange(length), (rows, 1)).astype(np.int32)
        for what, name in (("detector", "discriminator"), ("generator", "generator")):
            more = {onnx.POSITIONS: positions} if what == "generator" else {}
            session = onnxruntime.InferenceSession(out / f"{what}.onnx")
            answer = session.run(None, batch | more)[0]
            ours = networks.outputs(found[name], named)
            np.testing.assert_allclose(answer[real], ours[name][real], atol=2e-5)
    wrong = {"sequence_output": np.zeros((2, 9, 16), "f")}
    check = Check("ids", batch_of(2, 9), wrong | {"pooled_output": np.zeros((2, 16))})
    with pytest.raises(UserError, match="differs by"):
        onnx.measure(out / "encoder.onnx", check)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["electric", "electric_unigram"])
def test_electric_scores(tmp_path, variant):
    message = "no preprocessor for --format onnx.\n.* encoder, detector, scorer"
    with pytest.raises(UserError, match=message):
        export(tmp_path, variant, what="preprocessor")
    found = {path.stem: path for path in export(tmp_path, variant).glob("*.onnx")}
    assert {"encoder", "detector", "scorer"} <= set(found)
    source = tiny_source(variant)
    session = onnxruntime.InferenceSession(found["scorer"])
    for rows, length in ((1, 3), (4, 40)):
        batch = batch_of(rows, length)
        real = batch["input_mask"] == 1
        ids = [tf.constant(array) for array in batch.values()]
        expected = -source.pretrainer.replaced_logits(*ids, net_only=True).numpy()
        answer = session.run(None, batch)[0]
        np.testing.assert_allclose(answer[real], expected[real], atol=5e-5)
        assert (answer[~real] == 0).all()


@pytest.mark.thorough
def test_snippets_of_the_cards_run_without_tensorflow(tmp_path):
    cards = []
    for what in ("detector", "generator"):
        out = export(tmp_path / what, what=what)
        cards.append(out.rename(tmp_path / what / what) / "README.md")
    before = 'import sys; sys.modules["tensorflow"] = None\n'
    printed = run_snippets(tmp_path, cards, before)
    assert "'logits': array([[" in printed["detector"]
    assert "'mlm_logits': array([[[" in printed["generator"]


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A function: name -> (the task, the folder of its ONNX file)."""
    folders = write_trials(write_data(tmp_path_factory.mktemp("data")))

    @functools.cache
    def convert(name):
        (folder, what), out = folders[name], tmp_path_factory.mktemp(name) / name
        request = ExportRequest("onnx", str(out), what=what)
        formats.export(request._replace(init_checkpoint=str(folder)))
        return read_trial(folder, what), out

    return convert


@pytest.mark.thorough
@pytest.mark.parametrize("name", by_default(HEADS, ["joint"]))
def test_outputs_are_those_of_the_model(converted, name):
    task, folder = converted(name)
    facts, batch = task.reader, questions_of(task, 3)
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
    if name == "joint":  # rows shorter than its beam of 5
        short = {key: array[:, :3] for key, array in batch.items()}
        [starts] = session.run(["start_logits"], short)
        np.testing.assert_allclose(starts, answers(task, short)["start_logits"], **gap)
    if name == "topics":
        assert (found["probabilities"].sum(1) > 1.01).any()  # each by itself
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["labels"] == list(facts.labels)
    settings = manifest["task"]["hparams"]
    if facts.head.kind == "qa":
        for key in ("doc_stride", "max_query_length", "max_answer_length"):
            assert settings[key] == SQUAD[key]
        assert settings["qa_na_threshold"] == task.config.qa_na_threshold


@pytest.mark.thorough
def test_snippets_of_the_cards_run(converted, tmp_path):
    run_snippets(tmp_path, [converted(n)[1] / "README.md" for n in ("cola", "joint")])
