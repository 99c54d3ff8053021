# SPDX-License-Identifier: Apache-2.0
"""What cards and pages of models say, and what they admit not to know."""

from pathlib import Path

import pytest

from electra_tf.export import hub_card, hub_directory
from tests.helpers import tiny_trials
from tests.helpers.exporting import tiny_source

KINDS = ("encoder", "preprocessor", "detector")


@pytest.mark.parametrize("run_dir", [None, "there"])
def test_card_of_a_checkpoint_admits_what_it_does_not_know(tmp_path, run_dir):
    """Such as one of the original's in the place of a run."""
    source = tiny_source("electric")
    run_dir = run_dir and tmp_path / "models" / "m"
    facts = hub_directory.facts_of(source, run_dir)
    kinds = hub_directory.kinds_of(source)
    assert kinds == ["encoder", "preprocessor", "detector", "scorer"]
    gaps = dict.fromkeys(kinds, 0.0)
    card = hub_card.model_card("m", "a/b", facts, "mit", kinds, gaps)
    assert "Not recorded" in card and "Not evaluated" in card
    assert "noise-contrastive" in card and "None" not in card
    for data in ({}, {"corpus": None}, {"corpus": []}):
        card = hub_card.model_card(
            "m", "a/b", facts._replace(data=[data]), "mit", kinds, gaps
        )
        assert "Not recorded" in card and "None" not in card
    # The steps may be another program's, or those of a fine-tuning.
    assert "Exported with electra_tf" in card and " steps " not in card


def test_card_of_a_fine_tuned_model_has_no_facts_of_its_pre_training(tmp_path):
    data = tiny_trials.write_data(tmp_path / "data")
    config, *_ = tiny_trials.write_run(data, {"task_names": ["cola"]})
    facts = hub_directory.facts_of(tiny_source(), Path(config.trial_dir(1)))
    assert facts.hparams is None and facts.results is None and facts.data == []


def test_card_names_the_weights_that_a_run_began_with():
    facts = hub_directory.facts_of(tiny_source())._replace(step=7)
    hparams = {"num_train_steps": 9, "init_checkpoint": "/home/me/old/model.ckpt-5"}
    gaps = dict.fromkeys(KINDS, 0.0)
    for given, words in (
        (hparams, "for 7 steps with electra_tf, from the weights of old/model.c"),
        (hparams | {"init_checkpoint": None}, "for 7 steps with electra_tf. "),
    ):
        facts = facts._replace(hparams=given)
        card = hub_card.model_card("m", "a/b", facts, "mit", KINDS, gaps)
        page = hub_card.hub_page("encoder", "a/b", facts, "mit")
        for text in (card, page):
            assert words in text and "/home/me" not in text
        assert ("trained on before" in card) == bool(given["init_checkpoint"])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"is_training_data": True}, "on the data that it was trained on."),
        ({"is_training_data": False}, "on the data that eval_tfrecords names besides."),
        ({}, "on the data that the run evaluates on."),
    ],
)
def test_card_says_whether_metrics_are_of_text_that_was_learnt(said, words):
    results = {"global_step": 7, "metrics": {"loss": 20.5}} | said
    facts = hub_directory.facts_of(tiny_source())._replace(results=results)
    gaps = dict.fromkeys(KINDS, 0.0)
    assert words in hub_card.model_card("m", "a/b", facts, "mit", KINDS, gaps)


def test_card_of_two_towers_has_the_program_of_their_generator():
    source = tiny_source("two_tower_alone")
    facts = hub_directory.facts_of(source)
    kinds = hub_directory.kinds_of(source)
    assert kinds == ["generator"]
    gaps = dict.fromkeys(kinds, 0.0)
    card = hub_card.model_card("m", "a/b", facts, "mit", kinds, gaps)
    assert 'load("generator")' in card and "generator.tar.gz" in card
    for absent in ("encoder", "preprocessor", "pooled_output", "detector"):
        assert absent not in card


def test_card_of_a_run_in_phases():
    facts = hub_directory.facts_of(tiny_source())
    parts = [
        {"num_train_steps": 90, "max_seq_length": 16, "learning_rate": 0.1},
        {"num_train_steps": 10, "max_seq_length": 32, "learning_rate": 0.1},
    ]
    hparams = {"num_train_steps": 100, "max_seq_length": 32, "learning_rate": 0.1}
    data = [{"corpus": {"examples": n}, "max_seq_length": n} for n in (16, 32)]
    facts = facts._replace(hparams=hparams | {"phases": parts}, data=data)
    for step, steps, lengths in (
        (50, "90", "16"),
        (95, "90, then 10", "16, then 32"),
    ):
        card = hub_card.model_card(
            *("m", "a/b", facts._replace(step=step), "mit"),
            *(KINDS, dict.fromkeys(KINDS, 0.0)),
        )
        assert f"| num_train_steps | {steps} |" in card
        assert f"| max_seq_length | {lengths} |" in card
        assert "| learning_rate | 0.1 |" in card
        assert "\n\n\n" not in card
    assert "examples of up to 16 tokens" in card and "up to 32 tokens" in card
