# SPDX-License-Identifier: Apache-2.0
"""Known settings of a stored model stay known; defaults are not stored as facts."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest

import electra_tf
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.interop import checkpoint, huggingface, keras_hub, tf1
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.storage.manifest import MANIFEST
from electra_tf.text.vocabulary import SPECIAL_TOKENS, TokenizerConfig, Vocabulary
from tests.config.test_identity import CONFIGS
from tests.config.test_pretraining import make
from tests.helpers.exporting import tiny_source, write_run
from tests.helpers.interop_models import edit_json, golden, quiet, read
from tests.helpers.tiny_pretraining import LENGTH

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
        stored, _ = read(run)
        original = tf1.write_tf1(stored, "all", tmp_path / "tf1", **quiet)
        presets = keras_hub.write_keras_hub(stored, "all", tmp_path / "hub", **quiet)
        preset, single = presets / "discriminator", exported / "generator"
        assert "    32,\n" in (preset / "README.md").read_text()
        for folder in (run, original, preset, exported, single):
            assert lengths(folder) == (LENGTH, LENGTH), folder
        card = (single / "README.md").read_text()
        assert "| tokens in a training sequence | 32 |" in card
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

    def test_settings_of_other_programs(self, exported, tmp_path):
        folder = shutil.copytree(exported / "discriminator", tmp_path / "foreign")
        (folder / MANIFEST).unlink()
        for length in (POSITIONS, 10**30, 1e30, None, "long", 24):
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
        assert "| tokens in a training sequence | not known |" in card
        assert "None" not in card


SMALL = {
    "hidden_size": 256,
    "num_hidden_layers": 12,
    "intermediate_size": 1024,
    "embedding_size": 128,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "num_attention_heads": 4,
    "hidden_act": "gelu",
}
OTHER = {"hidden_act": "relu", "max_position_embeddings": 600, "learning_rate": 1.0}
OTHER |= {"objective": "two_stage", "stage_one_steps": 7}
FINE_TUNED = "do_lower_case hidden_act max_position_embeddings"
VOCAB = Vocabulary((*SPECIAL_TOKENS, "a"))


def info(sha256=VOCAB.sha256, cased=False, **known):
    tokenizer = TokenizerConfig(not cased, not cased)
    rest = (None, lambda log: None)
    return CheckpointInfo("M", SMALL | known, tokenizer, *rest, recorded_sha256=sha256)


def config(cls=PretrainingConfig, **hparams):
    return cls.from_hparams("/nowhere", "m", {"vocab_size": len(VOCAB), **hparams})


@pytest.mark.parametrize(
    ("purpose", "names"),
    [
        (checkpoint.RESUME, f"{FINE_TUNED} objective"),
        (checkpoint.EVALUATE, f"{FINE_TUNED} objective"),
        (checkpoint.WARM_START, "hidden_act"),
        (checkpoint.FINETUNE, FINE_TUNED),
    ],
)
def test_fields_that_count_for_a_purpose(purpose, names):
    cls = FinetuningConfig if purpose == checkpoint.FINETUNE else PretrainingConfig
    found = info(cased=True, **OTHER).compare(config(cls), purpose)
    assert [name for name, _, _ in found] == names.split()
    assert info().compare(config(cls), purpose) == []


def test_stages_count_for_a_resumed_run_alone():
    ours = config(objective="two_stage", stage_one_steps=9, num_train_steps=20)
    other = info(objective="two_stage", stage_one_steps=7, embedding_size=256)
    found = other.compare(ours, checkpoint.RESUME)
    assert [name for name, _, _ in found] == ["stage_one_steps"]
    assert other.compare(ours, checkpoint.EVALUATE) == []


def test_error_has_all_differences_and_the_hparams_that_fit():
    with pytest.raises(UserError, match="M was trained with another vocabulary"):
        info(sha256="0" * 64).check(config(), VOCAB, checkpoint.RESUME)
    with pytest.raises(UserError) as error:
        info(cased=True, **OTHER).check(config(), VOCAB, checkpoint.RESUME)
    message = str(error.value)
    for text in (
        "hidden_act is 'relu' there, 'gelu' here",
        "do_lower_case is False there, True here",
        "objective is 'two_stage' there",
    ):
        assert text in message, message
    assert len(message.splitlines()) <= 3
    fitting = json.loads(message.partition("These hparams fit it: ")[2])
    assert fitting["objective"] == "two_stage" and not fitting["do_lower_case"]
    assert fitting["model_hparam_overrides"]["hidden_act"] == "relu"
    info().check(config(), VOCAB, checkpoint.RESUME)


def test_export_compares_files_and_hparams():
    model, activation = info(hidden_act="relu"), {"hidden_act": "tanh"}
    found = model.compare({"model_hparam_overrides": activation}, checkpoint.EXPORT)
    assert found == [("hidden_act", "relu", "tanh")]
    assert model.compare({"embedding_size": 16, "seed": 3}, checkpoint.EXPORT) == [
        ("embedding_size", 128, 16)
    ]


def test_accents_count_for_fine_tuning():
    other = dataclasses.replace(info(), tokenizer_config=TokenizerConfig(True, False))
    with pytest.raises(UserError, match="its text is .*\n.*strip_accents"):
        other.check(config(FinetuningConfig), VOCAB, checkpoint.FINETUNE)
    other.check(config(), VOCAB, checkpoint.WARM_START)


# Fields of hparams and of shapes.


def shapes_of(hidden, layers, generator_hidden, generator_layers):
    """The weights of an ELECTRA that determine its shape."""
    found = {
        "electra/embeddings/word_embeddings": [97, 8],
        "electra/embeddings/position_embeddings": [40, 8],
        "electra/embeddings/token_type_embeddings": [2, 8],
        "discriminator_predictions/dense/kernel": [hidden, hidden],
        "generator_predictions/output_bias": [97],
    }
    for scope, width, depth in (
        ("electra", hidden, layers),
        ("generator", generator_hidden, generator_layers),
    ):
        for i in range(depth):
            layer = f"{scope}/encoder/layer_{i}"
            found[f"{layer}/intermediate/dense/kernel"] = [width, 4 * width]
            found[f"{layer}/attention/self/query/kernel"] = [width, width]
    return found


def test_fractions_are_compared_by_the_sizes_that_they_give():
    shares = (0.1, 0.3, 0.33333, 0.7, 1.0)
    for hidden, layers in ((16, 3), (100, 12), (256, 1), (768, 12)):
        for width, depth in itertools.product(shares, repeat=2):
            sizes = round(hidden * width), round(layers * depth)
            if not all(sizes):
                continue
            inferred = checkpoint.fields_of_shapes(
                shapes_of(hidden, layers, *sizes), "m"
            )
            given = {"generator_hidden_size": width, "generator_layers": depth}
            assert checkpoint.differences(inferred, given) == []
    inferred = checkpoint.fields_of_shapes(shapes_of(256, 3, 77, 2), "m")
    given = {"generator_hidden_size": 0.25, "generator_layers": 0.4}
    found = checkpoint.differences(inferred, given)
    assert found == [(k, inferred[k], given[k]) for k in sorted(given)]


def test_heads_are_inferred_from_multiples_of_64_alone():
    for width in (32, 96, 200, 312):
        words = f"{width}, is not a multiple .*\n.*heads"
        with pytest.raises(UserError, match=words):
            checkpoint.note_of_heads(width, "m")
    for width, heads in ((64, 1), (256, 4), (768, 12)):
        assert f"heads: {heads} inferred" in checkpoint.note_of_heads(width, "m")


@pytest.mark.parametrize("there", CONFIGS)
def test_fields_of_a_saved_config_are_those_of_its_identity(there, tmp_path):
    CONFIGS[there].save(str(tmp_path / "hparams.json"))
    stored = checkpoint.fields_of_hparams(read_hparams(str(tmp_path / "hparams.json")))
    identity = CONFIGS[there].identity()
    assert checkpoint.differences(stored, identity) == []
    assert {*checkpoint.SHAPE} <= stored.keys()
    for name, here in CONFIGS.items():
        differs = {k for k, v in here.identity().items() if identity.get(k, v) != v}
        found = {k for k, _, _ in checkpoint.differences(stored, here.identity())}
        assert differs - {"vocab_size"} <= found, name


def test_fields_that_differ():
    usual = make().identity()
    for hparams, names in (
        ({"model_hparam_overrides": {"num_attention_heads": 2}}, "num_attention_heads"),
        ({"model_size": "large"}, "hidden_size num_hidden_layers"),
        ({"objective": "electra"}, ""),
        ({"objective": "electric", "generator": "two_tower"}, "generator objective"),
        ({"generator_hidden_size": 0.25}, ""),
        ({"generator_hidden_size": 0.5}, "generator_hidden_size"),
    ):
        stored = checkpoint.fields_of_hparams(hparams, defaults=False)
        found = checkpoint.differences(stored, usual)
        assert [name for name, _, _ in found] == names.split(), hparams
