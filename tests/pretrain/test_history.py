# SPDX-License-Identifier: Apache-2.0
"""What a run has done at a step, and what may be changed when it is continued."""

import pytest

from electra_tf.config.pretraining import PHASE_SETTINGS
from electra_tf.pretrain import history
from tests.config.test_phases import LONG, SHORT, make, refused

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
        history.check_passed(stored, config, step)
    else:
        words = [f"phase 1 of this run, which is at step {step}", words]
        refused(words, history.check_passed, stored, config, step)


def test_phases_begun_at_a_step():
    config = make(SHORT, LONG, num_warmup_steps=7).to_dict()
    for step, lengths in ((0, [64]), (900, [64]), (901, [64, 256]), (1000, [64, 256])):
        found = history.started_phases(config, step)
        assert [part["max_seq_length"] for part in found] == lengths
        assert found[0]["num_train_steps"] == 900
        assert found[0]["mask_prob"] == config["mask_prob"]
    whole = make().to_dict()
    assert history.started_phases(whole, 5) == [whole]
    # Checkpoints store phases without their places.
    stored = make(SHORT, LONG | {"pretrain_tfrecords": "Q*"}).settings()["phases"]
    assert [sorted(part) for part in stored] == [sorted(PHASE_SETTINGS)] * 2


def test_switches():
    stages = make(objective="two_stage", num_train_steps=10, stage_one_steps=4)
    assert history.switches(stages.to_dict()) == [4]
    assert history.switches(make(SHORT, LONG, SHORT).to_dict()) == [900, 1000]
    assert history.switches(make().to_dict()) == []
