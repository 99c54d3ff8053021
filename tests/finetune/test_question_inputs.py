# SPDX-License-Identifier: Apache-2.0
"""Files of questions as people have them: forms, wrong places, missing answers."""

import json

import pytest

from electra_tf.errors import UserError
from electra_tf.finetune import preprocessing
from electra_tf.finetune.inputs import open_source, printed
from electra_tf.finetune.qa import questions
from tests.helpers.own_task import own_tasks

CONTEXT = "the dog ran . the cat ran ."
DOG = {"text": ["dog"], "answer_start": [4]}
ONE = {"text": "dog", "answer_start": 4}


def nested(context=CONTEXT, **asked):
    asked = {"id": "q", "question": "who ?"} | asked
    paragraph = {"context": context, "qas": [asked]}
    return {"version": "1", "data": [{"title": "T", "paragraphs": [paragraph]}]}


def flat(**asked):
    return {"id": "q", "question": "who ?", "context": CONTEXT} | asked


def task_on(folder, content, name="train.json", **more):
    [task] = own_tasks(folder, {name: content}, "qa", **more)
    return task


def refused(function, *expected):
    with pytest.raises(UserError) as caught:
        function()
    for word in expected:
        assert word in str(caught.value), caught.value
    for name in ("KeyError", "TypeError", "IndexError"):
        assert name not in str(caught.value)
    assert str(caught.value).count("\n") <= 2


ROW = 'q,who ?,{},"{}"\n'
HEADER = "id,question,context,answers\n"
ARRAYS = "{'text': array(['dog'], dtype=object), 'answer_start': array([4])}"
CMRC = {
    "context_id": "C",
    "context_text": CONTEXT,
    "qas": [{"query_id": "q", "query_text": "who ?", "answers": ["dog"]}],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.json", nested(answers=[ONE])),
        ("train.json", nested(answers=[{"text": "dog", "answer_start": "4"}])),
        ("train.json", nested(answers=[{"id": "1", **ONE}])),  # DRCD
        ("train.json", nested(answers=DOG)),
        ("train.json", nested(answers=ONE)),
        ("train.json", [CMRC]),
        ("train.json", {"data": [CMRC]}),
        ("train.json", [flat(answers=DOG)]),
        ("train.json", [flat(answers=[ONE])]),
        ("train.json", {"data": [flat(answers=ONE)]}),
        ("train.json", [flat(answer="dog", answer_start=4)]),
        ("train.json", json.dumps(flat(answers=DOG)) + "\n" + json.dumps(flat(id="p"))),
        ("train.jsonl", json.dumps(flat(answers=DOG)) + "\n"),
        ("train.csv", HEADER + ROW.format(CONTEXT, DOG)),
        ("train.csv", HEADER + ROW.format(CONTEXT, ARRAYS)),
        ("train.csv", HEADER + ROW.format(CONTEXT, json.dumps(DOG).replace('"', '""'))),
        *(
            (
                "train.tsv",
                f"id\tquestion\tcontext\tanswer_text\tanswer_start\n"
                f"q\twho ?\t{CONTEXT}\tdog\t{start}\n",
            )
            for start in ("4", "4.0")  # pandas, where a place is missing
        ),
    ],
)
def test_forms_of_questions(tmp_path, name, content):
    task = task_on(tmp_path, content, name, on_bad_example="skip")
    [example] = task.read("train")
    assert (example.question_id, example.question) == ("q", "who ?")
    assert (example.first, example.answer, example.context) == (4, "dog", CONTEXT)
    assert task.read("dev")[0].answers == ("dog",)
    [asked, *_] = questions(open_source(str(tmp_path / name), None, "questions"))
    assert asked.fields == {"id": "q", "question": "who ?", "context": CONTEXT}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"rows": []}, ["rows", "data", "context"]),
        ([{"document": "x", "query": "y"}], ["entry 0", "document, query", "context"]),
        ([flat(answers=3)], ["answers are 3"]),
        ([flat(answers={"text": ["dog", "cat"], "answer_start": [4]})], ["2 answers"]),
        ([flat(answers=[{"begin": 4}])], ["not an answer"]),
        ([flat(answers=[{"text": "dog", "answer_start": "x"}])], ["answer_start is"]),
        ([flat(answers=[{"text": "dog", "answer_start": [4]}])], ["answer_start is"]),
        ([flat(answers=[ONE], is_impossible="maybe")], ["is_impossible is 'maybe'"]),
        (["x"], ["entry 0", "'x'"]),
        (nested(context=["x"], answers=[ONE]), ["context is", "expected: context"]),
        ({"data": [{"paragraphs": [{"context": "x"}]}]}, ["paragraph 0", "questions"]),
        ("[1", ["train.json", "JSON"]),
    ],
)
def test_other_forms_are_refused_with_their_keys(tmp_path, content, words):
    task = task_on(tmp_path, content)
    refused(lambda: task.read("train"), "train.json", *words)


CHINESE = "一二三丣两四五六七八九十丣两甲乙丙丁戊己庚辛"


@pytest.mark.parametrize("form", ["offsets", "original"])
@pytest.mark.parametrize(
    ("context", "text", "start", "place", "is_counted"),
    [
        (CONTEXT, "dog", 4, 4, False),
        (CONTEXT, "dog", 2, 4, True),
        (CONTEXT, "dog ran", 5, 4, True),
        (CONTEXT, "ran", 9, 8, True),
        (CONTEXT, "dog", 14, None, False),
        (CONTEXT, "bird", 4, None, False),
        (CHINESE[4:], "丣两", 8, 8, False),
        (CHINESE[4:], "丣两", 9, 8, True),
        (CHINESE[4:], "丣两", 16, None, False),
        ("a b a", "a", 2, None, False),  # two are as near
        ("One.\r\n" * 99 + "the dog", "dog", 99 * 5 + 4, 99 * 6 + 4, True),
        ("One.\n" * 99 + "the dog", "dog", 99 * 6 + 4, 99 * 5 + 4, True),
        ("One.\n" * 99 + "the dog", "dog", 99 * 5 + 24, None, False),
        ("\U0001f600" * 9 + "the dog", "dog", 22, 13, True),  # in UTF-16
        ("the\u00a0dog ran", "the dog", 0, 0, False),
        ("the DOG ran", "dog", 4, 4, False),
        (CONTEXT, "dog", -1, None, False),
        (CHINESE, "丣两", -1, None, False),
    ],
)
def test_answers_are_compared_with_their_place(
    tmp_path, form, context, text, start, place, is_counted
):
    answers = [{"text": text, "answer_start": start}]
    content = nested(context, answers=answers)
    more = {"answer_text": form, "on_bad_example": "skip"}
    task = task_on(tmp_path, content, **more)
    found = [example.first for example in task.read("train")]
    assert found == ([] if place is None else [place])
    assert len(task.skipped.get("train", ())) == (place is None)
    assert bool(task.remarks) == is_counted
    if place is None:
        refused(
            lambda: preprocessing.features(task.config, [task], "train", True),
            *("no example of train", "1, as", repr(text)[:-1]),
        )
    else:
        store = preprocessing.features(task.config, [task], "train", True)
        assert len(store.remarks) == is_counted


@pytest.mark.parametrize(
    ("asked", "is_v2", "expected"),
    [
        ({"answers": [], "is_impossible": "true"}, True, "none"),
        ({"answers": [ONE], "is_impossible": "false"}, True, "dog"),
        ({"answers": [ONE], "is_impossible": 0}, True, "dog"),
        ({"answers": [{"text": "", "answer_start": -1}]}, True, "none"),
        ({"answers": []}, True, "none"),
        ({"answer": "", "answer_start": ""}, True, "none"),
        ({"is_impossible": True}, True, "none"),
        ({"gold": ["dog"]}, True, "bad"),
        ({"gold": ["dog"], "is_impossible": False}, True, "bad"),
        ({"answers": [ONE], "is_impossible": True}, True, "bad"),
        ({"answers": [ONE], "is_impossible": True}, False, "bad"),
        ({"answers": [], "is_impossible": False}, True, "bad"),
        ({"answers": [], "is_impossible": True}, False, "bad"),
        ({"answers": [{"text": "", "answer_start": -1}]}, False, "bad"),
    ],
)
def test_questions_without_an_answer(tmp_path, asked, is_v2, expected):
    more = {"has_impossible": is_v2, "on_bad_example": "skip"}
    task = task_on(tmp_path, nested(**asked), **more)
    found = task.read("train")
    if expected == "bad":
        assert not found
        [reason] = task.skipped["train"]
        assert "impossible" in reason or "empty" in reason
        return
    [example] = found
    assert example.is_impossible == (expected == "none")
    right = ("dog",) if expected == "dog" else ()
    assert task.read("dev")[0].answers == right


def test_answer_that_stands_twice_in_a_word_is_counted_for_the_original(tmp_path):
    content = nested(CHINESE, answers=[{"text": "丣两", "answer_start": 12}])
    for form, count in (("original", 1), ("offsets", 0)):
        more = {"words": sorted({*CHINESE}), "max_seq_length": 64}
        task = task_on(tmp_path / form, content, answer_text=form, **more)
        [example] = task.read("train")
        assert sum(task.remarks.get("train", {}).values()) == count
        [features] = task.featurize(example, True)
        place = features["start_positions"] - task.windows(example)[0].shift
        assert place == (3 if count else 12)


def test_dev_questions_without_an_answer_are_counted(tmp_path):
    for answers in ([], [{"text": "", "answer_start": -1}]):
        task = task_on(tmp_path, nested(answers=answers, is_impossible=True))
        assert len(task.read("dev")) == 1
        [remark] = task.remarks["dev"]
        assert "has_impossible" in remark


def test_questions_without_ids_are_numbered(tmp_path):
    rows = [{k: v for k, v in flat(answers=DOG).items() if k != "id"}] * 2
    task = task_on(tmp_path, rows)
    assert [example.question_id for example in task.read("dev")] == ["0", "1"]
    assert "number" in next(iter(task.remarks["dev"]))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("['a', 'b c']", ["a", "b c"]),
        ("['a' 'b']", ["a", "b"]),
        ('["a", "it\'s"]', ["a", "it's"]),
        ("['a',\n       'b']", ["a", "b"]),
        ("['a'\n 'b']", ["a", "b"]),
        ("[1 0 1]", [1, 0, 1]),
        ("[1. 0.]", [1.0, 0.0]),
        ("[true, null]", [True, None]),
        ("('a', 'b')", ["a", "b"]),
        ("[a, b c]", ["a", "b c"]),
        ("[]", []),
        ("{'a': [1]}", {"a": [1]}),
        (ARRAYS, DOG),
        ("(a) and (b)", None),
        ("1843", None),
        ("it's a 'quote'", None),
        ("__import__('os')", None),
    ],
)
def test_printed_lists(text, value):
    assert printed(text) == value
