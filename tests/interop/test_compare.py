# SPDX-License-Identifier: Apache-2.0
"""A checkpoint beside the config of a run: what is compared for which purpose."""

import dataclasses
import itertools
import json

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import UserError
from electra_tf.interop import checkpoint
from electra_tf.interop.checkpoint import CheckpointInfo
from electra_tf.storage.checkpoints import StoredTensors
from electra_tf.text.vocabulary import SPECIAL_TOKENS, TokenizerConfig, Vocabulary
from tests.config.test_identity import CONFIGS
from tests.config.test_pretraining import make

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
    other = info(sha256="0" * 64, cased=True, **OTHER)
    with pytest.raises(UserError) as error:
        other.check(config(), VOCAB, checkpoint.RESUME)
    message = str(error.value)
    for text in (
        "hidden_act is 'relu' there, 'gelu' here",
        "do_lower_case is False there, True here",
        "objective is 'two_stage' there",
        "another vocabulary than vocabulary: sha256 0000000000000000...",
        "Set vocab_file",
    ):
        assert text in message, message
    assert len(message.splitlines()) <= 3
    fitting = json.loads(message.partition("These hparams fit it: ")[2])
    assert fitting["objective"] == "two_stage" and not fitting["do_lower_case"]
    assert fitting["model_hparam_overrides"]["hidden_act"] == "relu"
    info().check(config(), VOCAB, checkpoint.RESUME)


def test_export_compares_weights_files_and_hparams_at_once():
    weights = StoredTensors("M", shapes_of(256, 12, 64, 12), lambda name: None)
    model = dataclasses.replace(info(hidden_act="relu"), open=lambda log: weights)
    shapes = {"embedding_size": 8, "max_position_embeddings": 40}
    found = model.compare({"model_hparam_overrides": {"hidden_act": "tanh"}}, "export")
    assert found == [
        *((name, value, SMALL[name]) for name, value in shapes.items()),
        ("hidden_act", "relu", "tanh"),
    ]
    model = dataclasses.replace(model, known=model.known | shapes)
    assert model.compare({"generator_hidden_size": 0.25}, checkpoint.EXPORT) == []
    assert model.compare({"embedding_size": 16, "seed": 3}, checkpoint.EXPORT) == [
        ("embedding_size", 8, 16)
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
            assert checkpoint.contradictions(inferred, given) == []
    inferred = checkpoint.fields_of_shapes(shapes_of(256, 3, 77, 2), "m")
    given = {"generator_hidden_size": 0.25, "generator_layers": 0.4}
    found = checkpoint.contradictions(inferred, given)
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
    # Fractions are compared by the size that they give.
    base = make({"model_size": "base"})
    assert base.generator_hidden_size != 256 / 768
    stored = {"generator_hidden_size": 256 / 768}
    assert checkpoint.differences(stored, base.identity()) == []
