# SPDX-License-Identifier: Apache-2.0
"""What has left is refused by its row of `LEFT`, and otherwise read."""

import dataclasses

import pytest

from electra_tf import cli, errors
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.objectives import translated
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.errors import LEFT, Left, UserError

CONFIGS = PretrainingConfig, FinetuningConfig


def refused(name, capsys):
    """The message for a flag, a hparam or a value of a hparam."""
    if name.startswith("--"):
        with pytest.raises(SystemExit) as ended:
            cli._parse_flags(["script.py", f"{name}=1"], {})
        assert ended.value.code == errors.EXIT_FLAGS
        return capsys.readouterr().err
    hparam, _, value = name.partition(" ")
    kinds = [c for c in CONFIGS if hparam in {f.name for f in dataclasses.fields(c)}]
    assert bool(kinds) == bool(value), name
    with pytest.raises(UserError) as caught:
        (kinds or CONFIGS)[0].checked({hparam: value or "another"}, "--hparams")
    return str(caught.value)


@pytest.mark.parametrize("name", [*LEFT, "--a-flag"])
def test_what_has_left_is_refused_with_its_message(name, monkeypatch, capsys):
    monkeypatch.setitem(LEFT, "--a-flag", Left("use datatrove"))
    message = refused(name, capsys)
    assert message.removeprefix("error: ").startswith(name.partition("=")[0])
    assert f" {LEFT[name].message}." in message
    assert message.count("\n") <= 2


@pytest.mark.parametrize("name", [n for n in LEFT if " " not in n and n[:2] != "--"])
def test_former_defaults_of_a_saved_config_are_dropped(name):
    formers = LEFT[name].default
    for former in formers if isinstance(formers, tuple) else (formers,):
        for config in CONFIGS:
            assert config.checked({name: former, "seed": 3}, "c.json") == {"seed": 3}


def test_shapes_of_earlier_versions_are_read_without_what_left(tmp_path):
    shape = {"hidden_size": 32, "attention_chunk_size": 8}
    stored = {"model_hparam_overrides": shape, "seed": 3}
    assert translated(stored)["model_hparam_overrides"] == {"hidden_size": 32}
    for config in CONFIGS:
        with pytest.raises(UserError, match="attention_chunk_size in the model_hparam"):
            config.checked(stored, "--hparams")
        stored["model_hparam_overrides"] = shape | {"attention_chunk_size": 0}
        found = config.checked(stored, "c.json")
        assert found["model_hparam_overrides"] == {"hidden_size": 32}
        stored["model_hparam_overrides"] = shape


def test_settings_in_checkpoints_of_earlier_versions_are_read_without_what_left():
    stored = {"rare_mask_power": 0.5, "contrastive_weight": 0.0, "seed": 3}
    assert translated(stored) == {"seed": 3}
