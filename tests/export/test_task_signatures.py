# SPDX-License-Identifier: Apache-2.0
"""The self-checks of exported fine-tuned models."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export import finetuned_task, saved_model
from tests.helpers.exporting import LETTERS
from tests.helpers.runs import SPECIAL, by_default
from tests.helpers.tiny_trials import PLAIN, SQUAD, write_data, write_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    data = write_data(tmp_path_factory.mktemp("data"))
    config, _, _ = write_run(data, {"task_names": ["cola", "chunk"]})
    return Path(config.trial_dir(1))


def with_a_tie(folder, name, precision):
    """A model for which the first label and the last are equally good, and its bias."""
    task = finetuned_task.read_task(folder, name, precision)
    values = {v.path.rpartition("/")[2]: v for v in task.variables if name in v.path}
    values["kernel"].assign(np.zeros(values["kernel"].shape))
    values["bias"].assign([0.0, *[-1.0] * (len(task.facts.labels) - 2), 0.0])
    return task, values["bias"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "best"),
    [("cola", "label"), pytest.param("chunk", "labels", marks=pytest.mark.thorough)],
)
def test_near_tie_is_accepted_in_half_precision_alone(folder, tmp_path, name, best):
    """The last label leads by less than the precision of bfloat16 at 1."""
    for precision in ("mixed_bfloat16", "float32"):
        task, bias = with_a_tie(folder, name, precision)
        made = task.servable()
        bias.assign([*bias.numpy()[:-1], 2.0**-9])
        place = tmp_path / precision
        if precision == "float32":
            with pytest.raises(UserError, match="differ"):
                saved_model.write_saved_models({name: made}, task.source, place)
            return
        [written] = saved_model.write_saved_models({name: made}, task.source, place)
        loaded = tf.saved_model.load(str(written)).signatures["serving_default"]
        [check] = [c for c in made.checks if c.signature == "serving_default"]
        found = loaded(text=tf.constant(check.inputs["text"]))[best].numpy()
        assert {*found.ravel()} - {b""} == {task.facts.labels[-1].encode()}


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
    made = task.servable()
    asked = [name for check in made.checks for name in check.expected]
    assert "answer" in asked
    saved_model.write_saved_models({"squad": made}, task.source, tmp_path / "out")
