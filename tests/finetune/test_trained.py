# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned models: their vocabulary, and damaged files."""

import json
from pathlib import Path

import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import trained
from electra_tf.finetune.task import TaskFacts, read_facts
from electra_tf.interop import sources
from tests.helpers.tiny_trials import write_data, write_run


def test_the_vocabulary_beside_the_pretrained_model(tmp_path):
    """It is preferred to that of the data directory."""
    data = write_data(tmp_path)
    own, other = data / "models" / "m" / "vocab.txt", data / "vocab.txt"
    own.parent.mkdir(parents=True)
    own.write_text(other.read_text())
    other.write_text(own.read_text() + "more\n")
    config, _, _ = write_run(data, {"task_names": ["cola"]})
    assert (config.vocab_file, config.vocab_size) == (str(own), 60)
    folder = Path(config.trial_dir(1))
    assert sources.find(folder, print).settings.vocab_file == str(own)
    assert trained.read(folder, "cola").vocab.path == str(own)


@pytest.mark.parametrize(
    ("name", "change", "problem", "code"),
    [
        ("config.json", {"learning_rate": "1"}, 'learning_rate in .* is "1"', 2),
        ("config.json", {"task_names": "cola"}, "task_names in .*", 2),
        ("tasks.json", {"labels": None}, "'labels' of task 1 .* None", 65),
        ("tasks.json", {"labels": [0, 1]}, "'labels' of task 1", 65),
        ("tasks.json", {"num_texts": True}, "'num_texts' of task 1 .* True", 65),
    ],
)
def test_damaged_file_is_named(tmp_path, name, change, problem, code):
    facts = TaskFacts("cola", "classification", ("0", "1"))._asdict()
    whole = {"config.json": {"task_names": ["cola"]}, "tasks.json": facts}[name]
    changed = whole | change
    text = json.dumps([changed] if name == "tasks.json" else changed)
    (tmp_path / name).write_text(text)
    read = {"config.json": trained.hparams_in, "tasks.json": read_facts}[name]
    with pytest.raises(UserError, match=problem) as caught:
        read(tmp_path)
    assert caught.value.exit_code == code
    assert str(tmp_path / name) in str(caught.value)
