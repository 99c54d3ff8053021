# SPDX-License-Identifier: Apache-2.0
"""Labels of texts: one class, several classes, a number."""

import pytest

from electra_tf.errors import UserError
from tests.helpers.own_task import own_tasks
from tests.helpers.runs import refused


def table(labels, texts="dog"):
    return "a\tb\n" + "".join(f"{texts} {n}\t{x}\n" for n, x in enumerate(labels))


def refuses(folder, files, words, kind="classification", **more):
    refused(lambda: own_tasks(folder, files, kind, **more)[0].read("dev"), *words)


def test_labels_are_texts(tmp_path):
    """Nothing is joined, such as the numbers of sections."""
    labels = ["1.1", "1.10", "01", "1", " x "]
    files = {"train.tsv": table(labels), "dev.tsv": table(["1.10", "x"])}
    [task] = own_tasks(tmp_path, files)
    assert task.labels == ("01", "1", "1.1", "1.10", "x")
    assert [e.label for e in task.read("dev")] == ["1.10", "x"]
    [task] = own_tasks(tmp_path, files, "multilabel")
    assert task.labels == ("01", "1", "1.1", "1.10", "x")
    rows = [{"a": "dog", "b": 1.5}, {"a": "cat", "b": "1.50"}, {"a": "ran", "b": 2}]
    [task] = own_tasks(tmp_path, {"train.jsonl": rows})
    assert task.labels == ("1.5", "1.50", "2")


@pytest.mark.parametrize(
    ("train", "dev", "kind", "words"),
    [
        (["0", "1", "1.0"], ["0"], "classification", ["1 and 1.0", "one number"]),
        (["1.0,2", "1"], ["1"], "multilabel", ["1 and 1.0", "one number"]),
        (["1.1", "1.2"], ["1.10"], "classification",
         ["dev.tsv, line 2", "unknown label '1.10'; there are 1.1, 1.2"]),
        (["0", "1"], ["1.0"], "classification", ["dev.tsv, line 2", "label '1.0'"]),
        (["x", "['x', 'y']"], ["x"], "classification", ["line 3", "list; type multi"]),
        (["1", "0,5"], ["1"], "regression", ["line 3", "'0,5' is not a number; its"]),
        (["1", "1,250"], ["1"], "regression", ["line 3", "'1,250' is not a number"]),
        (["x,y", "['x', 'y']"], ["x"], "multilabel", ["line 3", "neither a list in"]),
        (["x,y", "{'x', 'y'}"], ["x"], "multilabel", ["line 3", "neither a list in"]),
        (["x", '{"choices": ["x"]}'], ["x"], "multilabel", ["line 3", "neither"]),
        (["x,y", "z"], ["w"], "multilabel", ["dev.tsv, line 2", "'w'", "x, y, z"]),
        (["1 0 1", "0 1 0"], ["1"], "multilabel", ["vectors of 0 and 1", '["joy"']),
        (["array(['x'], dtype=object)"], ["x"], "multilabel", ["line 2", "neither a"]),
        (["[1. 0. 1.]", "[0. 1. 0.]"], ["1"], "multilabel", ["vectors of 0 and 1"]),
        (["0", "1"], ["1"], "multilabel", ["0 and 1", "type classification"]),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_read_are_refused(tmp_path, train, dev, kind, words):
    files = {"train.tsv": table(train), "dev.tsv": table(dev)}
    refuses(tmp_path, files, words, kind)


NAMES = {"label_names": ["x", "y", "z"]}


@pytest.mark.parametrize(
    ("values", "keys", "expected"),
    [
        ([["x", "y"], ["z"]], {}, [("x", "y"), ("z",)]),
        (["x, y", ""], {}, [("x", "y"), ()]),
        (["x;y", "z"], {"separator": ";"}, [("x", "y"), ("z",)]),
        ([[0, 1], [2]], NAMES, [("x", "y"), ("z",)]),
        ([[0, 1], [2]], {}, [("0", "1"), ("2",)]),
        *(([[x, x * 0, x], [0, 1, 0]], {}, None) for x in (1, 1.0, True)),  # vectors
    ],
)
def test_labels_of_several_classes(tmp_path, values, keys, expected):
    rows = [{"a": "dog", "b": values[0]}, {"a": "cat", "b": values[1]}]
    if not expected:
        refuses(tmp_path, {"train.jsonl": rows}, ["vectors of 0 and 1"], "multilabel")
        return
    [task] = own_tasks(tmp_path, {"train.jsonl": rows}, "multilabel", keys=keys)
    assert [e.label for e in task.read("train")] == expected
    assert [e.label for e in task.read("dev")] == expected


def test_classes_in_columns_of_their_own(tmp_path):
    keys = {"label": ["joy", "fear"]}
    text = "a,joy,fear,id\ndog,1,0,4\ncat,1.0,1,5\nran,0,0,6\n"
    [task] = own_tasks(tmp_path, {"train.csv": text}, "multilabel", keys=keys)
    found = [("joy",), ("joy", "fear"), ()]
    assert [e.label for e in task.read("train")] == found
    assert task.labels == ("fear", "joy")
    bad = text.replace("1.0", "2")
    with pytest.raises(UserError, match="line 3: column 'joy' is '2', not 0 or 1"):
        own_tasks(tmp_path, {"train.csv": bad}, "multilabel", keys=keys)
    with pytest.raises(UserError, match="label is .*; it must be a column"):
        own_tasks(tmp_path, {"train.csv": text}, keys=keys)
    with pytest.raises(UserError, match="no column 'anger'"):
        keys["label"] = ["joy", "anger"]
        own_tasks(tmp_path, {"train.csv": text}, "multilabel", keys=keys)
