# SPDX-License-Identifier: Apache-2.0
"""Every format holds the main network of every objective, and the vocabulary."""

import functools

import numpy as np
import pytest

from electra_tf.config.objectives import DISCRIMINATOR_HEAD, OBJECTIVES
from electra_tf.errors import UserError
from electra_tf.export import formats
from electra_tf.interop import networks, readers
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.exporting import tiny_source, tiny_vocabulary, write_run
from tests.helpers.interop_models import read_model
from tests.helpers.runs import by_default
from tests.helpers.tiny_pretraining import VARIANTS

NAMES = {name: name for name in OBJECTIVES} | {"two_tower": "two_tower_alone"}
# Saved as of step 7: stage two of two stages.
RUNS = {name: VARIANTS[variant] for name, variant in NAMES.items()} | {
    "two_stage": VARIANTS["two_stage"] | {"stage_one_steps": 5}
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Writes a run of an objective once; (data directory, its weights)."""

    @functools.cache
    def run(name):
        data = tmp_path_factory.mktemp(name)
        source = tiny_source(NAMES[name])
        write_run(data, source, **RUNS[name])
        return data, {v.path: v.numpy() for v in source.pretrainer.variables}

    return run


def export(data, output, kind, **options):
    request = formats.ExportRequest(kind, str(output), str(data), "tiny", **options)
    return formats.export(request)


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", by_default(OBJECTIVES, ["two_stage", "corrective_lm"]))
def test_weights_of_the_main_network(runs, tmp_path, name):
    """The whole model as the original's checkpoint, and its encoder by itself."""
    data, weights = runs(name)
    export(data, tmp_path / "tf1", "tf1")
    stored = read_model(
        str(tmp_path / "tf1"), hparams=RUNS[name], log=lambda line: None
    )
    assert stored.config.objective == name
    same(stored.tensors, weights)
    if not OBJECTIVES[name].main_network:
        with pytest.raises(UserError, match="no encoder that reads a whole text"):
            networks.split(stored, "encoder")
        return
    [encoder] = networks.split(stored, "encoder").values()
    main = {k: v for k, v in weights.items() if k.startswith("electra/")}
    same(encoder.tensors, main)
    if name != "electric":
        found = networks.split(stored).values()
        assert any(main.keys() <= network.tensors.keys() for network in found)


@pytest.mark.thorough
@pytest.mark.parametrize("name", by_default(OBJECTIVES, ["all_tokens_mlm"]))
def test_saved_models_compute_the_same(runs, tmp_path, name):
    """The export compares each with the model."""
    data, _ = runs(name)
    if not OBJECTIVES[name].main_network:
        export(data, tmp_path / "generator", "saved_model", what="generator")
        for kind in ("saved_model", "huggingface"):
            with pytest.raises(UserError, match="has no encoder"):
                export(data, tmp_path / kind, kind, what="encoder")
        for kind in ("huggingface", "keras_hub"):
            with pytest.raises(UserError, match="no encoder that reads"):
                export(data, tmp_path / kind, kind)
        with pytest.raises(UserError, match="has --what preprocessor, generator"):
            export(data, tmp_path / "detector", "saved_model", what="detector")
        return
    export(data, tmp_path / "encoder", "saved_model", what="encoder")
    has_head = DISCRIMINATOR_HEAD in OBJECTIVES[name].heads
    if has_head:
        export(data, tmp_path / "detector", "saved_model", what="detector")
    else:
        with pytest.raises(UserError, match="no detector"):
            export(data, tmp_path / "detector", "saved_model", what="detector")


@pytest.mark.thorough
def test_main_network_of_a_model_without_discriminator(runs, tmp_path):
    """Not the smaller generator: runs that start from the folder get its encoder."""
    data, weights = runs("replace_mlm")
    out = export(data, tmp_path / "out", "huggingface")
    run = readers.find(data / "models" / "tiny", print)
    assert readers.find(out, print).shape == run.shape
    config = run.read().config
    assert config.generator_config().hidden_size < config.model_config().hidden_size
    encoder = {k: v for k, v in weights.items() if k.startswith("electra/")}
    found = readers.find(out, print).tensors(print)
    same({k: found.get(k) for k in encoder}, encoder)


@pytest.mark.thorough
def test_main_network_beside_two_towers(tmp_path):
    towers = {"two_tower_generator": True}
    write_run(tmp_path, tiny_source("replace_mlm", **towers), **towers)
    export(tmp_path, tmp_path / "out", "tf1")
    again = read_model(str(tmp_path / "out"), log=lambda line: None)
    assert again.config.objective == "replace_mlm"
    assert again.config.generator == "two_tower"


def test_untrained_discriminator_is_not_exported(tmp_path):
    source = tiny_source("two_stage")
    hparams = VARIANTS["two_stage"] | {"stage_one_steps": 7}
    write_run(tmp_path, source, **hparams)
    with pytest.raises(UserError, match="step 7 of a two-stage run"):
        export(tmp_path, tmp_path / "out", "tf1")


def test_a_modern_block_is_read_back_and_refused_by_name(tmp_path):
    """SavedModels hold it; its weights say which block they are of."""
    changes = {"block": "modern", "local_window": 8, "layers": 2}
    source = tiny_source("untied_embeddings", **changes)
    shape = {"model_hparam_overrides": source.shape.overrides()}
    write_run(tmp_path, source, **VARIANTS["untied_embeddings"] | shape)
    run = readers.find(tmp_path / "models" / "tiny", print)
    inferred = run.inferred
    assert inferred["block"] == "modern" and inferred["intermediate_size"] == 24
    assert inferred["generator_hidden_size"] == 0.5
    assert "max_position_embeddings" not in inferred
    weights = {v.path: v.numpy() for v in source.pretrainer.variables}
    same(run.read(log=print).tensors, weights)
    for what in ("detector", "encoder"):
        export(tmp_path, tmp_path / what, "saved_model", what=what)
    for kind in ("tf1", "keras_hub"):
        with pytest.raises(UserError, match=f"{kind} .*block modern.*\n.*saved_model"):
            export(tmp_path, tmp_path / kind, kind)


# KerasHub strips the tokens that it reads: blank ones would be one.
KINDS = sorted(formats.FORMATS.keys() - {"keras_hub"})


@pytest.fixture(scope="module")
def with_blanks():
    """Its vocabulary has blank tokens, as the Chinese one of BERT has."""
    blank = {"unused0": "\u2028", "unused1": "", "unused2": "\u3000"}
    tokens = tiny_vocabulary().tokens
    vocab = Vocabulary(tuple(blank.get(token, token) for token in tokens))
    assert set(blank.values()) < set(vocab.tokens)
    return tiny_source(vocab=vocab)


@pytest.mark.parametrize("kind", by_default(KINDS, ["onnx"]))
def test_blank_tokens_are_kept(with_blanks, tmp_path, kind):
    write_run(tmp_path, with_blanks)
    out = tmp_path / "out"
    options = {"handle": "me/tiny"} if kind == "hub" else {}
    formats.export(
        formats.ExportRequest(kind, str(out), str(tmp_path), "tiny", **options)
    )
    names = "vocab.txt", "vocabulary.txt", "tokenizer.json"
    found = [path for name in names for path in out.rglob(name)]
    for path in found:
        assert Vocabulary.load(path).sha256 == with_blanks.vocab.sha256, path
    assert found


def test_keras_hub_refuses_tokens_that_are_equal_when_stripped(with_blanks, tmp_path):
    write_run(tmp_path, with_blanks)
    request = formats.ExportRequest(
        "keras_hub", str(tmp_path / "out"), str(tmp_path), "tiny"
    )
    with pytest.raises(UserError, match="KerasHub strips tokens"):
        formats.export(request)
    assert not (tmp_path / "out").exists()
