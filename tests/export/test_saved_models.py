# SPDX-License-Identifier: Apache-2.0
"""Exported SavedModels, used in a process that has tensorflow and tensorflow_text only.

What they must answer is computed here from the Keras model and the Python tokenizer.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_DAMAGED, UserError
from electra_tf.export import saved_models, warmup
from electra_tf.export.encoder import python_pack
from electra_tf.export.exported import Check
from electra_tf.interop import sources
from electra_tf.storage import manifest
from electra_tf.text.tokenization import Tokenizer
from tests.helpers.exporting import (
    NAMES,
    Failed,
    fresh_process,
    shared_export,
    shared_source,
    tiny_source,
    write_run,
)
from tests.helpers.runs import GOLDEN, run_script
from tests.text.test_tokenization import random_texts, spelling_vocabulary

TEXTS = ["The doctor opened the giraffe and read it.", "", "a good film!", "中é"]


@pytest.fixture(scope="module")
def source():
    return shared_source()


@pytest.fixture(scope="module")
def exported():
    """What -> directory of the SavedModel."""
    kinds = ("encoder", "preprocessor", "detector")
    return {kind: shared_export("electra", kind) for kind in kinds}


def packed(source, texts, length=12):
    return dict(zip(NAMES, python_pack(source, texts, length), strict=True))


TOKENIZATION = str(GOLDEN / "tokenization")
FIRST = ["the good book", "a film", "", "read " * 40, "read " * 40]
SECOND = ["it is bad", "", "the", "good " * 9, ""]
FILMS = ["a good film", "a bad film", "the book is good", "it is bad"]


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
    speller = saved_models.write_part(speller, "preprocessor", folder)
    models = {k: exported[k] for k in ("preprocessor", "encoder")}
    inputs = {k: v.tolist() for k, v in packed(source, TEXTS).items()}
    segments = {"first": FIRST, "second": SECOND, "lengths": [2, 3, 4, 7, 12, 32]}
    jobs = {
        "fine_tune": {"model": models["encoder"], "inputs": inputs},
        "tokenize": {"model": speller, "texts": texts},
        "pack": {"model": models["preprocessor"], **segments},
        "keras3_layer": models | {"texts": TEXTS},
        "keras_layer": models | {"texts": FILMS, "labels": [1, 0, 1, 0]},
    }
    return dict(zip(jobs, fresh_process(folder, *jobs.items()), strict=True))


def answer(used, job):
    assert not isinstance(used[job], Failed), used[job].traceback
    return used[job]


class TestEncoder:
    def test_outputs_are_the_models(self, source, used):
        found = answer(used, "fine_tune")
        inputs = packed(source, TEXTS)
        expected = source.pretrainer.electra(*inputs.values())
        sequence = expected.sequence_output.numpy()
        outputs = found["outputs"]
        assert np.allclose(outputs["sequence_output"], sequence, atol=1e-5)
        assert np.allclose(outputs["pooled_output"], sequence[:, 0], atol=1e-5)
        assert outputs["default"] == outputs["pooled_output"]
        assert found["layers"] == [[4, 12, 16]] * 2 and found["last_layer_is_sequence"]

    def test_dropout_only_in_training(self, used):
        found = answer(used, "fine_tune")
        assert found["deterministic"]
        assert found["dropout"] > 0.1

    def test_every_variable_learns(self, source, used):
        found = answer(used, "fine_tune")
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
        for text, ids in zip(texts, answer(used, "tokenize"), strict=True):
            assert ids == tokenizer.encode(text), ascii(text)

    def test_packing(self, source, used):
        found = answer(used, "pack")
        tokenizer, vocab = source.tokenizer(), source.vocab
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


class TestKeras:
    def test_hub_layer_learns_in_tf_keras(self, used):
        found = answer(used, "keras_layer")
        assert found["after"] < 0.8 * found["before"]
        assert all(found["moved"])

    def test_keras_3_reads_it(self, used):
        assert answer(used, "keras3_layer") < 1e-6


def test_saved_model_cli_runs_the_encoder(source, exported, tmp_path):
    inputs = packed(source, TEXTS)
    for name, array in inputs.items():
        np.save(tmp_path / f"{name}.npy", array)
    files = ";".join(f"{name}={tmp_path / name}.npy" for name in inputs)
    done = subprocess.run(
        [
            os.path.join(os.path.dirname(sys.executable), "saved_model_cli"),
            "run",
            f"--dir={exported['encoder']}",
            "--tag_set=serve",
            "--signature_def=serving_default",
            f"--inputs={files}",
            f"--outdir={tmp_path}",
        ],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = source.pretrainer.electra(*inputs.values()).sequence_output
    found = np.load(tmp_path / "sequence_output.npy")
    assert np.allclose(found, expected, atol=1e-5)


class TestWriting:
    def test_versions_follow_each_other(self, source, tmp_path):
        (tmp_path / "preprocessor" / "3").mkdir(parents=True)
        found = saved_models.write_part(source, "preprocessor", tmp_path)
        assert found == tmp_path / "preprocessor" / "4"
        assert sorted(p.name for p in found.parent.iterdir()) == ["3", "4"]

    def test_parts_of_a_model_appear_together(self, source, tmp_path, monkeypatch):
        """A server would answer with an encoder and a preprocessor of two models."""
        (tmp_path / "preprocessor" / "3").mkdir(parents=True)
        kinds = ["encoder", "preprocessor"]
        fill, filled = saved_models.fill_folder, []

        def seen(folder, *rest):
            version = folder.name.split(".")[1]  # of its final name
            assert not list(tmp_path.glob(f"*/{version}"))
            filled.append(folder)
            return fill(folder, *rest)

        monkeypatch.setattr(saved_models, "fill_folder", seen)
        found = saved_models.write_parts(source, kinds, tmp_path)
        assert found == [tmp_path / kind / "4" for kind in kinds]
        for kind, folder in zip(kinds, found, strict=True):
            assert manifest.verify_folder(folder)["what"] == kind

        def fails_later(folder, *rest):
            if len(filled) == 3:
                raise OSError(28, "No space left")
            return seen(folder, *rest)

        monkeypatch.setattr(saved_models, "fill_folder", fails_later)
        with pytest.raises(UserError, match="No space left"):
            saved_models.write_parts(source, kinds, tmp_path)
        assert len(filled) == 3
        assert not list(tmp_path.glob("*/5")) and not list(tmp_path.glob("*/.*"))

    def test_manifest(self, source, exported):
        content = manifest.verify_folder(exported["detector"])
        assert content["what"] == "detector" and content["step"] == 7
        assert 0 <= content["max_difference"] < 1e-5
        assert content["differences"]["serving_default/starts"] == 0
        assert content["vocab_sha256"] == source.vocab.sha256
        assert content["do_lower_case"] is True
        vocab = exported["detector"] / "assets" / "vocab.txt"
        assert vocab.read_text().splitlines() == list(source.vocab.tokens)

    @pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add"])
    def test_damage_is_found(self, exported, tmp_path, damage):
        copy = tmp_path / "copy"
        shutil.copytree(exported["preprocessor"], copy)
        target = copy / "saved_model.pb"
        content = bytearray(target.read_bytes())
        if damage == "flip":
            content[len(content) // 2] ^= 1
            target.write_bytes(content)
        elif damage == "cut":
            target.write_bytes(content[:-1])
        elif damage == "remove":
            target.unlink()
        else:
            target = copy / "assets" / "more.txt"
            target.write_text("")
        with pytest.raises(UserError, match=target.name) as caught:
            manifest.verify_folder(copy)
        assert caught.value.exit_code == EXIT_DAMAGED

    def test_what_is_not_the_model_is_not_put_in_place(self, source, tmp_path):
        """The SavedModel of one model, checked against the answers of another."""
        other = saved_models.WHAT["encoder"](tiny_source(layers=2, seed=1))
        wrong = saved_models.WHAT["encoder"](source)._replace(checks=other.checks)
        with pytest.raises(UserError, match="serving_default/sequence_output differs"):
            saved_models.write_saved_model(wrong, source, "encoder", tmp_path)
        assert list((tmp_path / "encoder").iterdir()) == []

    def test_no_room_leaves_nothing(self, source, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="cannot write") as caught:
            saved_models.write_part(source, "preprocessor", tmp_path / "file")
        assert caught.value.exit_code == EXIT_CANNOT_WRITE

    def test_warm_up_requests(self, exported):
        """Read with TensorFlow Serving's own definitions."""
        logs = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
        path = exported["detector"] / warmup.PATH
        records = [r.numpy() for r in tf.data.TFRecordDataset(str(path))]
        loaded = tf.saved_model.load(str(exported["detector"]))
        assert len(records) == 2
        for record in records:
            log = logs.PredictionLog.FromString(record)
            assert log.WhichOneof("log_type") == "predict_log"
            request = log.predict_log.request
            assert request.model_spec.name == "detector"
            inputs = {
                name: tf.constant(tf.make_ndarray(tensor))
                for name, tensor in request.inputs.items()
            }
            loaded.signatures[request.model_spec.signature_name](**inputs)


class TestWhatAModelHas:
    def test_masked_language_model(self, tmp_path):
        source = tiny_source("mlm")
        for what in ("detector", "scorer"):
            with pytest.raises(UserError, match=f"there is no {what} to export"):
                saved_models.write_part(source, what, tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_uniform_generator(self, tmp_path):
        with pytest.raises(UserError, match="no generator to export"):
            saved_models.write_part(tiny_source("uniform"), "generator", tmp_path)

    def test_electra_gives_no_likelihoods(self, source, tmp_path):
        with pytest.raises(UserError, match="electric_objective"):
            saved_models.write_part(source, "scorer", tmp_path)

    def test_kinds(self, source):
        assert (
            saved_models.kinds_of(source)
            == "encoder preprocessor detector generator".split()
        )
        electric = tiny_source("electric")
        assert set(saved_models.kinds_of(electric)) == set(saved_models.WHAT)

    def test_encoder_without_heads(self, tmp_path):
        stored = sources.read(write_run(tmp_path, tiny_source()))
        tensors = {k: v for k, v in stored.tensors.items() if k.startswith("electra/")}
        source = saved_models.source_of(stored._replace(tensors=tensors))
        assert saved_models.kinds_of(source) == ["encoder", "preprocessor"]
        saved_models.write_part(source, "encoder", tmp_path / "exports")
        with pytest.raises(UserError, match="no generator to export"):
            saved_models.write_part(source, "generator", tmp_path / "exports")

    def test_bfloat16_says_what_it_loses(self, tmp_path):
        stored = sources.read(write_run(tmp_path, tiny_source()))
        source = saved_models.source_of(stored, "mixed_bfloat16")
        exact = saved_models.source_of(stored)
        found = saved_models.write_part(source, "encoder", tmp_path / "out", exact)
        content = manifest.verify_folder(found)
        assert content["precision"] == "mixed_bfloat16"
        lost = content["differences_from_float32"]["serving_default/sequence_output"]
        # 8 bits of numbers of about 1; in float32 the difference would be 1e-6.
        assert 1e-3 < lost < 0.1

    def test_unknown(self, source, tmp_path):
        with pytest.raises(UserError, match="'encodr' is none of encoder, "):
            saved_models.write_part(source, "encodr", tmp_path)


class TestCommand:
    @pytest.fixture(scope="class")
    def data(self, tmp_path_factory):
        data = tmp_path_factory.mktemp("runs")
        write_run(data, tiny_source("mlm"))
        return data

    def export(self, data, output, *flags):
        run = (f"--data-dir={data}", "--model-name=tiny", "--format=saved_model")
        return run_script("export_model.py", *run, f"--output-dir={output}", *flags)

    def test_everything_that_the_model_has(self, data, tmp_path):
        done = self.export(data, tmp_path)
        assert done.returncode == 0, done.stderr
        found = sorted(p.name for p in tmp_path.iterdir())
        assert found == ["encoder", "generator", "preprocessor"]
        for kind in found:
            content = manifest.verify_folder(tmp_path / kind / "1")
            assert content["step"] == 7 and content["model"] == "tiny"
            gap = content["max_difference"]
            assert gap < 1e-5 and f"{gap:.1e}" in done.stdout

    def test_publishing_is_for_hub_directories(self, data, tmp_path):
        done = self.export(data, tmp_path / "no", "--publish=kaggle")
        assert done.returncode == 2 and "Kaggle takes hub" in done.stderr


def test_the_tokens_that_fill_masks_are_compared():
    made = saved_models.servable_of(shared_source(), "generator")
    expected = made.checks[0].expected
    assert {"tokens", "probabilities", "num_masks"} <= set(expected)
    changed = dict(expected, tokens=expected["tokens"][:, ::-1])
    wrong = made._replace(checks=[made.checks[0]._replace(expected=changed)])
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(UserError, match="serving_default/tokens differs"):
            saved_models.write_saved_model(wrong, shared_source(), "generator", folder)


def test_segments_of_different_batch_sizes_are_refused_in_words():
    loaded = tf.saved_model.load(str(shared_export("electra", "preprocessor")))
    some, more = (loaded.tokenize(tf.constant(texts)) for texts in (["a"], ["a", "b"]))
    for segments in ([some, more], [more, some]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="different batch"):
            loaded.bert_pack_inputs(segments, seq_length=8)


@pytest.mark.parametrize(("values", "fails"), [([20.0, 0.0], False), ([1, 0.5], True)])
def test_differences_are_measured_by_the_greatest_value(values, fails):
    """A score near 0 among scores of 20 rounds as those do: its terms are as large."""

    class Loaded:
        found = tf.constant(values) + [0.0, 2e-5]
        signatures = {"ids": lambda x: {"logits": Loaded.found}}  # noqa: RUF012

    expected = {"logits": np.array(values, np.float32)}
    check = Check("ids", {"x": np.zeros(1)}, expected)
    (gap,) = saved_models._differences(Loaded, [check]).values()
    assert (gap > saved_models.TOLERANCE["float32"]) == fails
