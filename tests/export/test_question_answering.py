# SPDX-License-Identifier: Apache-2.0
"""The self-check of an exported model that answers questions."""

from pathlib import Path

import pytest

from electra_tf.export import finetuned_task, question_answering, saved_model
from tests.helpers.exporting import LETTERS
from tests.helpers.runs import SPECIAL, by_default
from tests.helpers.tiny_trials import PLAIN, SQUAD, write_data, write_run


@pytest.mark.thorough
@pytest.mark.parametrize(
    "answer_text", by_default([None, "original", "offsets"], [None])
)
def test_answers_with_unknown_words_are_checked_by_characters(tmp_path, answer_text):
    """As the graph cuts them; the original's rule has whole words there."""
    data = write_data(tmp_path)
    known = [c for c in LETTERS if c not in "qxz"]
    tokens = [*SPECIAL, *known, *(f"##{c}" for c in known), "?", "."]
    (data / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    hparams = SQUAD | PLAIN | {"max_answer_length": 20, "answer_text": answer_text}
    config, _, _ = write_run(data, hparams)
    task = finetuned_task.read_task(Path(config.trial_dir(1)), "squad")
    made = question_answering.question_answering(task)
    asked = [name for check in made.checks for name in check.expected]
    assert "answer" in asked
    saved_model.write_saved_models({"squad": made}, task.source, tmp_path / "out")
