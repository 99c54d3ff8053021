# SPDX-License-Identifier: Apache-2.0
"""Exported SavedModels, used in a process that has tensorflow and tensorflow_text only.

What they must answer is computed here from the Keras model and the Python tokenizer.
"""

import contextlib
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export import saved_model
from electra_tf.export.signatures import Check
from electra_tf.inference.pretrained_model import PretrainedModel
from electra_tf.storage import manifest
from electra_tf.text import tokenization
from electra_tf.text.tokenization import Tokenizer
from tests.helpers.exporting import (
    NAMES,
    Failed,
    fresh_process,
    shared_export,
    shared_source,
    tiny_source,
    write_part,
    write_run,
)
from tests.helpers.interop_models import read_model
from tests.helpers.runs import GOLDEN, refused
from tests.text.test_tokenization import random_texts, spelling_vocabulary

TEXTS = ["The doctor opened the giraffe and read it.", "", "a good film!", "中é"]


@pytest.fixture(scope="module")
def source():
    return shared_source()


@pytest.fixture(scope="module")
def exported():
    """What -> directory of the SavedModel."""
    kinds = ("encoder", "preprocessor")
    return {kind: shared_export("electra", kind) for kind in kinds}


def packed(source, texts, length=12):
    ids = [source.tokenizer.encode(text)[: length - 2] for text in texts]
    found = tokenization.pack(source.vocab, ids, length)
    return dict(zip(NAMES, found, strict=True))


TOKENIZATION = str(GOLDEN / "tokenization")
FIRST = ["the good book", "a film", "", "read " * 40, "read " * 40]
SECOND = ["it is bad", "", "the", "good " * 9, ""]


@pytest.fixture(scope="module")
def strings():
    """The golden ones and 10,000 random ones, and a vocabulary that spells them."""
    with open(os.path.join(TOKENIZATION, "tokenization.json"), encoding="utf-8") as f:
        texts = [item["text"] for item in json.load(f)["items"]]
    texts += random_texts(10_000, seed=11)
    texts = [t.encode("utf-8", "ignore").decode() for t in texts]
    return texts, spelling_vocabulary(texts)


@pytest.fixture(scope="module")
def used(source, exported, strings, tmp_path_factory):
    """Job -> its answer, from one process without electra_tf."""
    folder = tmp_path_factory.mktemp("used")
    texts, vocab = strings
    speller = tiny_source(vocab=vocab)
    speller = write_part(speller, "preprocessor", folder)
    models = {k: exported[k] for k in ("preprocessor", "encoder")}
    inputs = {k: v.tolist() for k, v in packed(source, TEXTS).items()}
    segments = {"first": FIRST, "second": SECOND, "lengths": [2, 3, 4, 7, 12, 32]}
    jobs = {
        "fine_tune": {"model": models["encoder"], "inputs": inputs},
        "tokenize": {"model": speller, "texts": texts},
        "pack": {"model": models["preprocessor"], **segments},
    }
    answers = fresh_process(folder, *jobs.items())
    for answer in answers:
        assert not isinstance(answer, Failed), answer.traceback
    return dict(zip(jobs, answers, strict=True))


class TestEncoder:
    def test_outputs_are_the_models(self, source, used):
        found = used["fine_tune"]
        inputs = packed(source, TEXTS)
        expected = source.pretrainer.electra(*inputs.values())
        sequence = expected.sequence_output.numpy()
        outputs = found["outputs"]
        assert np.allclose(outputs["sequence_output"], sequence, atol=1e-5)
        assert np.allclose(outputs["pooled_output"], sequence[:, 0], atol=1e-5)
        assert outputs["default"] == outputs["pooled_output"]
        assert found["layers"] == [[4, 12, 16]] * 2 and found["last_layer_is_sequence"]

    def test_every_variable_learns_and_dropout_is_on_in_training(self, source, used):
        found = used["fine_tune"]
        assert found["deterministic"] and found["dropout"] > 0.1
        assert found["variables"] == len(source.pretrainer.electra.variables)
        assert found["without_gradient"] == 0 and found["regularization_losses"] == 0
        assert min(found["losses"][-3:]) < found["losses"][0]

    def test_weights_are_stored_once(self, source, exported):
        reader = tf.train.load_checkpoint(
            str(exported["encoder"] / "variables/variables")
        )
        shapes = reader.get_variable_to_shape_map()
        stored = sum(int(np.prod(s)) for n, s in shapes.items() if "variables" in n)
        variables = source.pretrainer.electra.variables
        assert stored == sum(int(np.prod(v.shape)) for v in variables)


class TestPreprocessor:
    def test_ids_are_those_of_the_python_tokenizer(self, used, strings):
        texts, vocab = strings
        tokenizer = Tokenizer(vocab)
        for text, ids in zip(texts, used["tokenize"], strict=True):
            assert ids == tokenizer.encode(text), ascii(text)

    def test_packing(self, source, used):
        found = used["pack"]
        tokenizer, vocab = source.tokenizer, source.vocab
        special = found["special"]
        assert special["mask_id"] == vocab.mask_id and special["padding_id"] == 0
        assert special["vocab_size"] == len(vocab)
        for length in (2, 3, 7, 32):
            expected = packed(source, FIRST, length)
            expected = {k: v.tolist() for k, v in expected.items()}
            assert found[f"one {length}"]["ok"] == expected
        for length in (3, 4, 7, 12, 32):
            inputs = found[f"two {length}"]["ok"]
            for row, texts in enumerate(zip(FIRST, SECOND, strict=True)):
                a, b = map(tokenizer.encode, texts)
                room = length - (3 if b else 2)
                while len(a) + len(b) > room:
                    (a if len(a) > len(b) else b).pop()
                ids = [vocab.cls_id, *a, vocab.sep_id]
                ids += [*b, vocab.sep_id] if b else []  # as fine-tuning has it
                types = [0] * (len(a) + 2) + [1] * (len(ids) - len(a) - 2)
                padding = [0] * (length - len(ids))
                assert inputs["input_word_ids"][row] == ids + padding
                assert inputs["input_mask"][row] == [1] * len(ids) + padding
                assert inputs["input_type_ids"][row] == types + padding
        assert found["default"] == found["two 32"]["ok"]
        assert found["two 2"]["error"] == "InvalidArgumentError"
        assert "seq_length must be at least 3" in found["two 2"]["message"]


class TestWriting:
    def test_parts_of_a_version_appear_together(self, source, tmp_path, monkeypatch):
        """A server must not use an encoder and a preprocessor of two models."""
        (tmp_path / "preprocessor" / "3").mkdir(parents=True)
        kinds = ["encoder", "preprocessor"]
        fill, filled = saved_model.fill_folder, []

        def counted(folder, *rest):
            version = folder.name.split(".")[1]  # of its final name
            assert not list(tmp_path.glob(f"*/{version}"))
            filled.append(folder)
            return fill(folder, *rest)

        monkeypatch.setattr(saved_model, "fill_folder", counted)
        servables = {what: saved_model.WHAT[what](source) for what in kinds}
        found = saved_model.write_saved_models(servables, source, tmp_path)
        assert found == [tmp_path / kind / "4" for kind in kinds]
        for kind, folder in zip(kinds, found, strict=True):
            assert manifest.verify_folder(folder)["what"] == kind

    def test_manifest(self, source):
        detector = shared_export("electra", "detector")
        content = manifest.verify_folder(detector)
        assert content["what"] == "detector" and content["step"] == 7
        assert 0 <= content["max_difference"] < 1e-5
        gaps = {r["quantity"]: r["difference"] for r in content["verification"]}
        assert gaps["starts"] == 0
        assert content["vocab_sha256"] == source.vocab.sha256
        assert content["do_lower_case"] is True
        vocab = detector / "assets" / "vocab.txt"
        assert vocab.read_text().splitlines() == list(source.vocab.tokens)

    def test_saved_model_that_differs_is_not_published(self, source, tmp_path):
        """The SavedModel of one model, checked with the outputs of another."""
        other = saved_model.WHAT["encoder"](tiny_source(layers=2, seed=1))
        wrong = saved_model.WHAT["encoder"](source)._replace(checks=other.checks)
        with pytest.raises(UserError, match="sequence_output differs.*serving_default"):
            saved_model.write_saved_models({"encoder": wrong}, source, tmp_path)
        assert list((tmp_path / "encoder").iterdir()) == []


class TestPartsOfAModel:
    def test_kinds(self, source):
        kinds = ["encoder", "preprocessor", "detector", "generator"]
        assert saved_model.kinds_of(source) == kinds
        electric = tiny_source("electric")
        assert set(saved_model.kinds_of(electric)) == set(saved_model.WHAT)

    def test_type_of_the_computation_is_recorded(self, tmp_path):
        stored = read_model(write_run(tmp_path, tiny_source()))
        source = PretrainedModel.of(stored, "mixed_bfloat16")
        found = write_part(source, "encoder", tmp_path / "out")
        assert manifest.verify_folder(found)["precision"] == "mixed_bfloat16"


def test_tokenizer_that_gives_other_ids_is_not_exported(source, monkeypatch):
    def encode(text):
        return [*Tokenizer(source.vocab).encode(text), 7]

    monkeypatch.setattr(source.tokenizer, "encode", encode)
    refused(lambda: saved_model.WHAT["preprocessor"](source), "other ids", code=65)


@pytest.mark.parametrize(("values", "fails"), [([20.0, 0.0], False), ([1, 0.5], True)])
def test_differences_are_relative_to_the_greatest_value(values, fails):
    """A score near 0 among scores of 20 rounds as those do: its terms are as large."""

    class Loaded:
        signatures = {  # noqa: RUF012
            "ids": lambda x: {"logits": tf.constant(values) + [0.0, 2e-5]}
        }

    expected = {"logits": np.array(values, np.float32)}
    check = Check("ids", {"x": np.zeros(1)}, expected)
    with pytest.raises(UserError) if fails else contextlib.nullcontext():
        saved_model._compared(Loaded, [check], saved_model.TOLERANCE["float32"])
