# SPDX-License-Identifier: Apache-2.0
"""What is known of a stored model stays known, and what is guessed a guess."""

import json
import shutil

import numpy as np
import pytest

import electra_tf
from electra_tf.errors import UserError
from electra_tf.interop import huggingface, keras_hub, sources, tf1
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.manifest import MANIFEST
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.interop_models import golden
from tests.helpers.tiny_pretraining import LENGTH

pytest.importorskip("safetensors")
quiet = {"log": lambda line: None}
POSITIONS = 40  # of the tiny model, which is trained on sequences of LENGTH
LONG = "the doctor opened the giraffe and read it . " * 12


def phase(steps, length):
    return {"num_train_steps": steps, "max_seq_length": length}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 7 steps."""
    return write_run(tmp_path_factory.mktemp("run"), tiny_source())


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The run in the format of Hugging Face."""
    out = tmp_path_factory.mktemp("exported") / "out"
    stored = sources.read(run, **quiet)
    return huggingface.write_huggingface(stored, "all", out, **quiet)


@pytest.fixture
def foreign(exported, tmp_path):
    """A directory without our manifest, and its tokenizer's settings."""
    folder = shutil.copytree(exported / "discriminator", tmp_path / "foreign")
    (folder / MANIFEST).unlink()
    path = folder / "tokenizer_config.json"
    return folder, path, json.loads(path.read_text())


def lengths(path):
    """(tokens that it was trained on, tokens that are read at a time)."""
    stored = sources.read(path, **quiet)
    return stored.trained_length, stored.config.max_seq_length


class TestTrainedLength:
    def test_long_texts_are_read_alike_from_an_export(self, run, exported):
        """In windows of what the positions were trained to, not of all there are."""
        [ours] = electra_tf.load(run).detect(LONG)
        [theirs] = electra_tf.load(exported).detect(LONG)
        assert len(ours) > 2 * POSITIONS
        for a, b in zip(ours, theirs, strict=True):
            assert a.text == b.text and abs(a.probability - b.probability) < 1e-6

    def test_every_format_keeps_it(self, run, exported, tmp_path):
        pytest.importorskip("keras_hub")
        stored = sources.read(run, **quiet)
        original = tf1.write_tf1(stored, "all", tmp_path / "tf1", **quiet)
        presets = keras_hub.write_keras_hub(stored, "all", tmp_path / "hub", **quiet)
        preset = presets / "discriminator"
        assert "    32,\n" in (preset / "README.md").read_text()
        single = exported / "generator"
        for folder in (run, original, preset, exported, single):
            assert lengths(folder) == (LENGTH, LENGTH), folder
        card = (single / "README.md").read_text()
        assert "| trained on sequences of | 32 tokens |" in card
        assert "| positions | 40 |" in card

    def test_it_is_that_of_the_phase_of_the_step(self, tmp_path):
        for number, (steps, length) in enumerate([(7, 16), (6, 24), (8, 16)]):
            whole = phase(steps + 5, 24)
            whole["phases"] = [phase(steps, 16), phase(5, 24)]
            model_dir = write_run(tmp_path / str(number), tiny_source(), **whole)
            assert lengths(model_dir) == (length, length)

    def test_what_a_checkpoint_says_of_itself_counts(self, tmp_path):
        """A run that was started again with other settings has made no step yet."""
        model_dir = write_run(tmp_path, tiny_source())
        weights = Checkpoints(model_dir, read_only=True, **quiet)
        tensors = tf1.read_tensors(weights.prefix(7))
        settings = {"max_seq_length": 24, "phases": []}
        Checkpoints(model_dir, settings=settings, **quiet).save(8, tensors)
        assert lengths(model_dir) == (24, 24)

    @pytest.mark.parametrize("said", [POSITIONS, 512, 10**30, 1e30, None, 7, "long"])
    def test_others_settings_that_say_nothing(self, foreign, said):
        folder, path, settings = foreign
        path.write_text(json.dumps(settings | {"model_max_length": said}))
        assert lengths(folder) == (None, POSITIONS)

    def test_others_settings_that_say_something(self, foreign):
        folder, path, settings = foreign
        path.write_text(json.dumps(settings | {"model_max_length": 24}))
        assert lengths(folder) == (24, 24)

    def test_all_positions_may_be_trained(self, tmp_path):
        source = tiny_source(max_seq_length=POSITIONS)
        model_dir = write_run(tmp_path / "run", source, max_seq_length=POSITIONS)
        stored = sources.read(model_dir, **quiet)
        out = huggingface.write_huggingface(stored, "all", tmp_path / "hf", **quiet)
        assert lengths(out) == (POSITIONS, POSITIONS)

    def test_checkpoints_of_the_original_do_not_say_it(self, tmp_path):
        stored = golden("electra_tiny")
        positions = stored.config.model_config().max_position_embeddings
        assert stored.trained_length is None
        assert stored.config.max_seq_length == positions
        out = huggingface.write_huggingface(stored, "all", tmp_path / "hf", **quiet)
        assert lengths(out) == (None, positions)
        card = (out / "discriminator" / "README.md").read_text()
        assert "| trained on sequences of | not known |" in card
        assert "None" not in card


class TestGuesses:
    """A discriminator without its generator says nothing of what that is."""

    def written(self, source, folder):
        stored = sources.read(source, **quiet)
        tf1.write_tf1(stored, "all", folder, **quiet)
        return json.loads((folder / tf1.HPARAMS).read_text())

    def test_they_do_not_become_facts(self, exported, tmp_path):
        hparams = self.written(exported / "discriminator", tmp_path / "tf1")
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

    def test_what_is_known_stays(self, run, tmp_path):
        hparams = self.written(run, tmp_path / "tf1")
        saved = json.loads((run / "config.json").read_text())
        for name in ("generator", "learning_rate", "mask_prob", "seed"):
            assert hparams[name] == saved[name], name
        model = electra_tf.load(tmp_path / "tf1")
        [ours], [theirs] = (m.corrupt(LONG) for m in (electra_tf.load(run), model))
        assert [t.text for t in ours] == [t.text for t in theirs]
        assert any(token.is_replaced for token in theirs)
        gaps = [
            a.probability - b.probability for a, b in zip(ours, theirs, strict=True)
        ]
        np.testing.assert_allclose(gaps, 0, atol=1e-6)

    def test_a_generator_that_is_known_to_be_uniform(self, tmp_path):
        source = tiny_source("uniform")
        model_dir = write_run(tmp_path / "run", source)
        hparams = self.written(model_dir, tmp_path / "tf1")
        assert hparams["generator"] == "uniform"
        assert electra_tf.load(tmp_path / "tf1").has_generator

    def test_a_checkpoint_of_the_original_gets_sizes_alone(self, tmp_path):
        stored = golden("electra_tiny")
        tf1.write_tf1(stored, "all", tmp_path / "out", **quiet)
        hparams = json.loads((tmp_path / "out" / tf1.HPARAMS).read_text())
        assert "max_seq_length" not in hparams and "num_train_steps" not in hparams
        assert hparams["generator_hidden_size"] == 0.5
        again = sources.read(tmp_path / "out", **quiet)
        assert again.config.model_config() == stored.config.model_config()
