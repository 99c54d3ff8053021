# SPDX-License-Identifier: Apache-2.0
"""Phases of a run: how they are resolved, what is refused, what may be changed."""

import pytest

from electra_tf.config.pretraining import (
    PHASE_SETTINGS,
    PretrainingConfig,
    read_hparams,
    started_phases,
    switches,
)
from electra_tf.errors import EXIT_CONFIG
from tests.helpers.runs import refused

SHORT = {"num_train_steps": 900, "max_seq_length": 64, "train_batch_size": 16}
LONG = {"num_train_steps": 100, "max_seq_length": 256, "learning_rate": 1e-4}


def make(*parts, config=None, **hparams):
    given = {"phases": list(parts)} if parts else {}
    return PretrainingConfig.from_hparams("D", "m", hparams | given, config)


def test_each_phase_is_an_ordinary_run():
    config = make(SHORT, LONG, learning_rate=2e-3, num_warmup_steps=7)
    first, second = config.run_phases()
    assert (first.first, first.end, second.first, second.end) == (0, 900, 900, 1000)
    usual = {"learning_rate": 2e-3, "num_warmup_steps": 7}
    for phase, given, folder in (
        (first, usual | SHORT, "pretrain_tfrecords_64"),
        (second, usual | LONG, "pretrain_tfrecords_256"),
    ):
        place = f"D/{folder}/pretrain_data.tfrecord*"
        places = {"pretrain_tfrecords": place, "eval_tfrecords": place}
        assert phase.config == make(**given | places)
    # The whole run has the hparams of its last phase, and all steps.
    assert (config.num_train_steps, config.max_seq_length) == (1000, 256)
    assert (config.train_batch_size, config.learning_rate) == (128, 1e-4)
    numbers = [config.phase_at(step).number for step in (0, 899, 900, 999, 5000)]
    assert numbers == [1, 1, 2, 2, 2]
    (only,) = make().run_phases()
    assert (only.config, only.first, only.end) == (make(), 0, make().num_train_steps)


def test_stages_are_phases():
    stages = make(objective="two_stage", num_train_steps=10, stage_one_steps=4)
    first, second = stages.run_phases()
    assert (first.first, first.end, first.objective) == (0, 4, "mlm")
    assert (second.first, second.end, second.objective) == (4, 10, "two_stage")
    assert (first.learns, second.learns) == (("generator",), ("main",))
    assert first.config.stage_one_steps is second.config.stage_one_steps is None


def test_data_of_phases():
    usual = "D/pretrain_tfrecords/pretrain_data.tfrecord*"
    # Of one length, there is one data set.
    same = [part | {"max_seq_length": 64} for part in (SHORT, LONG)]
    own = {"pretrain_tfrecords": "Q*"}
    for parts, hparams, expected in (
        (same, {}, [(usual, usual)] * 2),
        (same, {"pretrain_tfrecords": "P*"}, [("P*", "P*")] * 2),
        (same, {"eval_tfrecords": "E*"}, [(usual, "E*")] * 2),
        (
            [SHORT | own, LONG | own | {"eval_tfrecords": "E*"}],
            {},
            [("Q*", "Q*"), ("Q*", "E*")],
        ),
    ):
        configs = [phase.config for phase in make(*parts, **hparams).run_phases()]
        found = [
            (config.pretrain_tfrecords, config.eval_tfrecords) for config in configs
        ]
        assert found == expected


def test_each_phase_may_mix_data():
    """`sampling_alpha` applies to phases with several data sets without weights."""
    data = ["a", "b"], "c", {"a": 1, "c": 3}
    parts = [{"num_train_steps": 5, "pretrain_tfrecords": place} for place in data]
    configs = [part.config for part in make(*parts, sampling_alpha=0.3).run_phases()]
    assert [config.sampling_alpha for config in configs] == [0.3, 1.0, 1.0]
    assert tuple(config.pretrain_tfrecords for config in configs) == data
    refused(lambda: make(*parts[1:], sampling_alpha=0.3), "sampling_alpha 0.3")


def test_saved_config_is_the_same_run(tmp_path):
    path = str(tmp_path / "config.json")
    own = {"pretrain_tfrecords": "Q*"}
    config = make(SHORT, LONG | own, learning_rate=2e-3, mask_prob=0.3)
    config.save(path)
    saved = read_hparams(path)
    assert make(config=saved) == config
    # Places that follow from --data-dir are not saved.
    assert [("pretrain_tfrecords" in part) for part in saved["phases"]] == [False, True]
    words = "learning_rate", "no effect"
    refused(lambda: make(config=saved, learning_rate=2e-3), *words)
    # Other phases have the defaults that they would have without the saved ones.
    make(SHORT, LONG, mask_prob=0.3).save(path)
    saved = read_hparams(path)
    for parts in ([SHORT | {"num_train_steps": 800}, LONG], [SHORT, LONG, LONG]):
        assert make(*parts, config=saved) == make(*parts, mask_prob=0.3)


@pytest.mark.parametrize(
    "parts, hparams, words",
    [
        ([SHORT, 3], {}, ["phase 2 of --hparams", "3", "object"]),
        ([{"max_seq_length": 64}], {}, ["phase 1 of --hparams", "num_train_steps"]),
        ([SHORT | {"learning_rat": 1}], {}, ["learning_rat", "phase 1", "did you"]),
        ([SHORT, LONG | {"seed": 2}], {}, ["seed in phase 2", "whole run"]),
        ([SHORT | {"learning_rate": 0}], {}, ["learning_rate", "phase 1", "> 0"]),
        ([SHORT, LONG], {"num_train_steps": 10}, ["num_train_steps 10", "run 1000"]),
        ([SHORT, LONG], {"max_seq_length": 64}, ["max_seq_length 64", "no effect"]),
        ([SHORT | {"max_seq_length": 513}, LONG], {}, ["phase 1:", "513"]),
        ([SHORT, LONG | {"schedule": "linear"}], {"lr_decay_power": 0.5}, ["phase 2:"]),
        ([SHORT, LONG], {"objective": "two_stage"}, ["two_stage", "phases"]),
    ],
)
def test_impossible_phases_are_refused(parts, hparams, words):
    refused(lambda: make(*parts, **hparams), *words, code=EXIT_CONFIG)


def test_notes():
    (note,) = make(SHORT, LONG, num_warmup_steps=500).notes()
    assert "num_warmup_steps (500)" in note and "(100) in phase 2" in note


def test_phases_begun_at_a_step():
    config = make(SHORT, LONG, num_warmup_steps=7).to_dict()
    for step, lengths in ((0, [64]), (900, [64]), (901, [64, 256]), (1000, [64, 256])):
        found = started_phases(config, step)
        assert [part["max_seq_length"] for part in found] == lengths
        assert found[0]["num_train_steps"] == 900
        assert found[0]["mask_prob"] == config["mask_prob"]
    whole = make().to_dict()
    assert started_phases(whole, 5) == [whole]
    # Checkpoints store phases without their places.
    stored = make(SHORT, LONG | {"pretrain_tfrecords": "Q*"}).settings()["phases"]
    assert [sorted(part) for part in stored] == [sorted(PHASE_SETTINGS)] * 2


def test_switches():
    stages = make(objective="two_stage", num_train_steps=10, stage_one_steps=4)
    assert switches(stages.to_dict()) == [4]
    assert switches(make(SHORT, LONG, SHORT).to_dict()) == [900, 1000]
    assert switches(make().to_dict()) == []
