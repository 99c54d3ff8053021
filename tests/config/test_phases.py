# SPDX-License-Identifier: Apache-2.0
"""Phases of a run: how they are resolved, what is refused, what may be changed."""

import pytest

from electra_tf.config import phases
from electra_tf.config.pretraining import PretrainingConfig, read_hparams
from electra_tf.errors import EXIT_CONFIG, UserError

SHORT = {"num_train_steps": 900, "max_seq_length": 64, "train_batch_size": 16}
LONG = {"num_train_steps": 100, "max_seq_length": 256, "learning_rate": 1e-4}


def make(*parts, config=None, **hparams):
    given = {"phases": list(parts)} if parts else {}
    return PretrainingConfig.from_hparams("D", "m", hparams | given, config)


def refused(words, function, *args, **kwargs):
    with pytest.raises(UserError) as caught:
        function(*args, **kwargs)
    assert all(word in str(caught.value) for word in words), caught.value
    assert caught.value.exit_code == EXIT_CONFIG


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
    first, second = phases.of(stages)
    assert (first.first, first.end, first.stage) == (0, 4, 1)
    assert (second.first, second.end, second.stage) == (4, 10, 2)
    assert first.config.stage_one_steps is second.config.stage_one_steps is None
    assert phases.switches(stages.to_dict()) == [4]
    assert phases.switches(make(SHORT, LONG, SHORT).to_dict()) == [900, 1000]
    assert phases.switches(make().to_dict()) == []


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
    refused(["sampling_alpha is 0.3"], make, *parts[1:], sampling_alpha=0.3)


def test_saved_config_is_the_same_run(tmp_path):
    path = str(tmp_path / "config.json")
    own = {"pretrain_tfrecords": "Q*"}
    config = make(SHORT, LONG | own, learning_rate=2e-3, mask_prob=0.3)
    config.save(path)
    saved = read_hparams(path)
    assert make(config=saved) == config
    # Places that follow from --data-dir are not saved.
    assert [("pretrain_tfrecords" in part) for part in saved["phases"]] == [False, True]
    refused(["learning_rate", "no effect"], make, config=saved, learning_rate=2e-3)
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
        ([SHORT, LONG | {"mask_prob": 0.2}], {}, ["mask_prob in phase 2", "whole run"]),
        ([SHORT | {"learning_rate": 0}], {}, ["learning_rate", "phase 1", "> 0"]),
        ([SHORT, LONG], {"num_train_steps": 10}, ["num_train_steps 10", "their sum"]),
        ([SHORT, LONG], {"max_seq_length": 64}, ["max_seq_length 64", "no effect"]),
        ([SHORT | {"max_seq_length": 513}, LONG], {}, ["phase 1:", "513"]),
        ([SHORT, LONG | {"gradient_accumulation_steps": 3}], {}, ["phase 2:", "128"]),
        ([SHORT, LONG | {"schedule": "linear"}], {"lr_decay_power": 0.5}, ["phase 2:"]),
        ([SHORT, LONG], {"objective": "two_stage"}, ["two_stage", "phases"]),
        ([], {"sample_steps": 5, "electra_objective": False}, ["sample_steps", "mlm"]),
    ],
)
def test_impossible_phases_are_refused(parts, hparams, words):
    refused(words, make, *parts, **hparams)


def test_notes():
    (note,) = make(SHORT, LONG, num_warmup_steps=500).notes()
    assert "num_warmup_steps (500)" in note and "(100) in phase 2" in note

    def of_chunks(size):
        overrides = {"attention_chunk_size": size}
        return make(SHORT, LONG, model_hparam_overrides=overrides).notes()

    assert of_chunks(0) == of_chunks(255) == make(SHORT, LONG).notes()
    (note,) = set(of_chunks(256)) - set(of_chunks(255))
    assert "attention_chunk_size (256)" in note


MORE = LONG | {"num_train_steps": 300}
WHOLE = make(num_train_steps=900, max_seq_length=64, train_batch_size=16)


@pytest.mark.parametrize(
    "begun, step, parts, words",
    [
        # Later phases and the end of the current one may change.
        (make(SHORT, LONG), 500, [SHORT, MORE], None),
        (make(SHORT, LONG), 500, [SHORT | {"learning_rate": 1e-5}], None),
        (make(SHORT, LONG), 500, [SHORT | {"num_train_steps": 500}, LONG], None),
        (make(SHORT, LONG), 900, [SHORT | {"num_train_steps": 950}, LONG], None),
        (make(SHORT, LONG), 901, [SHORT, MORE], None),
        (make(SHORT, LONG), 901, [SHORT, LONG, SHORT], None),
        (make(SHORT, LONG), 901, [SHORT, LONG | {"train_batch_size": 4}], None),
        (make(SHORT, LONG), 1000, [SHORT, MORE], None),
        # A run without phases is one phase.
        (WHOLE, 5, [SHORT, LONG], None),
        (WHOLE, 900, [SHORT, LONG], None),
        (WHOLE, 900, [SHORT | {"learning_rate": 0.9}, LONG], "learning_rate 0.0005"),
        # Finished phases cannot be changed.
        (make(SHORT, LONG), 500, [SHORT | {"num_train_steps": 400}, LONG], "400"),
        (make(SHORT, LONG), 901, [SHORT | {"num_train_steps": 950}, LONG], "950"),
        (make(SHORT, LONG), 901, [SHORT | {"max_seq_length": 128}, LONG], "128"),
        (make(SHORT, LONG), 901, [LONG | {"num_train_steps": 900}, LONG], "256"),
        (make(SHORT, LONG), 900, [SHORT | {"train_batch_size": 4}, LONG], "size 16"),
        (
            make(SHORT, LONG),
            500,
            [SHORT | {"num_train_steps": 500, "train_batch_size": 4}, LONG],
            "train_batch_size 16",
        ),
    ],
)
def test_changes_of_a_begun_run(begun, step, parts, words):
    stored, config = begun.settings(), make(*parts)
    if words is None:
        phases.check_passed(stored, config, step)
    else:
        words = [f"phase 1 of this run, which is at step {step}", words]
        refused(words, phases.check_passed, stored, config, step)


def test_note_on_another_batch_size_in_the_current_phase():
    size = make(SHORT, LONG).phases[1]["train_batch_size"]
    larger = LONG | {"train_batch_size": 2 * size}
    begun = make(SHORT, LONG).settings()
    for step, parts in ((900, (SHORT, larger)), (950, (SHORT, LONG, larger))):
        assert phases.batch_size_note(begun, make(*parts), step) is None
    note = phases.batch_size_note(begun, make(SHORT, larger), 950)
    assert f"examples {50 * size:,} to {100 * size:,} are left out" in note
    whole = make(train_batch_size=16).settings()
    assert phases.batch_size_note(whole, make(train_batch_size=16), 100) is None
    note = phases.batch_size_note(whole, make(train_batch_size=8), 100)
    assert "was 16 up to here" in note and "examples 800 to 1,600 are read" in note
    # A new phase continues at the same example.
    parts = {"num_train_steps": 100, "train_batch_size": 16}, larger
    assert phases.batch_size_note(whole, make(*parts), 100) is None


def test_note_on_other_data_in_the_current_phase():
    whole, two = make(num_train_steps=1000), make(SHORT, LONG)
    for config, before, now, step, noted in (
        (whole, ["a"], ["a"], 5, False),
        (whole, ["a"], ["b"], 5, True),
        (whole, ["a"], ["b"], 0, False),
        # A run of 900 steps is continued as one, or with another phase.
        (whole, ["a"], ["b"], 900, True),
        (two, ["a"], ["a", "b"], 900, False),
        # Data of a finished phase may be gone; of a later one nothing was read.
        (two, ["a", "b"], ["", "b"], 901, False),
        (two, ["a", "b"], ["", "c"], 900, False),
        (two, ["a", "b"], ["a", "c"], 899, False),
        (make(SHORT, LONG, LONG), ["a", "b"], ["", "b", "c"], 950, False),
        (two, ["a", "b"], ["c", "b"], 899, True),
        (two, ["a", "b"], ["a", "c"], 901, True),
    ):
        stored = {"data": before, "sampling_alpha": 1.0}
        note = phases.other_data_note(stored, stored | {"data": now}, config, step)
        assert (note is not None) == noted, (before, now, step)
    other = stored | {"sampling_alpha": 0.5}
    assert phases.other_data_note(stored, other, two, 5) is not None


def test_phases_begun_at_a_step():
    config = make(SHORT, LONG, num_warmup_steps=7).to_dict()
    for step, lengths in ((0, [64]), (900, [64]), (901, [64, 256]), (1000, [64, 256])):
        found = phases.begun(config, step)
        assert [part["max_seq_length"] for part in found] == lengths
        assert found[0]["num_train_steps"] == 900
        assert found[0]["mask_prob"] == config["mask_prob"]
    whole = make().to_dict()
    assert phases.begun(whole, 5) == [whole]
    # Checkpoints store phases without their places.
    stored = make(SHORT, LONG | {"pretrain_tfrecords": "Q*"}).settings()["phases"]
    assert [sorted(part) for part in stored] == [sorted(phases.SETTINGS)] * 2
