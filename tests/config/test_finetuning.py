# SPDX-License-Identifier: Apache-2.0
"""Settings of fine-tuning: presets, order of precedence, checks, saving."""

import dataclasses
import json
import os

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams


def make(hparams=None, config=None, data_dir="D", name="m"):
    return FinetuningConfig.from_hparams(data_dir, name, hparams or {}, config)


@pytest.mark.parametrize(
    ("names", "epochs", "length"),
    [
        (["rte"], 10.0, 128),
        (["squad"], 2.0, 512),
        (["naturalqs"], 3.0, 128),
        (["chunk"], 3.0, 256),
        (["mnli"], 3.0, 128),
        (["rte", "squad"], 3.0, 128),
    ],
)
def test_single_task_implies_its_settings(names, epochs, length):
    config = make({"task_names": names})
    assert (config.num_train_epochs, config.max_seq_length) == (epochs, length)


def test_own_tasks_take_the_settings_of_their_kind():
    tasks = {"faq": {"type": "qa"}, "ner": {"type": "tagging"}, "rte": {"type": "x"}}
    assert make({"task_names": ["faq"], "tasks": tasks}).max_seq_length == 512
    assert make({"task_names": ["ner"], "tasks": tasks}).max_seq_length == 256
    assert make({"task_names": ["rte"], "tasks": tasks}).num_train_epochs == 3.0


def test_explicit_values_override_presets():
    given = {"model_size": "large", "task_names": ["squad"], "learning_rate": 3e-5}
    config = make(given | {"max_seq_length": 384})
    assert (config.learning_rate, config.layerwise_lr_decay) == (3e-5, 0.9)
    assert (config.max_seq_length, config.num_train_epochs) == (384, 2.0)
    config = make({"max_seq_length": 64}, {"task_names": ["rte"], "seed": 7})
    assert (config.max_seq_length, config.seed) == (64, 7)
    assert config.num_train_epochs == 10.0


def test_init_checkpoint_null_is_no_default():
    assert make().init_checkpoint == os.path.join("D", "models", "m")
    assert make({"init_checkpoint": None}).init_checkpoint is None


def test_results_follow_an_explicit_model_dir():
    elsewhere = {"model_dir": "/elsewhere/run"}
    for hparams, expected in (
        ({}, "D/models/m/results/chunk_results.json"),
        ({"task_names": ["rte"]}, "D/models/m/results/rte_results.json"),
        (elsewhere, "/elsewhere/run_results/chunk_results.json"),
        (elsewhere | {"results_txt": "/r/x.txt"}, "/r/x.json"),
    ):
        assert make(hparams).results_json == expected
        assert FinetuningConfig.results_of("D", "m", hparams) == expected
    assert make(elsewhere).trial_dir(2) == "/elsewhere/run_2"
    # No size is known here; that of a large model is in its checkpoint.
    frozen = FinetuningConfig.results_of("D", "m", {"freeze_layers": 18})
    assert frozen == make().results_json


def test_saved_config_is_a_config_in_another_place(tmp_path):
    path = tmp_path / "config.json"
    first = make({"task_names": ["rte"], "init_checkpoint": None, "seed": 3})
    first.save(str(path))
    again = make({}, read_hparams(str(path)), data_dir="E", name="n")
    assert again.init_checkpoint is None
    assert again.model_dir == "E/models/n/finetuning_models/rte_model"
    places = "data_dir model_name model_dir preprocessed_data_dir results_pkl"
    ours, theirs = (dataclasses.asdict(config) for config in (first, again))
    differing = {name for name, value in ours.items() if theirs[name] != value}
    assert differing == {*places.split(), "results_txt", "vocab_file"}
    assert "model_dir" not in json.loads(path.read_text())
