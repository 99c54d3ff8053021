# SPDX-License-Identifier: Apache-2.0
"""Damaged and misunderstood task data: file and line are named, nothing is dropped."""

import json

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import preprocessing
from electra_tf.finetune.task_names import make_tasks
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.runs import SPECIAL


def features(data, files, task="mine", **hparams):
    """Features of a task whose files hold these bytes, texts or objects."""
    tokens = [*SPECIAL, "the", "dog", "cat"]
    (data / "vocab.txt").write_text("".join(f"{t}\n" for t in tokens))
    for name, content in files.items():
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes):
            text = content if isinstance(content, str) else json.dumps(content)
            content = text.encode()
        path.write_bytes(content)
    short = {"max_seq_length": 12, "max_query_length": 5, "beam_size": 5}
    hparams = {"task_names": [task]} | short | hparams
    config = FinetuningConfig.from_hparams(str(data), "m", hparams)
    tasks = make_tasks(config, Vocabulary.load(data / "vocab.txt"))
    return preprocessing.features(config, tasks, "train", True)


def refused(data, files, words, **hparams):
    with pytest.raises(UserError) as caught:
        features(data, files, **hparams)
    message = str(caught.value)
    for word in words:
        assert word in message, message
    assert message.count("\n") <= 2


def own(ending, kind="classification", **keys):
    if kind in ("classification", "regression"):
        keys = {"text_a": "a", "label": "b"} | keys
    file = f"t.{ending}"
    return {"mine": {"type": kind, "train": file, "dev": file, **keys}}


@pytest.mark.parametrize(
    ("task", "file", "first"),
    [
        ("cola", "train.tsv", b"x\t1\t\tshe ran"),
        ("chunk", "train.txt", b"ran VBD B-VP"),
        ("squadv1", "train.json", b"{"),
        ("newsqa", "train.jsonl", b'{"header": {}}'),
    ],
)
def test_a_file_in_another_encoding(tmp_path, task, file, first):
    files = {f"finetuning_data/{task}/{file}": first + b"\n\ncaf\xe9"}
    refused(tmp_path, files, [f"{file}, line 3", "not UTF-8", "0xe9"], task=task)


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl"])
def test_an_own_file_in_another_encoding(tmp_path, ending):
    files = {f"t.{ending}": "a\tb\ndog".encode("utf-16")}
    words = [f"t.{ending}, line 1", "not UTF-8"]
    refused(tmp_path, files, words, tasks=own(ending))


@pytest.mark.parametrize(
    ("ending", "text", "words"),
    [
        ("tsv", "a\tb\ndog\t\ncat\tx\n", ["line 2", "'b'", "empty"]),
        ("tsv", "a\tb\ndog\tx\ncat\tx\n", ["1 labels (x)"]),
        ("tsv", "a\tb\n", ["0 labels"]),
        ("tsv", "", ["no column 'a'"]),
        ("csv", 'a,b\n"dog,x\ncat,y\n', ["t.csv, line 2", "quote"]),
        ("csv", 'a,b\ncat,y\n"dog,x\nthe,y\n"cat" ran,x\n', ["line 3", "quote"]),
        ("csv", "a,b\ndog,x\nthe cat, ran,y\n", ["line 3", "'y'", "columns"]),
        ("tsv", "a\tb\ndog\tx\nthe cat\tran\ty\n", ["line 3", "'y'", "columns"]),
        ("tsv", "a\tb\tb\ndog\tx\ty\n", ["2 columns 'b'"]),
        ("jsonl", '{"a": null, "b": "x"}\n', ["line 1", "'a'"]),
        ("jsonl", '{"a": "dog", "b": "x"}\n{"a"\n', ["line 2"]),
        ("jsonl", "[1]\n", ["line 1", "array", "object"]),
        ("jsonl", '[\n {"a": "dog", "b": "x"}\n]\n', ["line 1", "array"]),
        ("txt", "a\n", [".tsv, .csv, .jsonl"]),
    ],
)
def test_own_columns(tmp_path, ending, text, words):
    refused(tmp_path, {f"t.{ending}": text}, words, tasks=own(ending))


@pytest.mark.parametrize("score", ["nan", "inf", "", "good"])
def test_a_score_that_is_no_number(tmp_path, score):
    files = {"t.tsv": f"a\tb\ncat\t1\ndog\t{score}\ncat\t2\n"}
    tasks = own("tsv", "regression")
    refused(tmp_path, files, ["t.tsv, line 3"], tasks=tasks)
    store = features(tmp_path, files, tasks=tasks, on_bad_example="skip")
    assert store["mine:targets"].tolist() == [0.0, 1.0]
    [left_out] = store.skipped
    assert "line 3" in left_out


@pytest.mark.parametrize(
    "row",
    [
        {"words": ["dog"], "tags": "O"},
        {"words": "dog", "tags": ["O"]},
        {"words": ["dog"]},
        {"words": ["dog", "cat"], "tags": ["O"]},
        {"words": ["dog"], "tags": [1]},
        {"words": ["dog"], "tags": ["NOUN"]},
        {"words": ["dog"], "tags": ["X-PER"]},
    ],
)
def test_tags_that_cannot_be_used(tmp_path, row):
    good = json.dumps({"words": ["cat"], "tags": ["B-PER"]})
    files = {"t.jsonl": f"{good}\n{json.dumps(row)}\n"}
    tasks = own("jsonl", "tagging")
    refused(tmp_path, files, ["t.jsonl, line 2"], tasks=tasks)
    store = features(tmp_path, files, tasks=tasks, on_bad_example="skip")
    assert len(store) == len(store.skipped) == 1


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ([], "no answer"),
        ([{"text": "", "answer_start": 0}], "empty"),
        ([{"text": "dog", "answer_start": -1}], "'dog'"),
        ([{"text": "dog", "answer_start": 40}], "beyond"),
        ([{"text": "dog"}], "answer_start"),
    ],
)
def test_answers_that_cannot_be_used(tmp_path, answers, word):
    question = {"id": "1", "question": "who?", "answers": answers}
    content = {
        "data": [
            {
                "title": "Dogs",
                "paragraphs": [{"context": "the dog", "qas": [question]}],
            }
        ]
    }
    files = {"finetuning_data/squadv1/train.json": content}
    refused(tmp_path, files, ["'Dogs', paragraph 0", word], task="squadv1")


@pytest.mark.parametrize(
    "changed",
    [
        {"text_a": 3},
        {"train": ["t.tsv"]},
        {"type": ["regression"]},
        {"lowest": "low"},
        {"has_impossible": "no"},
    ],
)
def test_a_description_of_the_wrong_type(tmp_path, changed):
    [key] = changed
    kind = "qa" if key == "has_impossible" else "regression"
    tasks = {"mine": own("tsv", kind)["mine"] | changed}
    refused(tmp_path, {"t.tsv": "a\tb\ndog\t1\n"}, ["task mine", key], tasks=tasks)


@pytest.mark.parametrize("name", ["a/b", "my task", "ä"])
def test_a_name_that_no_file_can_have(tmp_path, name):
    description = own("tsv")["mine"]
    tasks = {name: description}
    refused(tmp_path, {}, [repr(name), "letters"], task=name, tasks=tasks)


def test_nothing_tells_whether_there_is_an_answer(tmp_path):
    words = ["squad", "answerable_classifier", "joint_prediction"]
    refused(tmp_path, {}, words, task="squad", answerable_classifier=False)
