# SPDX-License-Identifier: Apache-2.0
"""What a run says of its data before it trains."""

import pytest

from electra_tf.finetune import preprocessing
from tests.helpers.own_task import own_tasks


def printed(tasks):
    store = preprocessing.features(tasks[0].config, tasks, "train", True)
    found = (
        preprocessing.summary_of_classes(task, n, store) for n, task in enumerate(tasks)
    )
    return "\n".join(line for lines in found for line in lines)


def test_warnings_for_mistyped_classes(tmp_path):
    rows = ["the dog,positive"] * 5 + ["the cat,negative"] * 4 + ["dog,positve"]
    tasks = own_tasks(tmp_path, {"train.csv": "\n".join(["a,b", *rows])})
    text = printed(tasks)
    assert "Classes of mine: positive 5, negative 4, positve 1" in text
    assert "one or two examples: 'positve' (1); mistyped?" in text
    assert text.count("Warning") == 2 and "the dev set is the training set" in text


def test_spans_are_counted_by_class(tmp_path):
    lines = "the B-PER\ndog I-PER\ncat O\n\ndog B-LOC\ncat B-PER\n\n" * 3
    tasks = own_tasks(
        tmp_path, {"train.txt": lines, "dev.txt": f"{lines}\n"}, "tagging"
    )
    assert printed(tasks) == "Classes of mine: PER 6, LOC 3"


def test_training_set_without_spans(tmp_path):
    files = {"train.txt": "the O\ndog O\n", "dev.txt": "the O\n"}
    assert "all tags are O" in printed(own_tasks(tmp_path, files, "tagging"))


@pytest.mark.parametrize(
    ("kind", "text", "cut", "kept"),
    [
        ("classification", "a\tb\n" + "dog " * 40 + "\tx\nthe xyz\ty\n", 26, 16 + 4),
        ("tagging", "dog O\n" * 40 + "\nthe O\nxyz B-X\n", 26, 16 + 4),
    ],
)
def test_shares_of_lost_and_unknown_tokens(tmp_path, kind, text, cut, kept):
    name = "train.tsv" if kind == "classification" else "train.txt"
    for _ in range(2):  # built, then read
        tasks = own_tasks(tmp_path, {name: text}, kind)
        store = preprocessing.features(tasks[0].config, tasks, "train", True)
        [line, *_] = preprocessing.summary(store, "training", tasks)
        assert line == (
            "Features: 2 of training; the longest has 16 tokens, "
            f"{cut / (cut + kept):.1%} of them cut off, {1 / kept:.1%} of them [UNK]"
        )
