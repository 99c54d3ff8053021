# SPDX-License-Identifier: Apache-2.0
"""Known settings of a stored model stay known; defaults are not stored as facts."""

import json
import shutil

import numpy as np
import pytest

import electra_tf
from electra_tf.errors import UserError
from electra_tf.interop import huggingface, keras_hub, tf1
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.manifest import MANIFEST
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.interop_models import edit_json, golden, quiet, read
from tests.helpers.tiny_pretraining import LENGTH

pytest.importorskip("safetensors")
POSITIONS = 40  # of the tiny model, which is trained on sequences of LENGTH
LONG = "the doctor opened the giraffe and read it . " * 12


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 7 steps."""
    return write_run(tmp_path_factory.mktemp("run"), tiny_source())


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The run in the format of Hugging Face."""
    out = tmp_path_factory.mktemp("exported") / "out"
    return huggingface.write_huggingface(read(run)[0], "all", out, **quiet)


def lengths(path):
    """(length of the training sequences, length of the inputs)."""
    stored, _ = read(path)
    return stored.trained_length, stored.config.max_seq_length


def written(source, folder):
    """The hparams that an export in the original's format stores."""
    tf1.write_tf1(read(source)[0], "all", folder, **quiet)
    return json.loads((folder / tf1.HPARAMS).read_text())


class TestTrainedLength:
    def test_long_texts_give_the_same_output_from_an_export(self, run, exported):
        """In windows of the trained length, not of the number of positions."""
        [ours] = electra_tf.load(run).detect(LONG)
        [theirs] = electra_tf.load(exported).detect(LONG)
        assert len(ours) > 2 * POSITIONS
        for a, b in zip(ours, theirs, strict=True):
            assert a.text == b.text and abs(a.probability - b.probability) < 1e-6

    @pytest.mark.thorough
    def test_every_format_keeps_it(self, run, exported, tmp_path):
        pytest.importorskip("keras_hub")
        stored, _ = read(run)
        original = tf1.write_tf1(stored, "all", tmp_path / "tf1", **quiet)
        presets = keras_hub.write_keras_hub(stored, "all", tmp_path / "hub", **quiet)
        preset, single = presets / "discriminator", exported / "generator"
        assert "    32,\n" in (preset / "README.md").read_text()
        for folder in (run, original, preset, exported, single):
            assert lengths(folder) == (LENGTH, LENGTH), folder
        card = (single / "README.md").read_text()
        assert "| trained on sequences of | 32 tokens |" in card
        assert "| positions | 40 |" in card

    @pytest.mark.parametrize("steps, length", [(7, 16), (6, 24), (8, 16)])
    def test_length_of_the_current_phase(self, tmp_path, steps, length):
        """The checkpoint is of step 7."""
        phases = [
            {"num_train_steps": steps, "max_seq_length": 16},
            {"num_train_steps": 5, "max_seq_length": 24},
        ]
        whole = {"num_train_steps": steps + 5, "max_seq_length": 24, "phases": phases}
        assert lengths(write_run(tmp_path, tiny_source(), **whole)) == (length, length)

    def test_settings_in_the_checkpoint_take_precedence(self, tmp_path):
        """A run that was started again with other settings has made no step yet."""
        model_dir = write_run(tmp_path, tiny_source())
        weights = Checkpoints(model_dir, read_only=True, **quiet)
        stored = tf1.tensors_of(weights.prefix(7))
        tensors = {name: stored.get(name) for name in stored.shapes}
        settings = {"max_seq_length": 24, "phases": []}
        Checkpoints(model_dir, settings=settings, **quiet).save(8, tensors)
        assert lengths(model_dir) == (24, 24)

    def test_settings_of_other_programs(self, exported, tmp_path):
        folder = shutil.copytree(exported / "discriminator", tmp_path / "foreign")
        (folder / MANIFEST).unlink()
        for length in (POSITIONS, 10**30, 1e30, None, 7, "long", 24):
            edit_json(folder / "tokenizer_config.json", model_max_length=length)
            known = (24, 24) if length == 24 else (None, POSITIONS)
            assert lengths(folder) == known


class TestGuesses:
    """A discriminator without its generator does not determine the generator."""

    def test_guesses_are_not_stored(self, exported, tmp_path):
        hparams = written(exported / "discriminator", tmp_path / "tf1")
        for name in ("generator", "objective", "learning_rate"):
            assert name not in hparams, name
        shape = {"hidden_size": 16, "num_attention_heads": 2}
        assert shape.items() <= hparams["model_hparam_overrides"].items()
        assert hparams["embedding_size"] == 8 and hparams["do_lower_case"]
        for folder in (exported / "discriminator", tmp_path / "tf1"):
            model = electra_tf.load(folder)
            assert len(model.detect("the doctor")[0]) == 2
            with pytest.raises(UserError, match="without its generator"):
                model.corrupt("the doctor")

    def test_known_hparams_are_stored(self, run, tmp_path):
        hparams = written(run, tmp_path / "tf1")
        saved = json.loads((run / "config.json").read_text())
        for name in ("generator", "learning_rate", "mask_prob", "seed"):
            assert hparams[name] == saved[name], name
        models = electra_tf.load(run), electra_tf.load(tmp_path / "tf1")
        [ours], [theirs] = (model.corrupt(LONG) for model in models)
        assert [t.text for t in ours] == [t.text for t in theirs]
        assert any(token.is_replaced for token in theirs)
        gaps = [
            a.probability - b.probability for a, b in zip(ours, theirs, strict=True)
        ]
        np.testing.assert_allclose(gaps, 0, atol=1e-6)

    def test_checkpoint_of_the_original_determines_sizes_only(self, tmp_path):
        stored = golden("electra_tiny")
        positions = stored.config.model_config().max_position_embeddings
        assert stored.trained_length is None
        assert stored.config.max_seq_length == positions
        tf1.write_tf1(stored, "all", tmp_path / "tf1", **quiet)
        hparams = json.loads((tmp_path / "tf1" / tf1.HPARAMS).read_text())
        assert "max_seq_length" not in hparams and "num_train_steps" not in hparams
        assert hparams["generator_hidden_size"] == 0.5
        again, _ = read(tmp_path / "tf1")
        assert again.config.model_config() == stored.config.model_config()
        out = huggingface.write_huggingface(stored, "all", tmp_path / "hf", **quiet)
        assert lengths(out) == (None, positions)
        card = (out / "discriminator" / "README.md").read_text()
        assert "| trained on sequences of | not known |" in card
        assert "None" not in card
