# SPDX-License-Identifier: Apache-2.0
"""Question answering without a model: files, windows, answers, scores."""

import json
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.model import ModelConfig
from electra_tf.finetune import preprocessing, qa, qa_answers, qa_graph
from electra_tf.finetune.inputs import open_source
from electra_tf.finetune.model import TaskHead
from electra_tf.text import tokenization, vocabulary
from electra_tf.text.tf_tokenization import TFTokenizer
from electra_tf.text.tokenization import PackedTexts
from tests.helpers.own_task import own_tasks
from tests.helpers.runs import refused

CONTEXT = "the dog ran . the cat ran ."
DOG = {"text": ["dog"], "answer_start": [4]}
ONE = {"text": "dog", "answer_start": 4}
CHINESE = "一二三丣两四五六七八九十丣两甲乙丙丁戊己庚辛"


def squad(*questions, context=CONTEXT):
    paragraph = {"context": context, "qas": list(questions)}
    return {"version": "1", "data": [{"title": "T", "paragraphs": [paragraph]}]}


def question(name="q", text="who ?", answer="dog", start=4, **more):
    answers = [{"text": answer, "answer_start": start}]
    return {"id": name, "question": text, "answers": answers} | more


def task_on(folder, train, dev=None, test=None, name="train.json", **more):
    files = {name: train, "dev.json": dev, "test.json": test}
    files = {name: content for name, content in files.items() if content}
    [task] = own_tasks(folder, files, "qa", **more)
    return task


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
            row |= {"eid": features["eid"], "answerable_logit": -3.0}
            scorer.update(row)
    return scorer


@pytest.mark.parametrize("is_v2", [False, True])
def test_files_of_a_test_set(tmp_path, is_v2):
    """They need no scores; the threshold, which the official script lacks, applies."""
    asked = [{"id": n, "question": "who ?"} for n in ("a", "b", "c")]
    more = {"has_impossible": is_v2, "qa_na_threshold": -3.0}
    task = task_on(tmp_path, squad(question()), test=squad(*asked), **more)
    scorer = answered(task, "test", [(1, 1), (5, 6), (1, 1)])
    for number, odds in enumerate((-3.1, -3.0, -2.9)):
        scorer.rows[number]["answerable_logit"] = odds
    *paths, lines = task.write_predictions("test", scorer, str(tmp_path / "out"))
    rows = [json.loads(row) for row in open(lines)]
    assert [row["answer"] for row in rows] == ["dog", "cat ran", "dog"]
    for row in rows:
        assert row["context"][row["start"] : row["end"]] == row["answer"]
    files = {p.rpartition("_test_")[2]: json.loads(open(p).read()) for p in paths}
    assert files.pop("nbest.json")["a"][0]["text"] == "dog"
    assert files.pop("preds.json") == {"a": "dog", "b": "cat ran", "c": "dog"}
    submitted = {"a": "dog", "b": "cat ran", "c": ""}
    more = {"null_odds.json": {"a": -3.1, "b": -3.0, "c": -2.9}}
    assert files == (more | {"submission.json": submitted} if is_v2 else {})


@pytest.mark.parametrize("is_joint", [True, False])
def test_served_answers_are_those_of_trials(tmp_path, is_joint):
    """The graph against the original's decoding, in windows of random states."""
    train = squad(question(answers=[], is_impossible=True))
    more = {"joint_prediction": is_joint, "answerable_classifier": is_joint}
    sizes = {"doc_stride": 4, "n_best_size": 6, "beam_size": 6, "max_answer_length": 4}
    more |= sizes | {"has_impossible": True, "max_seq_length": 16}
    task, rng = task_on(tmp_path, train, **more), np.random.default_rng(3)
    head = TaskHead(ModelConfig(hidden_size=8), task.head, name="qa")
    head.build()
    for variable in head.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    states = tf.constant(rng.normal(size=(16, 99, 8)), tf.float32)

    def compute(inputs):
        length = tf.shape(inputs.input_ids)[1]
        at = tf.range(length)[None] + tf.zeros_like(inputs.input_ids)
        hidden = tf.gather_nd(states, tf.stack([at, inputs.input_ids], -1))
        return head.outputs(hidden, inputs._asdict())

    words = ["the", "dogs", "é", "ran."]
    contexts = [" ".join(rng.choice(words, n % 20)) for n in range(40)]
    questions = ["who ?"[: 5 - n % 6] for n in range(40)]
    tokenizer = TFTokenizer(task.tokenizer.vocab, *task.tokenizer.config)
    served = qa_graph.answers(task, tokenizer, compute, questions, contexts)
    served = {name: value.numpy() for name, value in served.items()}
    for number, context in enumerate(contexts):
        fields = {"question": questions[number], "context": context}
        example, rows = task.input_example(number, fields), []
        for features in task.featurize(example, False):
            ids, types = features["input_ids"], features["segment_ids"]
            row = PackedTexts(*map(tf.constant, ([ids], [[1] * len(ids)], [types])))
            found = qa_graph.outputs(task.config, compute, row)
            rows.append({name: value[0].numpy() for name, value in found.items()})
        found = task.prediction(example, rows)
        assert found["answer"] == served["answer"][number].decode()
        for name in ("score", "probability", "null_odds"):
            expected = pytest.approx(served[name][number], rel=1e-4, abs=1e-4)
            assert found[name] == expected
        start, end = found["start"], found["end"]
        places = [served[name][number] for name in ("start", "end")]
        assert places == ([-1, -1] if start is None else [start, end])
        assert context[start:end] == found["answer"] or start is None
    assert served["null_odds"][0] == 1e4  # of an empty text
    assert b"" in served["answer"] and len({*served["answer"]}) > 15


def test_unusable_questions_are_named(tmp_path):
    bare = {"id": "q", "question": "who ?"}
    task = task_on(tmp_path, squad(question()), squad(bare))
    refused(lambda: task.read("dev"), "dev.json", "'T'", "answers")
    twice = squad(question("q"), question("q", start=18, answer="cat"))
    task = task_on(tmp_path, squad(question()), twice)
    refused(lambda: task.read("dev"), "dev.json", "'q'", "twice")


def test_question_that_leaves_no_room(tmp_path):
    for more, word in (
        ({"max_query_length": 13}, "12 or less"),
        ({"max_query_length": 64}, "12 or less"),
        ({"beam_size": 17}, "beam_size 17"),
    ):
        refused(lambda m=more: task_on(tmp_path, squad(question()), **m), word)
    most = {"max_query_length": 12, "beam_size": 16}
    task = task_on(tmp_path, squad(question(text="who ? " * 20)), **most)
    assert len(list(task.featurize(task.read("train")[0], True))) == 8


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


# Files.


def flat(**asked):
    return {"id": "q", "question": "who ?", "context": CONTEXT} | asked


def nested(context=CONTEXT, **asked):
    return squad({"id": "q", "question": "who ?"} | asked, context=context)


CSV = 'id,question,context,answers\nq,who ?,{},"{}"\n'
TSV = f"id\tquestion\tcontext\tanswer\tanswer_start\nq\twho ?\t{CONTEXT}\tdog\t%s\n"
SPAN = {"text": "dog", "char_spans": [[4, 6]]}
MRQA = {"qid": "q", "question": "who ?", "answers": ["dog"], "detected_answers": [SPAN]}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.json", nested(answers=[ONE])),
        ("train.json", nested(answers=[{"text": "dog", "answer_start": "4"}])),
        ("train.json", nested(answers=[{"id": "1", **ONE}])),  # DRCD
        ("train.json", nested(answers=DOG)),
        ("train.json", [flat(answers=DOG)]),
        ("train.json", [flat(answers=[ONE])]),
        ("train.json", {"version": "1", "data": [flat(answers=DOG)]}),
        ("train.json", [flat(answer="dog", answer_start=4)]),
        ("train.jsonl", json.dumps(flat(answers=DOG)) + "\n"),
        (
            "train.jsonl",
            f"{json.dumps({'header': {'dataset': 'x'}})}\n"
            f"{json.dumps({'context': CONTEXT, 'qas': [MRQA]})}\n",
        ),
        ("train.csv", CSV.format(CONTEXT, json.dumps(DOG).replace('"', '""'))),
        ("train.tsv", TSV % "4"),
        ("train.tsv", TSV % "4.0"),  # pandas, where a place is missing
    ],
)
def test_forms_of_questions(tmp_path, name, content):
    task = task_on(tmp_path, content, name=name, on_bad_example="skip")
    [example] = task.read("train")
    assert (example.question_id, example.question) == ("q", "who ?")
    assert (example.first, example.answer, example.context) == (4, "dog", CONTEXT)
    assert task.read("dev")[0].answers == ("dog",)
    source = open_source(str(tmp_path / name), None, "records")
    [asked] = qa.questions(source)
    assert asked.fields == {"id": "q", "question": "who ?", "context": CONTEXT}


CMRC = {
    "context_text": CONTEXT,
    "qas": [{"query_id": "q", "query_text": "who ?", "answers": ["dog"]}],
}
KEYS = '"context", "question" and "answers": {"text": [...], "answer_start": [...]}'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"document": "x", "query": "y"}], ["entry 0", "document, query", KEYS]),
        ([CMRC], ["but context_text, qas", KEYS]),
        ([flat(answers={"text": ["dog", "cat"], "answer_start": [4]})], ["answers is"]),
        ([flat(answers=ONE)], ["answers is"]),
        ([flat(answers="{'text': ['dog']}")], ["answers is", "as JSON"]),
        ([flat(answers=[{"text": 4, "answer_start": 4}])], ["answers is"]),
        ([flat(answers=[{"text": "dog", "answer_start": "x"}])], ["answers is"]),
        ([flat(answers=[ONE], is_impossible="maybe")], ["is_impossible is 'maybe'"]),
        ([flat(answers=[ONE], question=None)], ["question is None"]),
        (["x"], ["array of objects"]),
        (nested(context=["x"], answers=[ONE]), ["no context (a text)", KEYS]),
        *(
            (
                {"data": [{"paragraphs": [{"context": "x", "qas": qas}]}]},
                ["paragraph 0"],
            )
            for qas in (1, "who ?", ["who ?"], [["who ?"]])
        ),
        ("[1", ["train.json", "JSON"]),
    ],
)
def test_other_forms_are_refused_with_their_keys(tmp_path, content, words):
    task = task_on(tmp_path, content)
    refused(lambda: task.read("train"), "train.json", *words)


@pytest.mark.parametrize("form", ["offsets", "original"])
@pytest.mark.parametrize(
    ("context", "text", "start", "place", "is_counted"),
    [
        (CONTEXT, "dog", 4, 4, False),
        (CONTEXT, "ran", 22, 22, False),
        # Elsewhere, but only once: counted from another place, in bytes, in UTF-16.
        (CONTEXT, "dog", 2, 4, True),
        (CONTEXT, "dog ran", 5, 4, True),
        (CONTEXT, "dog", 14, 4, True),
        (CONTEXT, "dog", -1, 4, True),
        (CONTEXT, "dog", None, 4, False),
        (CHINESE, "甲乙", 3 * 14, 14, True),
        ("One.\r\n" * 99 + "the dog", "dog", 99 * 5 + 4, 99 * 6 + 4, True),
        ("\U0001f600" * 9 + "the dog", "dog", 22, 13, True),
        # Elsewhere and several times.
        (CONTEXT, "ran", 9, None, False),
        (CONTEXT, "ran", None, None, False),
        ("a b a", "a", 2, None, False),
        (CHINESE, "丣两", 9, None, False),
        (CHINESE, "丣两", 3 * 12, None, False),
        (CHINESE, "丣两", -1, None, False),
        (CONTEXT, "bird", 4, None, False),
        ("the dog", "dog ran", 4, None, False),
        # As the tokenizer sees both.
        ("the\u00a0dog ran", "the dog", 0, 0, False),
        ("the\u00a0dog\u200b ran", "dog\u2003ran", 4, 4, False),
        ("the DOG ran", "dog", 4, 4, False),
    ],
)
def test_answers_are_compared_with_their_place(
    tmp_path, form, context, text, start, place, is_counted
):
    answers = [{"text": text, "answer_start": start}]
    more = {"answer_text": form, "on_bad_example": "skip"}
    task = task_on(tmp_path, nested(context, answers=answers), **more)
    found = [example.first for example in task.read("train")]
    assert found == ([] if place is None else [place])
    assert bool(task.remarks) == is_counted
    if place is None:
        [reason] = task.skipped["train"]
        assert f"is there {context.count(text)} times" in reason
        refused(
            lambda: preprocessing.features(task.config, [task], "train", True),
            *("no example of train", "1 left out, as", repr(text)[:-1]),
        )


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


def test_dev_questions_without_an_answer_are_counted(tmp_path):
    for answers in ([], [{"text": "", "answer_start": -1}]):
        task = task_on(tmp_path, nested(answers=answers, is_impossible=True))
        assert len(task.read("dev")) == 1
        [remark] = task.remarks["dev"]
        assert "has_impossible" in remark


def test_a_dev_question_without_an_answer_counts_as_wrong():
    scores = qa_answers.evaluate_v1({"q": (), "r": ("dog",)}, {"q": "", "r": "dog"})
    assert scores == {"exact_match": 50.0, "f1": 50.0}


def test_questions_without_ids_are_numbered(tmp_path):
    rows = [{k: v for k, v in flat(answers=DOG).items() if k != "id"}] * 2
    task = task_on(tmp_path, rows)
    assert [example.question_id for example in task.read("dev")] == ["0", "1"]


# Scores.


@pytest.mark.parametrize(
    ("gold", "predicted", "exact", "f1"),
    [
        # What CMRC 2018's script computes.
        ("北京市", "北京市", 1, 1),
        ("北京", "北京。", 1, 1),
        ("《北京》", "“北京”", 1, 1),
        ("北京市", "市", 0, 0.5),
        ("广州市", "广州", 0, 0.8),
        ("北京市", "京北市", 0, 1 / 3),
        ("在北京市工作", "北京市和工作", 0, 0.5),  # the longest part alone
        ("NBA球员", "nba", 0, 0.5),
        ("2008年8月", "2008年", 0, 2 / 3),
        ("1,000元", "1,000", 0, 2 / 3),
        ("The dog 狗", "the cat 狗", 0, 1 / 3),
        ("36.5%", "36.5", 0, 2 / 3),
        ("", "北", 0, 0),
        # Other scripts, and punctuation that its list lacks.
        ("東京タワー", "東京", 0, 4 / 7),
        ("【東京】…", "東京〜", 1, 1),
        ("กรุงเทพ", "กรุง", 0, 8 / 11),
        ("서울 시내", "서울", 0, 2 / 3),
    ],
)
def test_scores_by_characters(gold, predicted, exact, f1):
    assert qa_answers.exact(gold, predicted, "characters") == exact
    found = qa_answers.f1(gold, predicted, False, "characters")
    assert found == pytest.approx(f1)


@pytest.mark.parametrize("is_v2", [False, True])
def test_score_by_characters_is_named_and_offered(tmp_path, is_v2):
    answers = [{"text": "甲乙丙。", "answer_start": 14}]
    content = nested(CHINESE.replace("丁", "。"), answers=answers)
    words = [*sorted({*CHINESE}), "。", "?", "who"]
    more = {"words": words, "max_seq_length": 64, "has_impossible": is_v2}
    task = task_on(tmp_path / "words", content, **more)
    names = {"exact": 0.0} if is_v2 else {"exact_match": 0.0}
    results = dict(answered(task, "dev", [(14, 15)]).get_results())
    assert names.items() <= results.items() and results["f1"] == 0.0
    [note] = task.remarks["dev"]
    assert '"score_by": "characters"' in note
    task = task_on(tmp_path / "characters", content, score_by="characters", **more)
    results = dict(answered(task, "dev", [(14, 15)]).get_results())
    assert results["f1 (characters)"] == pytest.approx(80.0) and "f1" not in results
    assert task.main_metric in results and not task.remarks
    results = dict(answered(task, "dev", [(14, 16)]).get_results())
    assert {100.0} == {results[name] for name in (*names, "f1 (characters)")}
