# SPDX-License-Identifier: Apache-2.0
"""What quickstart.sh runs of examples/: the author task, and asking a SavedModel."""

import collections
import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.own_tasks import make_own_task
from tests.helpers.runs import ROOT

pytestmark = pytest.mark.thorough
EXAMPLES = ROOT / "examples"


def run(*arguments, rc=0, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == rc and "Traceback" not in done.stderr, done.stderr
    return done.stdout if rc == 0 else done.stderr


def test_the_author_task_is_balanced_and_its_dev_set_is_held_out(tmp_path):
    run(EXAMPLES / "author_task.py", tmp_path / "data")
    (tmp_path / "data/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    hparams = json.loads((EXAMPLES / "author_task.json").read_text())
    config = FinetuningConfig.from_hparams(str(tmp_path / "data"), "m", hparams)
    task = make_own_task("author", config, None)
    train, dev = task.examples("train"), task.examples("dev")
    for examples, count in (train, 400), (dev, 200):
        labels = collections.Counter(example.label for example in examples)
        assert labels == {"Doyle": count, "Burnett": count}
    assert len({e.text_a for e in train + dev}) == 1200


class Classifier(tf.Module):
    """Answers as an exported classification task does."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def __call__(self, text):
        good = tf.strings.regex_full_match(text, ".*good.*")
        return {
            "label": tf.where(good, "positive", "negative"),
            "probability": tf.where(good, 0.75, 0.5),
        }


def test_asking_a_saved_model_needs_no_electra_tf(tmp_path):
    model, script = Classifier(), EXAMPLES / "ask_saved_model.py"
    place = tmp_path / "versions" / "10"
    tf.saved_model.save(model, place, {"serving_default": model.__call__})
    (tmp_path / "versions" / "9").mkdir()
    (tmp_path / "electra_tf.py").write_text("raise ImportError('not to be used')\n")
    texts = ("a good film", "a bad one")
    printed = run(script, place.parent, *texts, PYTHONPATH=str(tmp_path))
    answers = ["positive (75%): a good film", "negative (50%): a bad one"]
    assert printed.splitlines() == answers
    assert "no SavedModel in" in run(script, tmp_path / "nowhere", "a text", rc=1)
