# SPDX-License-Identifier: Apache-2.0
"""Models beside another vocabulary, with a task of a module, of earlier versions."""

import contextlib
import json
from pathlib import Path

import pytest

from electra_tf.errors import UserError
from electra_tf.export import ExportRequest, finetuned_task
from electra_tf.finetune.task import TASKS_FILE
from electra_tf.inference import prediction
from electra_tf.inference.finetuned import read_trial
from electra_tf.interop import readers
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
    assert readers.find(folder, print).vocab_file == str(own)
    assert read_trial(folder, "cola").vocab.path == str(own)


PAYLOAD = """
import pathlib
from electra_tf.finetune.classification import TextTask

pathlib.Path(__file__).with_name("was_run").touch()


class Texts(TextTask):
    labels = ("0", "1")

    def __init__(self, config, tokenizer):
        super().__init__("cola", config, tokenizer)
"""


def test_a_model_directory_imports_no_module(tmp_path, monkeypatch):
    """Only the call names a module whose class is the task."""
    data = write_data(tmp_path)
    config, _, _ = write_run(data, {"task_names": ["cola"]})
    folder, name = Path(config.trial_dir(1)), "own_package.payload:Texts"
    (folder / "own_package").mkdir()
    (folder / "own_package" / "payload.py").write_text(PAYLOAD)
    monkeypatch.syspath_prepend(folder)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"cola"', f'"{name}"'))
    request = ExportRequest("saved_model", "out", init_checkpoint=str(folder))
    for read in (
        lambda: prediction.load(folder),
        lambda: prediction.load(folder, task="cola"),
        lambda: prediction.load_predictor(str(folder)),
        lambda: finetuned_task.task_of(request._replace(what="cola")),
        lambda: readers.find(str(folder), print).read(),
    ):
        with contextlib.suppress(UserError):
            read()
    with pytest.raises(UserError, match="is Python code, .* --task, or task="):
        prediction.load(folder)
    assert not list(folder.rglob("was_run"))
    [row] = prediction.load(folder, task=name).predict(["the dog ran"])
    assert row["label"] in ("0", "1") and list(folder.rglob("was_run"))


def test_other_tasks_of_a_trial_are_not_made(tmp_path):
    data = write_data(tmp_path)
    config, _, _ = write_run(data, {"task_names": ["cola", "sts"]})
    folder = Path(config.trial_dir(1))
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"sts"', '"no_such_module:X"'))
    assert prediction.load(folder, task="cola").predict(["the dog ran"])
    (folder / TASKS_FILE).unlink()
    with pytest.raises(UserError, match=f"{TASKS_FILE}, .*is missing"):
        prediction.load(folder, task="cola")


def test_keys_of_an_earlier_version(tmp_path):
    """They are read in the configuration of a trial, though a new one refuses them."""
    data = write_data(tmp_path)
    (data / "own.txt").write_text("waa B-A\nwab O\n")
    own = {"type": "tagging", "train": "own.txt", "dev": "own.txt"}
    config, _, _ = write_run(data, {"task_names": ["own"], "tasks": {"own": own}})
    folder = Path(config.trial_dir(1))
    path = folder / "config.json"
    stored = json.loads(path.read_text())
    stored["tasks"]["own"] |= {"quoted": True, "scheme": "IOB2 PER_B 0"}
    path.write_text(json.dumps(stored))
    model = prediction.load_predictor(str(folder))
    assert model.predict(["waa wab"])[0]["words"] == ["waa", "wab"]
