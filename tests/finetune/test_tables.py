# SPDX-License-Identifier: Apache-2.0
"""Tables as pandas, Excel and R write them; labels as lists, vectors and numbers."""

import csv
import io
import json

import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import inputs
from tests.helpers.own_task import own_tasks

ROWS = [('the "big" dog', "pos"), ("the cat; it ran, yes", "neg"), ("a 5", "pos")]
LINE = [("the dog\nran", "pos"), *ROWS[1:]]
RAW = [('the "big" dog', "pos"), ('"quoted"', "neg"), ('5" disk', "pos")]


def table(rows, between, quoting=csv.QUOTE_MINIMAL, names=("a", "b"), begin=""):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=between, quoting=quoting, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return begin + text.getvalue()


def plain(rows, between="\t"):
    return "".join(f"{between.join(row)}\n" for row in [("a", "b"), *rows])


@pytest.mark.parametrize(
    ("name", "text", "rows", "note"),
    [
        ("train.tsv", plain(RAW), RAW, None),
        ("train.tsv", plain([('"x"', "pos"), ("y", "neg")]), [('"x"', "pos")], None),
        ("train.tsv", table(ROWS, "\t"), ROWS, "a tab, cells quoted"),
        ("train.tsv", table(LINE, "\t"), LINE, "a tab, cells quoted"),
        ("train.tsv", table(ROWS, "\t", csv.QUOTE_ALL), ROWS, "a tab, cells quoted"),
        ("train.csv", table(ROWS, ","), ROWS, None),
        ("train.csv", table(LINE, ","), LINE, None),
        ("train.csv", table(ROWS, ";"), ROWS, "';', cells quoted"),
        ("train.csv", table(ROWS, "|"), ROWS, "'|', cells quoted"),
        ("train.csv", table(ROWS, "\t"), ROWS, "a tab, cells quoted"),
        ("train.csv", plain(RAW), RAW, "a tab, cells not quoted"),
        ("train.tsv", table(ROWS, ","), ROWS, "',', cells quoted"),
        ("train.tsv", '"a"\t"b"\n"1"\t"the dog"\t"x"\n"2"\t"the cat"\t"y"\n',
         [("the dog", "x"), ("the cat", "y")], "a tab, cells quoted"),  # R
        ("train.csv", table(ROWS, ";", begin="sep=;\n"), ROWS, "';'"),
        ("train.json", json.dumps([dict(zip("ab", r, strict=True)) for r in ROWS],
                                  indent=1), ROWS, None),
    ],
)  # fmt: skip
def test_separator_and_quotes_are_recognised(tmp_path, name, text, rows, note):
    [task] = own_tasks(tmp_path, {name: text})
    found = [(e.text_a, e.label) for e in task.read("train")]
    assert found[: len(rows)] == rows
    remarks = list(task.remarks.get("train", ()))
    assert (note in remarks[0]) if note else not remarks
    notes = []
    source = inputs.open_source(str(tmp_path / name), None, "texts")
    asked = inputs.texts(source._replace(say=notes.append), [("a",)])
    assert [one.fields["text"] for one in asked][: len(rows)] == [r[0] for r in rows]
    assert bool(notes) == bool(note)
    if name.endswith(".tsv"):
        assert inputs.can_cut(tmp_path / name, "tsv", "texts") == (
            text
            in (plain(RAW), plain([('"x"', "pos"), ("y", "neg")]), table(ROWS, ","))
        )


def test_quotes_are_recognised_below_the_first_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "_SAMPLE", 5)
    rows = [("a dog", "pos"), ("a cat", "neg")] * 5
    for rest, is_quoted in ((ROWS, True), (RAW, False)):
        between = table(rest, "\t") if is_quoted else plain(rest)
        text = plain(rows) + between.partition("\n")[2]
        [task] = own_tasks(tmp_path, {"train.tsv": text})
        assert [(e.text_a, e.label) for e in task.read("train")] == [*rows, *rest]
        assert inputs.can_cut(tmp_path / "train.tsv", "tsv", "texts") != is_quoted


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (["0,5", "1,25", "2"], ["0.5", "1.25", "2"]),
        (["0,125", "-2,0", "3.5"], ["0.125", "-2.0", "3.5"]),
        (["0.5", "1,250"], "'1,250'.*1.250 or 1250"),
    ],
)
def test_decimal_commas(tmp_path, scores, expected):
    text = "a;b\n" + "".join(f"dog;{score}\n" for score in scores)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=f"train.csv, line 3: {expected}"):
            own_tasks(tmp_path, {"train.csv": text}, "regression")
        return
    [task] = own_tasks(tmp_path, {"train.csv": text}, "regression")
    assert [e.label for e in task.read("train")] == expected
    assert any("decimal comma" in remark for remark in task.remarks["train"])


def test_a_description_says_separator_and_quotes(tmp_path):
    for keys, expected in (
        ({"quoted": False}, '"the ""big"" dog"'),
        ({"quoted": True}, 'the "big" dog'),
    ):
        [task] = own_tasks(tmp_path, {"train.tsv": table(ROWS, "\t")}, keys=keys)
        assert task.read("train")[0].text_a == expected
    text = "a:b\nx, y:pos\nz:neg\n"
    [task] = own_tasks(tmp_path, {"train.csv": text}, keys={"delimiter": ":"})
    assert [e.text_a for e in task.read("train")] == ["x, y", "z"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.tsv", "the dog\tpos\nthe cat\tpos\nran\tneg\nwho\tpos\n",
         ["no column 'a'", "the dog, pos"]),
        ("train.tsv", "a\tb\npos\tthe dog\nneg\tthe cat\npos\tran\n",
         ["2 texts", "swapped"]),
        ("train.csv", "a,b\nwell,the dog,x\nno,the cat,y\n", ["line 2", "columns"]),
        ("train.tsv", "a\tb\ndog\tx\n".encode("utf-16"),
         ["UTF-16", "iconv -f UTF-16"]),
        ("train.tsv", "a\tb\ndog\tx\n".encode("utf-16-le"), ["UTF-16"]),
        ("train.jsonl", '{"d": {"a": "dog"}, "b": "x"}\n', ["no column 'a'", "d/a"]),
        ("train.jsonl", '{"a": null, "b": "x"}\n', ["'a' (null)"]),
        ("train.jsonl", '{\n "a": "dog",\n "b": "x"\n}\n', ["line 1", "jq -c ."]),
        ("train.json", '{"a": "dog"}', ["array of objects"]),
        ("train.tsv", "a\tb\ndog\t['x', 'y']\ncat\t['x']\n", ["multilabel"]),
        ("train.tsv", "a\tb\ndog\t[0, 1]\ncat\t[1, 0]\n", ["multilabel"]),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_read_get_a_hint(tmp_path, name, content, words):
    with pytest.raises(UserError) as caught:
        own_tasks(tmp_path, {name: content})
    for word in (name, *words):
        assert word in str(caught.value), caught.value
    assert str(caught.value).count("\n") <= 2


def test_fields_of_objects_are_columns(tmp_path):
    rows = [{"d": {"a": "dog"}, "b": "x"}, {"d": {"a": "cat"}, "b": "y"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    [task] = own_tasks(tmp_path, {"train.jsonl": text}, keys={"text_a": "d/a"})
    assert [e.text_a for e in task.read("train")] == ["dog", "cat"]


@pytest.mark.parametrize(
    ("train", "dev", "labels", "expected"),
    [
        (["0", "0.0", "1", "1.0"], ["0.00", "1"], ("0", "1"), ["0", "1"]),
        (["0.0", "1.0"], ["0", "1"], ("0.0", "1.0"), ["0.0", "1.0"]),
        (["0,0", "1,0", "1"], ["0", "1.0"], ("0,0", "1"), ["0,0", "1"]),
        (["01", "1", "1.0"], ["01", "1.0"], ("01", "1"), ["01", "1"]),
        (["x", "y"], ["y"], ("x", "y"), ["y"]),
    ],
)
def test_equal_numbers_are_one_class(tmp_path, train, dev, labels, expected):
    def text(found):
        return "a\tb\n" + "".join(f"dog {n}\t{x}\n" for n, x in enumerate(found))

    [task] = own_tasks(tmp_path, {"train.tsv": text(train), "dev.tsv": text(dev)})
    assert tuple(task.labels) == labels
    assert [e.label for e in task.read("dev")] == expected


NAMES = {"label_names": ["x", "y", "z"]}


@pytest.mark.parametrize(
    ("values", "keys", "expected"),
    [
        ([["x", "y"], ["z"]], {}, [("x", "y"), ("z",)]),
        (["['x', 'y']", "['z']"], {}, [("x", "y"), ("z",)]),
        (["['x' 'y']", "['z']"], {}, [("x", "y"), ("z",)]),
        (["x,y", ""], {}, [("x", "y"), ()]),
        ([[1, 1, 0], [0, 0, 1]], {}, [("0", "1"), ("2",)]),
        ([[1, 1, 0], [0, 0, 1]], NAMES, [("x", "y"), ("z",)]),
        (["[1. 1. 0.]", "[0. 0. 1.]"], NAMES, [("x", "y"), ("z",)]),
        ([[True, True, False], [False, False, True]], NAMES, [("x", "y"), ("z",)]),
        ([[0, 1], [2]], NAMES, [("x", "y"), ("z",)]),
        ([[0, 1], [2]], {}, [("0", "1"), ("2",)]),
        (["1,1,0", "0,0,1"], NAMES, [("x", "y"), ("z",)]),
        (["1 1 0", "0 0 1"], NAMES, [("x", "y"), ("z",)]),
    ],
)
def test_labels_of_several_classes(tmp_path, values, keys, expected):
    rows = [{"a": "dog", "b": values[0]}, {"a": "cat", "b": values[1]}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    keys = {"text_a": "a", "label": "b"} | keys
    [task] = own_tasks(tmp_path, {"train.jsonl": text}, "multilabel", keys=keys)
    assert [e.label for e in task.read("train")] == expected
    assert [e.label for e in task.read("dev")] == expected
    bad = text + json.dumps({"a": "ran", "b": [1, 0]}) + "\n"
    if values == [[1, 1, 0], [0, 0, 1]]:
        files = {"train.jsonl": text, "dev.jsonl": bad}
        [task] = own_tasks(tmp_path, files, "multilabel", keys=keys)
        with pytest.raises(UserError, match=r"dev.jsonl, line 3: .*no vector: 1 0"):
            task.read("dev")


def test_labels_that_other_programs_write(tmp_path):
    keys = {"text_a": "a", "label": "b"}
    text = "a\tb\ndog\tx;y\ncat\ty\n"
    for sign in ";|":
        files = {"train.tsv": text.replace(";", sign)}
        [task] = own_tasks(tmp_path, files, "multilabel", keys=keys)
        assert any(f"'x{sign}y'" in remark for remark in task.remarks["train"])
    choices = text.replace("x;y", '{"choices": ["x", "y"]}')  # Label Studio
    with pytest.raises(UserError, match="line 2: b is .*choices"):
        own_tasks(tmp_path, {"train.tsv": choices}, "multilabel", keys=keys)


def test_classes_in_columns_of_their_own(tmp_path):
    keys = {"text_a": "a", "label": ["joy", "fear"]}
    text = "a,joy,fear,id\ndog,1,0,4\ncat,1.0,1,5\nran,0,0,6\n"
    [task] = own_tasks(tmp_path, {"train.csv": text}, "multilabel", keys=keys)
    found = [("joy",), ("joy", "fear"), ()]
    assert [e.label for e in task.read("train")] == found
    assert task.labels == ("fear", "joy")
    bad = text.replace("1.0", "2")
    with pytest.raises(UserError, match="line 3: column 'joy' is '2', not 0 or 1"):
        own_tasks(tmp_path, {"train.csv": bad}, "multilabel", keys=keys)
    with pytest.raises(UserError, match="label is .*; it must be text"):
        own_tasks(tmp_path, {"train.csv": text}, keys=keys)
    with pytest.raises(UserError, match="no column 'anger'"):
        keys["label"] = ["joy", "anger"]
        own_tasks(tmp_path, {"train.csv": text}, "multilabel", keys=keys)


def test_numbers_0_and_1_are_no_names_of_several_classes(tmp_path):
    text = "a\tb\ndog\t0\ncat\t1\n"
    keys = {"text_a": "a", "label": "b"}
    with pytest.raises(UserError, match="0 and 1"):
        own_tasks(tmp_path, {"train.tsv": text}, "multilabel", keys=keys)
