# SPDX-License-Identifier: Apache-2.0
"""Damaged task data: the error names file and line; nothing is dropped silently."""

import json
import math

import pytest

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.finetune import preprocessing
from electra_tf.finetune.registry import make_tasks
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.own_task import write_files


def features(folder, files, task="mine", **hparams):
    """Features of the training set of a task on these files."""
    write_files(folder, files)
    short = {"max_seq_length": 12, "max_query_length": 5, "beam_size": 5}
    hparams = {"task_names": [task]} | short | hparams
    config = FinetuningConfig.from_hparams(str(folder), "m", hparams)
    tasks = make_tasks(config, Vocabulary.load(folder / "vocab.txt"))
    return preprocessing.features(config, tasks, "train", True)


def refused(folder, files, expected, **hparams):
    with pytest.raises(UserError) as caught:
        features(folder, files, **hparams)
    message = str(caught.value)
    for word in expected:
        assert word in message, message
    assert message.count("\n") <= 2


def own(ending, kind="classification", **keys):
    if kind not in ("tagging", "qa"):
        keys = {"text_a": "a", "label": "b"} | keys
    file = f"t.{ending}"
    return {"mine": {"type": kind, "train": file, "dev": file, **keys}}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("task", "file", "first"),
    [
        ("cola", "train.tsv", b"x\t1\t\tshe ran"),
        ("chunk", "train.txt", b"ran VBD B-VP"),
        ("squadv1", "train.json", b"{"),
        ("newsqa", "train.jsonl", b'{"header": {}}'),
    ],
)
def test_other_encoding(tmp_path, task, file, first):
    files = {f"finetuning_data/{task}/{file}": first + b"\n\ncaf\xe9"}
    refused(tmp_path, files, [file, "0xe9"], task=task)
    ending = file.rpartition(".")[2].replace("txt", "csv")
    if ending != "json":
        files = {f"t.{ending}": "a\tb\ndog".encode("utf-16")}
        words = [f"t.{ending}", "UTF-16"]
        refused(tmp_path, files, words, tasks=own(ending))


STS = "h\n" + "0\t" * 7
NEWS = {"context": 3}


@pytest.mark.parametrize(
    ("task", "file", "text", "words"),
    [
        ("cola", "train.tsv", "x\t1\t\tthe dog\nx\t1\n", ["line 2", "2 columns"]),
        ("cola", "train.tsv", "x\tyes\t\tthe dog\n", ["line 1", "'yes'", "0, 1"]),
        ("rte", "train.tsv", "h\n0\ta\tb\tmaybe\n", ["line 2", "'maybe'"]),
        ("sts", "train.tsv", f"{STS}a\tb\t6.5\n", ["line 2", "6.5"]),
        ("sts", "train.tsv", f"{STS}a\tb\tgood\n", ["line 2", "good"]),
        ("chunk", "train.txt", "the X B-NP\ndog\n\n", ["line 2", "not 3 columns"]),
        ("chunk", "train.txt", "the X B-NP\ndog X\n\n", ["line 2", "columns"]),
        ("squadv1", "train.json", "{]", ["JSON"]),
        ("newsqa", "train.jsonl", lines(NEWS), []),
    ],
)
def test_line_of_a_built_in_task_is_named(tmp_path, task, file, text, words):
    refused(
        tmp_path, {f"finetuning_data/{task}/{file}": text}, [file, *words], task=task
    )


GOOD = {"a": "dog", "b": "x"}, {"a": "cat", "b": "y"}


@pytest.mark.parametrize(
    ("ending", "text", "words"),
    [
        ("tsv", "a\tb\ndog\t\ncat\tx\n", ["line 2", "'b'", "empty"]),
        ("tsv", "a\tb\ndog\tx\ncat\tx\n", ["1 labels (x)"]),
        ("tsv", "a\tb\n", ["0 labels"]),
        ("tsv", "", ["no column 'a'"]),
        ("tsv", "x\t" * 300_000, ["no column 'a'"]),
        ("csv", 'a,b\n"dog,x\ncat,y\n', ["t.csv, line 2", "quote"]),
        ("csv", 'a,b\ncat,y\n"dog,x\nthe,y\n"cat" ran,x\n', ["line 3", "quote"]),
        ("csv", "a,b\ndog,x\nthe cat, ran,y\n", ["line 3", "'y'", "columns"]),
        ("tsv", "a\tb\ndog\tx\nthe cat\tran\ty\n", ["line 3", "'y'", "columns"]),
        ("tsv", "a\tb\tb\ndog\tx\ty\n", ["2 columns 'b'"]),
        ("jsonl", lines({"a": None, "b": "x"}), ["line 1", "'a'"]),
        ("jsonl", '{"a": "dog", "b": "x"}\n{"a"\n', ["line 2"]),
        ("jsonl", "[1]\n", ["line 1", "array", "object"]),
        ("jsonl", '[\n {"a": "dog", "b": "x"}\n]\n', ["line 1", "array"]),
        ("jsonl", lines({"a": "dog", "b": ["x"]}), ["line 1"]),
        ("txt", "a\n", [".tsv, .csv, .jsonl"]),
    ],
)
def test_table_of_an_own_task(tmp_path, ending, text, words):
    refused(tmp_path, {f"t.{ending}": text}, words, tasks=own(ending))


NER = {"words": ["cat"], "tags": ["B-PER"]}
SCORES = {"a": "cat", "b": 1}, {"a": "ran", "b": 2}


@pytest.mark.parametrize(
    ("kind", "good", "bad", "keys"),
    [
        *(
            ("regression", SCORES, {"a": "dog", "b": score}, {})
            for score in (math.nan, "inf", "", "good")
        ),
        ("regression", SCORES, {"a": "dog", "b": -1}, {"lowest": 0}),
        ("regression", SCORES, {"a": "dog", "b": 5}, {"highest": 4}),
        *(
            ("classification", GOOD, row, {})
            for row in (
                {"a": ["the", "dog"], "b": "x"},
                {"a": {"text": "dog"}, "b": "x"},
                {"a": "ran", "b": math.nan},
            )
        ),
        ("multilabel", GOOD, {"a": "dog", "b": ["x", None]}, {}),
        ("multilabel", GOOD, {"a": "dog", "b": {"x": 1}}, {}),
        *(
            ("tagging", [NER], row, {})
            for row in (
                {"words": ["dog"], "tags": "O"},
                {"words": "dog", "tags": ["O"]},
                {"words": ["dog"]},
                {"words": ["dog", "cat"], "tags": ["O"]},
                {"words": ["dog"], "tags": [1]},
                {"words": ["dog"], "tags": ["NOUN"]},
                {"words": ["dog"], "tags": ["X-PER"]},
                {"words": ["a", None], "tags": ["O", "O"]},
                {"words": ["a", ["b"]], "tags": ["O", "O"]},
            )
        ),
        ("tagging", [NER], {"words": ["a"], "tags": [None]}, {"scheme": "plain"}),
    ],
)
def test_row_of_an_own_task_is_named_or_skipped(tmp_path, kind, good, bad, keys):
    files = {"t.jsonl": lines(*good, bad)}
    tasks, line = own("jsonl", kind, **keys), f"line {len(good) + 1}"
    refused(tmp_path, files, [f"t.jsonl, {line}"], tasks=tasks)
    store = features(tmp_path, files, tasks=tasks, on_bad_example="skip")
    [left_out] = store.skipped
    assert len(store) == len(good) and line in left_out
    if kind == "regression" and not keys:
        assert store["mine:targets"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "changed", "words"),
    [
        ("regression", {"text_a": 0}, ["text_a", "its number from 1"]),
        ("regression", {"train": ["t.tsv"]}, ["train"]),
        ("regression", {"type": ["regression"]}, ["type"]),
        ("regression", {"lowest": "low"}, ["lowest"]),
        ("regression", {"lowest": 5, "highest": 0}, ["below"]),
        ("regression", {"lowest": 1, "highest": 1}, ["lowest is 1"]),
        ("regression", {"lowest": True, "highest": 2}, ["a number"]),
        ("qa", {"has_impossible": "no"}, ["has_impossible"]),
        ("qa", {"score_by": "letters"}, ["words or characters"]),
        ("classification", {"type": "ranking"}, ["ranking", "classification"]),
        ("classification", {"label": None}, ["label"]),
        ("classification", {"lable": "x"}, ["lable"]),
        ("classification", {"metric": "bleu"}, ["bleu", "mcc"]),
        ("classification", {"metric": ["f1", "bleu"]}, ["bleu", "mcc"]),
        ("multilabel", {"separator": ""}, ["separator"]),
    ],
)
def test_wrong_description_is_refused(tmp_path, kind, changed, words):
    tasks = {"mine": own("tsv", kind)["mine"] | changed}
    files = {"t.tsv": "a\tb\ndog\t1\ncat\t2\n"}
    refused(tmp_path, files, ["mine", *words], tasks=tasks)


@pytest.mark.parametrize("name", ["a/b", "my task", "ä"])
def test_name_that_no_file_can_have(tmp_path, name):
    tasks = {name: own("tsv")["mine"]}
    refused(tmp_path, {}, [repr(name), "letters"], task=name, tasks=tasks)


def test_unanswerable_questions_need_a_head_for_them(tmp_path):
    words = ["squad", "answerable_classifier", "joint_prediction"]
    refused(tmp_path, {}, words, task="squad", answerable_classifier=False)
