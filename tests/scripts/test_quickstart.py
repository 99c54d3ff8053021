# SPDX-License-Identifier: Apache-2.0
"""The task that quickstart.sh makes with examples/author_task.py."""

import collections
import json

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.registry import make_own_task
from tests.helpers.runs import ROOT, run_script

pytestmark = pytest.mark.thorough
EXAMPLES = ROOT / "examples"


def test_the_author_task_is_balanced_and_its_dev_set_is_held_out(tmp_path):
    done = run_script("examples/author_task.py", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    (tmp_path / "data/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    hparams = json.loads((EXAMPLES / "author_task.json").read_text())
    config = FinetuningConfig.from_hparams(str(tmp_path / "data"), "m", hparams)
    task = make_own_task("author", config, None)
    train, dev = task.examples("train"), task.examples("dev")
    for examples, count in (train, 400), (dev, 200):
        labels = collections.Counter(example.label for example in examples)
        assert labels == {"Doyle": count, "Burnett": count}
    assert len({e.text_a for e in train + dev}) == 1200
