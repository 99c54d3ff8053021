# SPDX-License-Identifier: Apache-2.0
"""Cards and pages of models: recorded facts, and missing ones."""

from pathlib import Path

import pytest

from electra_tf.export import hub_card
from tests.helpers import tiny_trials
from tests.helpers.exporting import tiny_source

KINDS = ("encoder", "preprocessor", "detector")


def card_of(facts, kinds=KINDS):
    return hub_card.model_card("m", facts, "mit", dict.fromkeys(kinds, 0.0))


@pytest.mark.parametrize("run_dir", [None, "there"])
def test_card_of_a_checkpoint_marks_missing_facts(tmp_path, run_dir):
    """Such as a checkpoint of the original."""
    source = tiny_source("electric")
    facts = hub_card.facts_of(source, run_dir and tmp_path / "models" / "m")
    kinds = hub_card.kinds_of(source)
    assert kinds == ["encoder", "preprocessor", "detector", "scorer"]
    for data in (facts.data, [{}], [{"corpus": None}]):
        card = card_of(facts._replace(data=data), kinds)
        assert "Not recorded" in card and "Not evaluated" in card
        assert "noise-contrastive" in card and "None" not in card
        # Its steps may be another program's, or those of fine-tuning.
        assert "Exported with electra_tf" in card and " steps " not in card


def test_card_of_a_fine_tuned_model_omits_its_pre_training(tmp_path):
    data = tiny_trials.write_data(tmp_path / "data")
    config, *_ = tiny_trials.write_run(data, {"task_names": ["cola"]})
    facts = hub_card.facts_of(tiny_source(), Path(config.trial_dir(1)))
    assert facts.hparams is None and not facts.results and not facts.data


def test_card_names_the_initial_weights():
    facts = hub_card.facts_of(tiny_source())
    hparams = {"num_train_steps": 9, "init_checkpoint": "/home/me/old/model.ckpt-5"}
    for given, words in (
        (hparams, "for 7 steps with electra_tf, from the weights of old/model.c"),
        (hparams | {"init_checkpoint": None}, "for 7 steps with electra_tf. "),
    ):
        facts = facts._replace(hparams=given)
        assert words in card_of(facts) and "/home/me" not in card_of(facts)
        is_known = bool(given["init_checkpoint"])
        assert ("trained on before" in card_of(facts)) == is_known


def test_card_of_a_run_in_phases():
    source = tiny_source()
    facts = hub_card.facts_of(source)
    parts = [
        {"num_train_steps": 90, "max_seq_length": 16, "learning_rate": 0.1},
        {"num_train_steps": 10, "max_seq_length": 32, "learning_rate": 0.1},
    ]
    hparams = {"num_train_steps": 100, "max_seq_length": 32, "learning_rate": 0.1}
    corpus = {"files": 1, "bytes": 9, "names": ["a"], "sha256": "0"}
    corpus |= {"examples": 3, "tokens_kept": 5}
    data = [{"corpus": corpus, "max_seq_length": n} for n in (16, 32)]
    facts = facts._replace(hparams=hparams | {"phases": parts}, data=data)
    for step, steps, lengths in ((50, "90", "16"), (95, "90, then 10", "16, then 32")):
        source = source._replace(facts={"step": step})
        card = card_of(facts._replace(source=source))
        assert f"| num_train_steps | {steps} |" in card
        assert f"| max_seq_length | {lengths} |" in card
        assert "| learning_rate | 0.1 |" in card
        assert "\n\n\n" not in card
    assert "examples of up to 16 tokens" in card and "up to 32 tokens" in card
