# SPDX-License-Identifier: Apache-2.0
"""Which tasks there are."""

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.task_names import make_tasks, originals_with_data
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("sst/train.tsv", "sst"),
        ("sst2/train-00000-of-00001.parquet", "sst"),
        ("stsb/train-00000-of-00001.parquet", "sts"),
        ("mnli/train-00000-of-00001.parquet", "mnli"),
        ("squad/train-00000-of-00001.parquet", "squad"),
        ("newsqa/train.jsonl.gz", "newsqa"),
        ("chunk/train.txt", "chunk"),
        # No data to train on.
        ("rte/test.tsv", None),
        ("sst2/train.tsv", None),
        ("glue.zip/train.tsv", None),
    ],
)
def test_a_task_has_data_in_any_layout_that_it_reads(tmp_path, file, name):
    path = tmp_path / "finetuning_data" / file
    path.parent.mkdir(parents=True)
    path.touch()
    config = FinetuningConfig.from_hparams(str(tmp_path), "m", {})
    assert originals_with_data(config) == [name] * (name is not None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module:Reviews", "no_such_module must be on PYTHONPATH"),
        ("electra_tf.no_such:X", "electra_tf.no_such must be on PYTHONPATH"),
        ("electra_tf.finetune.task:X", "has no attribute 'X'"),
    ],
)
def test_a_class_that_cannot_be_loaded(name, said, tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in SPECIAL))
    vocab = Vocabulary.load(tmp_path / "vocab.txt")
    config = FinetuningConfig.from_hparams("D", "m", {"task_names": [name]})
    with pytest.raises(UserError, match=said):
        make_tasks(config, vocab)
