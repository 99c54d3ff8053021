# SPDX-License-Identifier: Apache-2.0
"""Question answering without a model: data, windows, answers as text."""

import json
import types
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.export.task_signatures import windows_on
from electra_tf.finetune import qa, qa_answers
from electra_tf.text import tokenization, vocabulary
from tests.helpers.own_task import own_tasks


def squad(*questions, context="the dog ran . the cat ran ."):
    return {"data": [{"title": "T", "paragraphs": [paragraph(context, *questions)]}]}


def paragraph(context, *questions):
    return {"context": context, "qas": list(questions)}


def question(name="q", text="who ?", answer="dog", start=4, **more):
    answers = [{"text": answer, "answer_start": start}]
    return {"id": name, "question": text, "answers": answers} | more


def task_on(folder, train, dev=None, test=None, **more):
    files = {"train.json": train, "dev.json": dev or train}
    files |= {"test.json": test} if test else {}
    [task] = own_tasks(folder, files, "qa", **more)
    return task


def refused(function, *expected):
    with pytest.raises(UserError) as caught:
        function()
    for word in expected:
        assert word in str(caught.value), caught.value
    assert str(caught.value).count("\n") <= 2


def answered(task, split, places):
    """The split's scorer, where the answer to question k is the tokens places[k]."""
    scorer = task.scorer(split)
    beam = task.config.beam_size
    for example in task.read(split):
        for number, features in enumerate(task.featurize(example, False)):
            first, last = places[example.eid]
            shift = task.windows(example)[number].shift
            row = {name: np.full([beam], -50.0) for name in ("start_top_log_probs",)}
            row |= {"start_top_index": np.full([beam], first + shift)}
            row |= {"end_top_index": np.full([beam, beam], last + shift)}
            row |= {"end_top_log_probs": np.full([beam, beam], -50.0)}
            row["start_top_log_probs"][0] = row["end_top_log_probs"][0, 0] = 0.0
            scorer.update(row | {"eid": features["eid"], "answerable_logit": -3.0})
    return scorer


def test_predictions_of_a_test_set_need_no_scores(tmp_path):
    asked = [{"id": n, "question": "who ?"} for n in ("a", "b")]
    task = task_on(tmp_path, squad(question()), test=squad(*asked))
    scorer = answered(task, "test", [(1, 1), (5, 6)])
    paths = task.write_predictions("test", scorer, str(tmp_path / "out"))
    *paths, lines = paths
    rows = [json.loads(line) for line in open(lines)]
    assert [row["answer"] for row in rows] == ["dog", "cat ran"]
    assert [row["context"][row["start"] : row["end"]] for row in rows] == [
        row["answer"] for row in rows
    ]
    files = {p.rpartition("_")[2]: json.loads(open(p).read()) for p in paths}
    assert files["preds.json"] == {"a": "dog", "b": "cat ran"}
    assert files["nbest.json"]["a"][0]["text"] == "dog"


def test_submission_applies_the_threshold(tmp_path):
    """The official script has none."""
    asked = [{"id": n, "question": "who ?"} for n in ("a", "b", "c")]
    files = {"train": squad(question()), "test": squad(*asked)}
    task = task_on(tmp_path, **files, has_impossible=True, qa_na_threshold=-3.0)
    scorer = answered(task, "test", [(1, 1), (5, 6), (1, 1)])
    for number, odds in enumerate((-3.1, -3.0, -2.9)):
        scorer.rows[number]["answerable_logit"] = odds
    paths = task.write_predictions("test", scorer, str(tmp_path / "out"))
    files = {p.rpartition("_test_")[2]: p for p in paths}
    preds, odds, given = (
        json.loads(open(files[f"{name}.json"]).read())
        for name in ("preds", "null_odds", "submission")
    )
    assert preds == {"a": "dog", "b": "cat ran", "c": "dog"}
    assert odds == {"a": -3.1, "b": -3.0, "c": -2.9}
    assert given == {"a": "dog", "b": "cat ran", "c": ""}


def test_unusable_questions_are_named(tmp_path):
    bare = {"id": "q", "question": "who ?"}
    task = task_on(tmp_path, squad(question()), squad(bare))
    refused(lambda: task.read("dev"), "dev.json", "'T'", "answers")
    task = task_on(tmp_path, squad(question(text=None)))
    refused(lambda: task.read("train"), "'T'", "question is None")
    twice = squad(question("q"), question("q", start=18, answer="cat"))
    task = task_on(tmp_path, squad(question()), twice)
    refused(lambda: task.read("dev"), "dev.json", "'q'", "twice")


def test_an_empty_context_has_no_answer(tmp_path):
    dev = squad(question(answers=[], is_impossible=True), context=" ")
    task = task_on(tmp_path, squad(question()), dev, has_impossible=True)
    scorer = answered(task, "dev", [(0, 0)])
    results = dict(scorer.get_results())
    assert results["exact"] == 100.0 and scorer.null_odds["q"] > 1000


@pytest.mark.parametrize("form", ["flat", "table", "lines"])
def test_forms_of_hugging_face(tmp_path, form):
    row = {"id": "q", "title": "T", "context": "the dog ran", "question": "who ?"}
    row["answers"] = {"text": ["dog"], "answer_start": [4]}
    content, name = {"version": "1", "data": [row]}, "train.json"
    if form == "table":
        content = squad(question(answers=row["answers"]))
    elif form == "lines":
        content, name = json.dumps(row) + "\n", "train.jsonl"
    [task] = own_tasks(tmp_path, {name: content}, "qa")
    [example] = task.read("train")
    assert (example.start, example.end, example.answer) == (1, 1, "dog")
    assert [e.answers for e in task.read("dev")] == [("dog",)]


def test_answer_is_compared_after_normalization(tmp_path):
    context = "the\u00a0dog\u200b ran"
    data = squad(question(answer="the dog", start=0), context=context)
    [example] = task_on(tmp_path, data).read("train")
    assert (example.start, example.end) == (0, 0)
    data = squad(question(answer="dog\u2003ran", start=4), context=context)
    assert task_on(tmp_path, data).read("train")


def test_question_that_leaves_no_room(tmp_path):
    for more, word in (
        ({"max_query_length": 13}, "12 or less"),
        ({"max_query_length": 64}, "12 or less"),
        ({"beam_size": 17}, "beam_size 17"),
    ):
        refused(lambda m=more: task_on(tmp_path, squad(question()), **m), word)
    task = task_on(tmp_path, squad(question(text="who ? " * 20)), max_query_length=12)
    assert len(list(task.featurize(task.read("train")[0], True))) == 8
    settings = types.SimpleNamespace(max_seq_length=16, max_query_length=16)
    settings.doc_stride, settings.joint_prediction, settings.beam_size = 4, True, 5
    ids = tf.ragged.constant([[1] * 20])
    refused(lambda: windows_on(ids, ids, settings), "max_query_length 16")


# Contexts with answers, and how text is to be read. Thai and Chinese have no spaces.
TEXTS = {
    "french": "Le café d’Éléonore a été très cher à Orléans, où l’été dure peu.",
    "vietnamese": "Hà Nội là thủ đô của nước Việt Nam từ năm 1976 đến nay.",
    "chinese": "北京是中华人民共和国的首都，北京的人口超过两千万，北京很大。",
    "decomposed": "e\u0301te\u0301 v\u0323\u0302i \u1112\u1161\u11ab a\u0323\u0301",
    "hindi": "हिन्दी भाषा क्षिप्रा और ज़्यादा लोग यहाँ दिल्ली में रहते हैं",
    "hebrew": "שָׁלוֹם עֲלֵיכֶם בָּעִיר הַגְּדוֹלָה",
    "thai": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทยและเป็นเมืองที่ใหญ่ที่สุด",
}


def spans_of_words(text, rng):
    """Answers: spans of text that begin and end at no space or accent."""

    def is_mark(character):
        return unicodedata.category(character) == "Mn"

    edges = [i for i, c in enumerate(text) if not (c.isspace() or is_mark(c))]
    for _ in range(60):
        first, last = sorted(rng.choice(edges, 2))
        end = last + 1
        while end < len(text) and is_mark(text[end]):
            end += 1
        yield int(first), text[first:end]


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("language", TEXTS)
def test_answers_are_recovered_by_offsets(tmp_path, language, strip):
    """Answer -> tokens to train on -> text is the answer, in any script."""
    text = TEXTS[language]
    config = vocabulary.TokenizerConfig(True, strip)
    characters = sorted(set("".join(tokenization.basic_tokenize(text, config))))
    words = [*characters, *(f"##{c}" for c in characters)]
    rng = np.random.default_rng(1)
    answers = list(spans_of_words(text, rng))
    asked = [question(str(n), "?", a, s) for n, (s, a) in enumerate(answers)]
    data = squad(*asked, context=text)
    task = task_on(
        tmp_path,
        data,
        max_seq_length=256,
        words=words,
        text=config,
        max_answer_length=99,
    )
    assert task.answer_text == "offsets" and task.tokenizer.config == config
    examples = task.read("train")
    assert len(examples) == len(asked)
    places = []
    for example in examples:
        [features] = task.featurize(example, True)
        shift = task.windows(example)[0].shift
        ends = (features["start_positions"], features["end_positions"])
        places.append(tuple(place - shift for place in ends))
    scorer = answered(task, "dev", places)
    found = [scorer.predictions[str(n)] for n in range(len(answers))]
    same = np.mean([a == b for a, (_, b) in zip(found, answers, strict=True)])
    assert same >= 0.995


def test_original_answer_text_follows_strip_accents(tmp_path):
    """strip_accents false, and the answer is part of a word with an accent."""
    config = vocabulary.TokenizerConfig(True, False)
    words = ["l", "##’", "’", "été", "##é", "dure"]
    data = squad(question(answer="été", start=2), context="l’été dure")
    task = task_on(tmp_path, data, words=words, text=config, answer_text="original")
    scorer = answered(task, "dev", [(2, 2)])
    assert scorer.predictions == {"q": "été"}


def test_windows_have_the_tokens_of_the_features(tmp_path):
    task = task_on(tmp_path, squad(question(), context="the dog ran . " * 30))
    [example] = task.read("dev")
    tokens = task.tokenizer.encode(example.context)
    for features, (places, shift) in zip(
        task.featurize(example, False), task.windows(example), strict=True
    ):
        ids = features["input_ids"]
        assert all(ids[place + shift] == tokens[place] for place in places)
        assert len(ids) == len(places) + places[0] + shift + 1
    assert isinstance(task, qa.QATask) and len(task.windows(example)) > 5


def test_scores_of_a_single_question():
    scores = qa_answers.evaluate_v1({"q": ["a dog"]}, {"q": "the dog"})
    assert scores == {"exact_match": 100.0, "f1": 100.0}
