# SPDX-License-Identifier: Apache-2.0
"""What makes two configs the same run."""

import json
from dataclasses import fields

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import applicable, default_of
from electra_tf.config.objectives import (
    GENERATORS,
    OBJECTIVES,
    original_of_generator,
    original_of_objective,
    translated,
)
from electra_tf.config.pretraining import PretrainingConfig
from tests.config.test_pretraining import make
from tests.helpers.runs import ROOT

CONFIGS = {name: make({"objective": name}) for name in OBJECTIVES} | {
    "uniform": make({"uniform_generator": True}),
    "unigram": make({"generator": "unigram"}),
    "tied": make({"untied_generator": False}),
    "untied": make({"untied_generator_embeddings": True}),
    "disentangled": make({"embedding_sharing": "disentangled"}),
    "base": make({"model_size": "base"}),
    "generator": make({"generator_hidden_size": 0.5}),
    "layers": make({"generator_layers": 0.5}),
    "embedding": make({"embedding_size": 64}),
    "heads": make({"model_hparam_overrides": {"num_attention_heads": 8}}),
    "act": make({"model_hparam_overrides": {"hidden_act": "relu"}}),
    "stages": make({"objective": "two_stage", "stage_one_steps": 7}),
    "vocab": make({"vocab_size": 99}),
    "cased": make({"do_lower_case": False}),
}


def test_these_are_different_runs():
    identities = [config.identity() for config in CONFIGS.values()]
    for number, identity in enumerate(identities):
        assert identity not in identities[:number], list(CONFIGS)[number]


@pytest.mark.parametrize("cls", [PretrainingConfig, FinetuningConfig])
def test_other_hparams_do_not_make_another_run(cls):
    """Settings may change from command to command, which is noted; places may move."""
    usual = cls.from_hparams("D", "m", {})
    for name, value in (
        ("learning_rate", 0.1),
        ("train_batch_size", 4),
        ("seed", 3),
        ("precision", "mixed_bfloat16"),
        ("weight_decay_rate", 0.1),
        ("max_seq_length", 64),
    ):
        config = cls.from_hparams("D", "m", {name: value})
        assert config.identity() == usual.identity(), name
        assert config.settings() == usual.settings() | {name: value}, name
    moved = cls.from_hparams("E", "n", {"vocab_file": "/elsewhere"})
    assert moved.identity() == usual.identity()
    assert moved.settings() == usual.settings()


def test_identities_with_the_booleans_of_the_original():
    """As runs of earlier versions have them."""
    for name, config in CONFIGS.items():
        kinds = OBJECTIVES[config.objective], GENERATORS[config.generator]
        stored = config.identity()
        stored |= original_of_objective(config.objective)
        stored |= original_of_generator(config.generator)
        for kind, key in zip(kinds, ("objective", "generator"), strict=True):
            if kind.is_original:
                del stored[key]
        untied = config.embedding_sharing == "untied"
        stored["untied_generator_embeddings"] = untied
        if config.embedding_sharing != "disentangled":
            stored.pop("embedding_sharing", None)
        found = applicable(PretrainingConfig, translated(stored))
        assert found == config.identity(), name


def test_run_of_an_earlier_version_is_the_same_run():
    """Its config.json and checkpoint have the booleans, and null for the others."""
    folder = ROOT / "tests" / "config" / "earlier_run"
    stored = json.loads((folder / "checkpoint.json").read_text())
    config = make(config=json.loads((folder / "config.json").read_text()))
    assert (config.objective, config.generator) == ("electric", "two_tower")
    identity = applicable(PretrainingConfig, translated(stored["identity"]))
    del identity["vocab_sha256"]
    assert identity == config.identity()
    settings = translated(stored["settings"])
    defaults = {field.name: default_of(field) for field in fields(PretrainingConfig)}
    settings = {k: settings.get(k, defaults.get(k)) for k in config.settings()}
    assert settings == config.settings()
