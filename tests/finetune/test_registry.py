# SPDX-License-Identifier: Apache-2.0
"""The tasks whose data is there; class weights and label smoothing."""

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune.registry import originals_with_data
from tests.helpers.own_task import own_tasks
from tests.helpers.runs import refused


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
    ],
)
def test_task_has_data_in_any_layout_that_it_reads(tmp_path, file, name):
    path = tmp_path / "finetuning_data" / file
    path.parent.mkdir(parents=True)
    path.touch()
    config = FinetuningConfig.from_hparams(str(tmp_path), "m", {})
    assert originals_with_data(config) == [name] * (name is not None)


TEXT = "a\tb\ndog\tx\ncat\tx\nran\tx\nthe\ty\n"
SEVERAL = "a\tb\ndog\tx\ncat\tx,y\nran\tx\nthe\t\n"


def weights(folder, given, text=TEXT, kind="classification", **more):
    """The weights of a task of one's own."""
    description = {"text_a": "a", "label": "b", "class_weights": given} | more
    [task] = own_tasks(folder, {"train.tsv": text}, kind, **description)
    return task.class_weights


def test_weights_are_in_the_order_of_the_labels(tmp_path):
    for given, expected in (({"y": 5}, [1.0, 5.0]), ("balanced", [4 / 6, 2.0])):
        assert weights(tmp_path, given) == expected
        assert weights(tmp_path, given, do_train=False) is None
    assert weights(tmp_path, "balanced", SEVERAL, "multilabel") == [1 / 3, 3.0]
    refused(lambda: weights(tmp_path, "balanced", "a\tb\n"), "0 labels")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"yy": 2}, ["task mine", "'yy'", "x, y"]),
        ({"x": -2}, ["-2", "at least 0"]),
        ({"x": True}, ["True"]),
        ([1, 2], ["[1, 2]", "an object"]),
        ("balance", ["'balance'", '"balanced"']),
    ],
)
def test_wrong_weights_are_refused(tmp_path, given, expected):
    refused(lambda: weights(tmp_path, given), *expected)


def test_label_smoothing_is_for_labels(tmp_path):
    text = "a\tb\ndog\t1\ncat\t2\n"
    with pytest.raises(UserError, match="label_smoothing is for classification and"):
        own_tasks(tmp_path, {"train.tsv": text}, "regression", label_smoothing=0.1)
    own_tasks(tmp_path, {"train.tsv": text}, label_smoothing=0.1)
