# SPDX-License-Identifier: Apache-2.0
"""The built-in tasks whose data is there."""

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.finetune.registry import originals_with_data


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("sst/train.tsv", "sst"),
        ("sst2/train-00000-of-00001.parquet", "sst"),
        ("stsb/train-00000-of-00001.parquet", "sts"),
        ("squad/train-00000-of-00001.parquet", "squad"),
        ("newsqa/train.jsonl.gz", "newsqa"),
        # No data to train on.
        ("rte/test.tsv", None),
        ("sst2/train.tsv", None),
        ("glue.zip/train.tsv", None),
    ],
)
def test_task_has_data_in_any_layout_that_it_reads(tmp_path, file, name):
    path = tmp_path / "finetuning_data" / file
    path.parent.mkdir(parents=True)
    path.touch()
    config = FinetuningConfig.from_hparams(str(tmp_path), "m", {})
    assert originals_with_data(config) == [name] * (name is not None)
