# SPDX-License-Identifier: Apache-2.0
"""Class weights: as they are given, and balanced."""

import pytest

from electra_tf.errors import UserError
from tests.helpers.own_task import own_tasks

TEXT = "a\tb\ndog\tx\ncat\tx\nran\tx\nthe\ty\n"
SEVERAL = "a\tb\ndog\tx\ncat\tx,y\nran\tx\nthe\t\n"


def weights(folder, said, text=TEXT, kind="classification", **more):
    description = {"text_a": "a", "label": "b", "class_weights": said} | more
    [task] = own_tasks(folder, {"train.tsv": text}, kind, **description)
    return task.class_weights


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ([2, 0.5], [2.0, 0.5]),
        ({"y": 5}, [1.0, 5.0]),
        ("balanced", [4 / 6, 2.0]),
        (None, None),
    ],
)
def test_weights_are_in_the_order_of_the_labels(tmp_path, said, expected):
    if said is None:
        [task] = own_tasks(tmp_path, {"train.tsv": TEXT})
        assert task.class_weights is None
    else:
        assert weights(tmp_path, said) == expected
        assert weights(tmp_path, said, do_train=False) is None


def test_balanced_where_a_text_has_several(tmp_path):
    found = weights(tmp_path, "balanced", SEVERAL, "multilabel")
    assert found == [1 / 3, 3.0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"yy": 2}, ["'yy'", "did you mean 'y'", "x, y"]),
        ([1, 2, 3], ["[1, 2, 3]", "x, y"]),
        ([1, -2], ["-2", "at least 0"]),
        ([1, True], ["True"]),
        ("balance", ["'balance'", "'balanced'"]),
        (3, ["3", "a list"]),
    ],
)
def test_mistakes_are_said_before_the_training(tmp_path, said, words):
    with pytest.raises(UserError) as caught:
        weights(tmp_path, said)
    for word in words:
        assert word in str(caught.value)


def test_smoothing_needs_labels(tmp_path):
    text = "a\tb\ndog\t1\ncat\t2\n"
    with pytest.raises(UserError, match="label_smoothing is for classification"):
        own_tasks(tmp_path, {"train.tsv": text}, "regression", label_smoothing=0.1)
    own_tasks(tmp_path, {"train.tsv": text}, label_smoothing=0.1)
