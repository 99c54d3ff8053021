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


def refused(*words, make=make, **hparams):
    with pytest.raises(UserError) as caught:
        make(**hparams)
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert str(caught.value).count("\n") <= 2
    assert caught.value.exit_code == EXIT_CONFIG


def test_a_run_without_phases_is_one():
    config = make()
    (phase,) = config.run_phases()
    assert phase.config is config
    assert (phase.number, phase.first, phase.end) == (1, 0, config.num_train_steps)


def test_each_phase_is_an_ordinary_run():
    config = make(SHORT, LONG, learning_rate=2e-3, num_warmup_steps=7)
    first, second = config.run_phases()
    assert (first.first, first.end) == (0, 900)
    assert (second.first, second.end) == (900, 1000)
    records = "pretrain_data.tfrecord*"
    usual = {"learning_rate": 2e-3, "num_warmup_steps": 7}
    for phase, said, folder in (
        (first, usual | SHORT, "pretrain_tfrecords_64"),
        (second, usual | LONG, "pretrain_tfrecords_256"),
    ):
        place = f"D/{folder}/{records}"
        places = {"pretrain_tfrecords": place, "eval_tfrecords": place}
        assert phase.config == make(**said | places)
    # What the whole run is asked for is what the last phase has, and all steps.
    assert (config.num_train_steps, config.max_seq_length) == (1000, 256)
    assert (config.train_batch_size, config.learning_rate) == (128, 1e-4)
    assert [config.phase_at(s).number for s in (0, 899, 900, 999, 5000)] == [
        *(1, 1, 2, 2, 2)
    ]


def test_where_the_data_are():
    def places(*parts, **hparams):
        return [
            (phase.config.pretrain_tfrecords, phase.config.eval_tfrecords)
            for phase in make(*parts, **hparams).run_phases()
        ]

    usual = "D/pretrain_tfrecords/pretrain_data.tfrecord*"
    # Of one length, there is but one data set.
    same = [part | {"max_seq_length": 64} for part in (SHORT, LONG)]
    assert places(*same) == [(usual, usual)] * 2
    assert places(*same, pretrain_tfrecords="P*") == [("P*", "P*")] * 2
    assert places(*same, eval_tfrecords="E*") == [(usual, "E*")] * 2
    own = {"pretrain_tfrecords": "Q*"}
    assert places(SHORT | own, LONG | own | {"eval_tfrecords": "E*"}) == [
        *(("Q*", "Q*"), ("Q*", "E*"))
    ]


def test_the_saved_config_is_the_run_again(tmp_path):
    path = str(tmp_path / "config.json")
    own = {"pretrain_tfrecords": "Q*"}
    config = make(SHORT, LONG | own, learning_rate=2e-3)
    config.save(path)
    saved = read_hparams(path)
    assert make(config=saved) == config
    # Places that follow from --data-dir are not written down.
    assert [("pretrain_tfrecords" in part) for part in saved["phases"]] == [False, True]
    refused(
        *("learning_rate 0.002", "no effect", "each phase"),
        make=lambda: make(config=saved, learning_rate=2e-3),
    )


@pytest.mark.parametrize(
    "parts, hparams, words",
    [
        ([SHORT, 3], {}, ["phase 2 of --hparams", "3", "object"]),
        ([{"max_seq_length": 64}], {}, ["phase 1 of --hparams", "num_train_steps"]),
        (
            [SHORT | {"learning_rat": 1}],
            {},
            ["learning_rat", "phase 1", "did you mean"],
        ),
        ([SHORT, LONG | {"mask_prob": 0.2}], {}, ["mask_prob in phase 2", "whole run"]),
        ([SHORT | {"learning_rate": 0}], {}, ["learning_rate", "phase 1", "> 0"]),
        ([SHORT, LONG], {"num_train_steps": 10}, ["num_train_steps 10", "their sum"]),
        ([SHORT, LONG], {"max_seq_length": 64}, ["max_seq_length 64", "no effect"]),
        (
            [SHORT | {"max_seq_length": 513}, LONG],
            {},
            ["phase 1:", "max_seq_length 513", "max_position_embeddings"],
        ),
        (
            [SHORT, LONG | {"gradient_accumulation_steps": 3}],
            {},
            ["phase 2:", "gradient_accumulation_steps 3", "128"],
        ),
        (
            [SHORT, LONG | {"schedule": "linear"}],
            {"lr_decay_power": 0.5},
            ["phase 2:", "lr_decay_power", '"linear"'],
        ),
        ([SHORT, LONG], {"objective": "two_stage"}, ["two_stage", "phases"]),
        ([], {"sample_steps": 5, "electra_objective": False}, ["sample_steps", "mlm"]),
    ],
)
def test_what_makes_no_sense_is_refused(parts, hparams, words):
    refused(*words, make=lambda: make(*parts, **hparams))


def test_a_phase_that_never_warms_up_is_noted():
    (note,) = make(SHORT, LONG, num_warmup_steps=500).notes()
    assert "num_warmup_steps (500)" in note and "(100) in phase 2" in note


def test_what_a_begun_run_may_change():
    """Later phases and the end of the one it is in; not what is behind it."""
    begun = make(SHORT, LONG)
    more = LONG | {"num_train_steps": 300}

    def check(step, *parts, stored=begun, **hparams):
        phases.check_passed(stored.settings(), make(*parts, **hparams), step)

    check(500, SHORT, more)
    check(500, SHORT | {"learning_rate": 1e-5})
    check(500, SHORT | {"num_train_steps": 500}, LONG)
    check(900, SHORT | {"num_train_steps": 950}, LONG)  # nothing of phase 2 is made
    check(901, SHORT, more)
    check(901, SHORT, LONG, SHORT)
    check(901, SHORT, LONG | {"train_batch_size": 4, "max_seq_length": 128})
    check(1000, SHORT, more)
    for step, words, parts in (
        (500, ["num_train_steps 900", "400"], [SHORT | {"num_train_steps": 400}, LONG]),
        (901, ["num_train_steps 900", "950"], [SHORT | {"num_train_steps": 950}, LONG]),
        (901, ["max_seq_length 64", "128"], [SHORT | {"max_seq_length": 128}, LONG]),
        (901, ["max_seq_length 64", "256"], [LONG | {"num_train_steps": 900}, LONG]),
        (900, ["train_batch_size 16", "4"], [SHORT | {"train_batch_size": 4}, LONG]),
        (
            500,
            ["train_batch_size 16", "4"],
            [SHORT | {"num_train_steps": 500, "train_batch_size": 4}, LONG],
        ),
    ):
        words = [f"phase 1 of this run, which is at step {step}", *words]
        refused(*words, make=lambda step=step, parts=parts: check(step, *parts))
    refused(
        "num_train_steps 900", "2000", make=lambda: check(901, num_train_steps=2000)
    )


def test_a_run_without_phases_goes_on_with_them():
    whole = make(num_train_steps=900, max_seq_length=64, train_batch_size=16)
    for step in (5, 900):
        phases.check_passed(whole.settings(), make(SHORT, LONG), step)
        phases.check_passed(whole.settings(), make(num_train_steps=7), step)
    other = SHORT | {"learning_rate": 0.9}
    words = "phase 1", "learning_rate 0.0005", "0.9"
    refused(
        *words,
        make=lambda: phases.check_passed(whole.settings(), make(other, LONG), 900),
    )
    # Checkpoints of earlier versions know nothing of phases.
    old = {k: v for k, v in whole.settings().items() if k not in ("phases", "schedule")}
    phases.check_passed(old, make(SHORT, LONG), 900)
    refused(
        "num_train_steps 900",
        make=lambda: phases.check_passed(
            old, make(SHORT | {"num_train_steps": 800}, LONG), 900
        ),
    )


def test_another_batch_size_in_a_phase_that_has_begun():
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
    # With phases it goes on where it was.
    parts = {"num_train_steps": 100, "train_batch_size": 16}, larger
    assert phases.batch_size_note(whole, make(*parts), 100) is None


def test_other_data_are_told_of_the_phase_that_has_begun():
    whole = make(num_train_steps=1000)
    two = make(SHORT, LONG)
    three = make(SHORT, LONG, LONG)

    def told(config, before, now, step, **changes):
        stored = {"data": before, "sampling_alpha": 1.0}
        settings = {"data": now, "sampling_alpha": 1.0} | changes
        return phases.other_data_note(stored, settings, config, step) is not None

    assert not told(whole, ["a"], ["a"], 5)
    assert told(whole, ["a"], ["b"], 5) and not told(whole, ["a"], ["b"], 0)
    assert told(whole, ["a"], ["b"], 5, phases=["they are compared elsewhere"])
    assert told(whole, ["a"], ["a"], 5, sampling_alpha=0.5)
    # A run of 900 steps goes on: as one, or with another phase.
    assert told(whole, ["a"], ["b"], 900)
    assert not told(two, ["a"], ["a", "b"], 900)
    # Of a phase that is over they may be gone, of another nothing was read.
    assert not told(two, ["a", "b"], ["", "b"], 901)
    assert not told(two, ["a", "b"], ["", "c"], 900)
    assert not told(two, ["a", "b"], ["a", "c"], 899)
    assert not told(three, ["a", "b"], ["", "b", "c"], 950)
    assert told(two, ["a", "b"], ["c", "b"], 899)
    assert told(two, ["a", "b"], ["a", "c"], 901)
    # An earlier version did not say it.
    settings = {"data": ["a"], "sampling_alpha": 1.0}
    assert phases.other_data_note({}, settings, whole, 5) is None


def test_checkpoints_store_phases_without_their_places():
    stored = make(SHORT, LONG | {"pretrain_tfrecords": "Q*"}).settings()["phases"]
    assert [sorted(part) for part in stored] == [sorted(phases.SETTINGS)] * 2
    assert make().settings()["phases"] == []


def test_what_had_begun_at_a_step():
    config = make(SHORT, LONG, num_warmup_steps=7).to_dict()
    for step, lengths in ((0, [64]), (900, [64]), (901, [64, 256]), (1000, [64, 256])):
        found = phases.begun(config, step)
        assert [part["max_seq_length"] for part in found] == lengths
        assert found[0]["num_train_steps"] == 900
        assert found[0]["mask_prob"] == config["mask_prob"]
    whole = make().to_dict()
    assert phases.begun(whole, 5) == [whole]


def test_where_a_run_switches():
    assert phases.switches(make(SHORT, LONG, SHORT).to_dict()) == [900, 1000]
    assert phases.switches(make().to_dict()) == []
    stages = make(objective="two_stage", num_train_steps=10, stage_one_steps=4)
    assert phases.switches(stages.to_dict()) == [4]
    first, second = phases.of(stages)
    assert (first.first, first.end, first.stage) == (0, 4, 1)
    assert (second.first, second.end, second.stage) == (4, 10, 2)
    assert first.config.stage_one_steps is second.config.stage_one_steps is None
    assert [phase.stage for phase in phases.of(make(SHORT, LONG))] == [None, None]


def test_chunks_that_hold_all_are_noted():
    def notes(chunk):
        overrides = {"attention_chunk_size": chunk}
        return make(SHORT, LONG, model_hparam_overrides=overrides).notes()

    assert notes(0) == notes(255) == make(SHORT, LONG).notes()
    (note,) = set(notes(256)) - set(notes(255))
    assert "attention_chunk_size (256)" in note


def test_other_phases_than_those_of_a_saved_config(tmp_path):
    """They have the defaults that they would have without it."""
    make(SHORT, LONG, mask_prob=0.3).save(str(tmp_path / "config.json"))
    saved = read_hparams(str(tmp_path / "config.json"))
    assert make(config=saved) == make(SHORT, LONG, mask_prob=0.3)
    for parts in ([SHORT | {"num_train_steps": 800}, LONG], [SHORT, LONG, LONG]):
        assert make(*parts, config=saved) == make(*parts, mask_prob=0.3)
    refused("learning_rate", "no effect", make=make, config=saved, learning_rate=0.3)
