# SPDX-License-Identifier: Apache-2.0
"""Counts and warnings for the classes of a training set."""

from electra_tf.finetune import label_counts, preprocessing
from tests.helpers.own_task import own_tasks


def printed(tasks):
    store = preprocessing.features(tasks[0].config, tasks, "train", True)
    found = (label_counts.lines(task, n, store) for n, task in enumerate(tasks))
    return "\n".join(line for lines in found for line in lines)


def test_warnings_for_mistyped_classes(tmp_path):
    rows = ["the dog,positive"] * 5 + ["the cat,negative"] * 4 + ["dog,positve"]
    tasks = own_tasks(tmp_path, {"train.csv": "\n".join(["a,b", *rows])})
    text = printed(tasks)
    assert "Classes of mine: positive 5, negative 4, positve 1" in text
    assert "class 'positve' has 1 example; is it mistyped?" in text
    assert text.count("Warning") == 1


def test_spans_are_counted_by_class(tmp_path):
    lines = "the B-PER\ndog I-PER\ncat O\n\ndog B-LOC\ncat B-PER\n\n" * 3
    tasks = own_tasks(tmp_path, {"train.txt": lines, "dev.txt": lines}, "tagging")
    assert printed(tasks) == "Classes of mine: PER 6, LOC 3"
