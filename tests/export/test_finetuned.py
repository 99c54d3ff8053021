# SPDX-License-Identifier: Apache-2.0
"""Fine-tuned models as SavedModels: raw strings in, the answers of evaluation out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from electra_tf.errors import UserError
from electra_tf.export import (
    conversions,
    finetuned,
    question_answering,
    saved_models,
)
from electra_tf.export.formats import ExportRequest
from electra_tf.finetune import inputs, prediction, qa, qa_scorer
from electra_tf.finetune.classification import InputExample
from electra_tf.finetune.tagging import TaggingExample, spans_of
from electra_tf.finetune.task import FACTS_FILE, read_facts
from tests.helpers import tiny_finetuning
from tests.helpers.exporting import NAMES, Failed, fresh_process, shared_export
from tests.helpers.runs import run_script
from tests.helpers.tiny_trials import (
    JOINT,
    PLAIN,
    SQUAD,
    TOPICS,
    topics_task,
    write_data,
    write_run,
)

TASKS = ("cola", "sts", "chunk", "squad")
WORDS = tiny_finetuning.WORDS
LONG = " ".join(WORDS * 50)
# Pairs with an empty text, one as long as the model reads; none is as long as them.
EMPTY = (["waa wab", LONG, "", "\u200b"], ["", "\u200b", "waa wab", LONG])
BAD_UTF8 = b"waa \xff wab\xfe waz".decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def runs(data):
    """Name of an export -> (config, task, model)."""
    texts = write_run(data, {"task_names": ["cola", "sts", "chunk"]})
    found = {task.name: (texts[0], task, texts[2]) for task in texts[1]}
    for name, hparams in (("squad", JOINT), ("plain", PLAIN)):
        config, [task], model = write_run(data, SQUAD | hparams)
        found[name] = config, task, model
    hparams = {"task_names": ["topics"]} | topics_task(data)
    config, [task], model = write_run(data, hparams)
    return found | {"topics": (config, task, model)}


@pytest.fixture(scope="module")
def exports(data, runs, tmp_path_factory):
    """Name -> SavedModel; of the command line one, of the others its functions."""
    folder = tmp_path_factory.mktemp("exports")
    done = run_script(
        *("export_model.py", "--data-dir", str(data), "--model-name", "m"),
        *("--format", "saved_model", "--what", "cola", "--output-dir", str(folder)),
    )
    assert done.returncode == 0, done.stderr
    assert "greatest difference from the model" in done.stdout
    found = {"cola": folder / "cola" / "1"}
    for name in ("sts", "chunk", "squad", "plain", "topics"):
        config, task, _ = runs[name]
        source = finetuned.read_task(_path(config), task.name)
        made = saved_models.TASKS[source.facts.kind](source)
        found[name] = saved_models.write_saved_model(made, source.source, name, folder)
    return found


def _path(config):
    return Path(config.trial_dir(1))


def questions():
    """Questions on texts of one window and of many, and on none."""
    rng = np.random.default_rng(8)
    lengths = (1, 4, 12, 16, 17, 18, 30, 80)
    contexts = [" ".join(rng.choice(WORDS, n)) for n in lengths]
    asked = [" ".join(rng.choice(WORDS, n % 7)) for n in range(len(contexts))]
    return asked, [c.replace("wba", "wba,") for c in contexts]


def columns(**texts):
    return ("serving_default", {k: ("string", v) for k, v in texts.items()})


@pytest.fixture(scope="module")
def answers(exports, data, tmp_path_factory):
    """Name of an export -> its answers, in a process without electra_tf."""
    asked, contexts = questions()
    lines = (data / "finetuning_data/cola/dev.tsv").read_text().splitlines()
    cola = [line.split("\t")[3] for line in lines] + [LONG[:600]]
    odd = ["", LONG, BAD_UTF8, "\u00c9 waa\u0301 [MASK]"]
    empty = {"text": ("string", [], [0])}
    ids = {n: ("int32", [[2, 7, 3]]) for n in NAMES[:1]}
    ids |= {NAMES[1]: ("int32", [[1] * 3]), NAMES[2]: ("int32", [[0] * 3])}
    bad = ids | {NAMES[0]: ("int32", [[2, 999, 3]])}
    of_text = [
        columns(text=cola),
        columns(text=odd),
        ("serving_default", empty),
        ("ids", ids),
        ("ids", bad),
    ]
    pairs = [
        columns(text=cola, text_b=cola[::-1]),
        columns(text=odd, text_b=odd[::-1]),
        ("serving_default", empty | {"text_b": ("string", [], [0])}),
        columns(text=["waa"], text_b=["waa", "wab"]),
        columns(text=EMPTY[0], text_b=EMPTY[1]),
    ]
    none = {"question": ("string", [], [0]), "context": ("string", [], [0])}
    of_questions = [
        columns(question=asked, context=contexts),
        columns(question=odd, context=odd[::-1]),
        ("serving_default", none),
        columns(question=["waa"], context=["waa", "wab"]),
        columns(question=["waa"] * 2, context=["", " "]),
        ("ids", ids),
    ]
    calls = {
        "cola": of_text,
        "sts": pairs,
        "chunk": of_text,
        "squad": of_questions,
        "plain": of_questions,
    }
    jobs = [("serve", {"model": exports[k], "calls": v}) for k, v in calls.items()]
    found = fresh_process(tmp_path_factory.mktemp("fresh"), *jobs)
    for answer in found:
        assert not isinstance(answer, Failed), answer.traceback
    return dict(zip(calls, found, strict=True)), cola


def head_outputs(run, example):
    """What evaluation computes for an example: full length, one row."""
    config, task, model = run
    found = []
    for features in task.featurize(example, False):
        batch = {
            name: np.zeros([1, config.max_seq_length], np.int32)
            for name in ("input_ids", "input_mask", "segment_ids")
        }
        for spec in task.feature_specs():
            value = np.zeros([1, *spec.shape], spec.dtype)
            given = features.get(spec.name, 0)
            if spec.shape:
                value[0, : len(given)] = given
            else:
                value[0] = given
            batch[f"{task.name}:{spec.name}"] = value
        ids = features["input_ids"]
        batch["input_ids"][0, : len(ids)] = ids
        batch["input_mask"][0, : len(ids)] = 1
        batch["segment_ids"][0, : len(ids)] = features["segment_ids"]
        batch["task_id"] = np.zeros([1], np.int32)
        outputs = model(batch).outputs[task.name]
        found.append({k: v.numpy()[0] for k, v in outputs.items()})
    return found


def test_classes_are_those_of_evaluation(runs, answers):
    found, texts = answers
    outputs = found["cola"][0]["ok"]
    for row, text in enumerate(texts):
        [expected] = head_outputs(runs["cola"], InputExample(0, text, None, "0"))
        probs = tf.nn.softmax(expected["logits"]).numpy()
        np.testing.assert_allclose(outputs["probabilities"][row], probs, atol=2e-6)
        assert outputs["label"][row] == "01"[int(expected["predictions"])]
        assert outputs["labels"][row] == ["0", "1"]
    assert len(set(outputs["label"])) == 2


def test_numbers_are_those_of_evaluation(runs, answers):
    found, texts = answers
    values = found["sts"][0]["ok"]["value"]
    for value, a, b in zip(values, texts, texts[::-1], strict=True):
        [row] = head_outputs(runs["sts"], InputExample(0, a, b, "0"))
        assert value == pytest.approx(float(runs["sts"][1].answer(row)), abs=6e-4)
    assert len({round(value, 2) for value in values}) > 2
    assert "as many rows" in found["sts"][3]["message"]
    for value, a, b in zip(found["sts"][4]["ok"]["value"], *EMPTY, strict=True):
        [row] = head_outputs(runs["sts"], InputExample(0, a, b, "0"))
        assert value == pytest.approx(float(runs["sts"][1].answer(row)), abs=6e-4)


def test_tags_are_those_of_evaluation(runs, answers):
    found, texts = answers
    outputs = found["chunk"][0]["ok"]
    task = runs["chunk"][1]
    for row, text in enumerate(texts[:-1]):
        words = text.split()
        example = TaggingExample(0, words, ["O"] * len(words))
        [expected] = head_outputs(runs["chunk"], example)
        tags = task.scorer("dev").tags(expected, "predictions")
        count = outputs["num_words"][row]
        assert outputs["words"][row][:count] == words
        assert outputs["labels"][row][:count] == tags
        spans = zip(outputs["starts"][row], outputs["ends"][row], strict=True)
        assert [text[s:e] for s, e in spans][:count] == words
        assert set(outputs["labels"][row][count:]) <= {""}
    assert len(set(sum(outputs["labels"], []))) > 2


@pytest.mark.parametrize("name", ["squad", "plain"])
def test_answers_are_those_of_evaluation(runs, answers, name):
    config, task, _ = runs[name]
    outputs = answers[0][name][0]["ok"]
    asked, contexts = questions()
    source = finetuned.read_task(_path(config), "squad")
    for row, (question, context) in enumerate(zip(asked, contexts, strict=True)):
        words, _ = qa.split_words(context)
        example = qa.QAExample(0, "q", question, words, None, None, "", False)
        rows = head_outputs(runs[name], example)
        best = question_answering.in_python(source, question, context).best
        assert outputs["answer"][row].replace("\n", " ") == best.text
        score = best.start_logit + best.end_logit
        assert outputs["score"][row] == pytest.approx(score, rel=1e-5, abs=1e-4)
        odds = qa_scorer.null_odds(config, rows, best)
        assert outputs["null_odds"][row] == pytest.approx(odds, rel=1e-5, abs=1e-4)
        start, end = outputs["start"][row], outputs["end"][row]
        assert context[start:end] == outputs["answer"][row]
        assert outputs["has_answer"][row] == (odds <= config.qa_na_threshold)
        assert 0 <= outputs["probability"][row] <= 1
    assert len(set(outputs["answer"])) > 4


def asked_of(name):
    """Inputs of one window, or less, and of many for questions.

    One has half a pair of surrogates, as JSON may have.
    """
    asked, contexts = questions()
    contexts = [f"\ud800 {contexts[0]}", *contexts]
    if name in ("squad", "plain"):
        return list(zip([asked[0], *asked], contexts, strict=True))
    texts = [c for c in contexts if len(c.split()) < 15]
    if name == "sts":
        return list(zip(texts, texts[::-1], strict=True))
    if name == "topics":
        return [{"text": text, "id": n} for n, text in enumerate(texts)]
    return [text.split() for text in texts] if name == "chunk" else texts


@pytest.mark.parametrize("name", ["squad", "plain"])
def test_without_a_text_the_answer_is_the_trials(runs, exports, name):
    config, task, _ = runs[name]
    trial = electra_tf.load(config.trial_dir(1), task.name)
    asked = [("waa", ""), ("waa wab", " "), ("", "")]
    ours, theirs = electra_tf.load(exports[name]).predict(asked), trial.predict(asked)
    assert ours == theirs
    assert {row["null_odds"] for row in ours} == {1e4}


@pytest.mark.parametrize("name", ["cola", "sts", "chunk", "squad", "plain", "topics"])
def test_an_export_predicts_what_its_trial_does(runs, exports, name):
    config, task, _ = runs[name]
    trial = electra_tf.load(config.trial_dir(1), task.name)
    export = electra_tf.load(exports[name])
    assert (export.name, export.reads) == (trial.name, trial.reads)
    asked = asked_of(name)
    for ours, theirs in zip(export.predict(asked), trial.predict(asked), strict=True):
        assert ours.keys() == theirs.keys()
        if name == "chunk":  # here the graph's labels, there the scheme of the data
            ours["tags"], theirs["tags"] = map(spans_of, (ours["tags"], theirs["tags"]))
        for key, value in theirs.items():
            if isinstance(value, float | dict) or key == "probabilities":
                value = pytest.approx(value, rel=1e-4, abs=1e-3)
            # Of an answer it is that in its window there, among the best ones here.
            assert key == "probability" or ours[key] == value
        if name == "topics":
            assert "id" in ours and set(ours["probabilities"]) == set(TOPICS)


def test_a_multilabel_model_says_each_probability(runs, exports):
    loaded = tf.saved_model.load(str(exports["topics"]))
    text = "waa wab wac"
    said = loaded.signatures["serving_default"](text=tf.constant([text]))
    assert set(said) == {"labels", "probabilities"}
    assert [x.decode() for x in said["labels"].numpy()[0]] == list(TOPICS)
    [row] = head_outputs(runs["topics"], InputExample(0, text, None, ()))
    expected = 1 / (1 + np.exp(-row["logits"]))
    np.testing.assert_allclose(said["probabilities"][0], expected, atol=1e-5)


def test_what_is_no_task_does_not_predict(data, exports, tmp_path):
    with pytest.raises(UserError, match="no SavedModel of a fine-tuned task"):
        electra_tf.load(shared_export("electra", "encoder"))
    copy = tmp_path / "1"
    shutil.copytree(exports["cola"], copy)
    assert electra_tf.load(tmp_path).predict("waa")[0]["label"] in ("0", "1")
    weights = next((copy / "variables").glob("*.data*"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="its checksum differs"):
        electra_tf.load(tmp_path)


def test_odd_texts_and_none(answers):
    found, _ = answers
    for name in ("cola", "sts", "chunk", "squad", "plain"):
        odd, empty = (found[name][i] for i in (1, 2))
        assert "ok" in odd and "ok" in empty, (name, odd, empty)
        for output in empty["ok"].values():
            assert len(output) == 0
        for output in odd["ok"].values():
            assert len(output) == 4
    chunk = found["chunk"][1]["ok"]
    assert chunk["num_words"][:3] == [0, 2750, 3]
    assert chunk["words"][2][:3] == ["waa", "wab", "waz"]
    for name in ("squad", "plain"):
        nothing = found[name][4]["ok"]
        assert nothing["answer"] == ["", ""] and nothing["start"] == [-1, -1]


def test_bad_ids_are_refused_in_words(answers):
    found, _ = answers
    for name in ("cola", "chunk"):
        assert "ok" in found[name][3]
        assert "from 0 to] [59]" in found[name][4]["message"]
    assert "questions and contexts" in found["squad"][3]["message"]
    assert "from 5 to 32 tokens" in found["squad"][5]["message"]
    assert "ok" in found["plain"][5]  # Only the joint head needs as many.


def test_labels_stand_in_the_manifest(exports):
    manifest = json.loads((exports["chunk"] / "manifest.json").read_text())
    assert manifest["task"] == "chunk" and manifest["step"] == 9
    assert manifest["labels"] == sorted(manifest["labels"]) and manifest["labels"]


def test_which_model(data, runs):
    def request(what, init_checkpoint=None):
        return ExportRequest(
            "saved_model", "out", str(data), "m", init_checkpoint, what=what
        )

    assert finetuned.trial_dir_of(request("cola")) == _path(runs["cola"][0])
    with pytest.raises(UserError, match="several models for squad: other_1, squad"):
        finetuned.trial_dir_of(request("squad"))
    with pytest.raises(UserError, match="cola, squad, sts"):
        finetuned.trial_dir_of(request("detecter"))
    with pytest.raises(UserError, match="no directory of a fine-tuned model"):
        finetuned.trial_dir_of(request("cola", str(data)))
    with pytest.raises(UserError, match="was not fine-tuned on 'squad'"):
        finetuned.read_task(_path(runs["cola"][0]), "squad")
    with pytest.raises(UserError, match="--hparams does not go with --what cola"):
        finetuned.trial_dir_of(request("cola")._replace(hparams={"precision": "x"}))


def test_a_copy_of_a_trial_is_no_trial(data, runs):
    folder = _path(runs["cola"][0])
    copy = folder.with_name(f"{folder.name}.bak")
    copy.mkdir()
    try:
        shutil.copy(folder / "config.json", copy)
        request = ExportRequest("saved_model", "out", str(data), "m", what="cola")
        assert finetuned.trial_dir_of(request) == folder
    finally:
        shutil.rmtree(copy)


def test_labels_without_data_and_data_without_labels(data, runs, tmp_path):
    folder = _path(runs["chunk"][0])
    facts = read_facts(folder)
    kept = (folder / FACTS_FILE).read_text()
    (folder / FACTS_FILE).unlink()
    assert finetuned.read_task(folder, "chunk").facts == facts[2]
    (folder / FACTS_FILE).write_text(kept[:50])
    with pytest.raises(UserError, match="cannot be read"):
        finetuned.read_task(folder, "chunk")
    (folder / FACTS_FILE).write_text(kept)


def test_a_token_classifier_of_hugging_face_predicts(runs, tmp_path):
    pytest.importorskip("safetensors")
    config = runs["chunk"][0]
    task = finetuned.read_task(_path(config), "chunk")
    conversions.write_task(task, _path(config), tmp_path, log=lambda line: None)
    model = electra_tf.load(tmp_path / "chunk")
    trial = electra_tf.load(config.trial_dir(1), "chunk")
    asked = asked_of("chunk")
    for ours, theirs in zip(model.predict(asked), trial.predict(asked), strict=True):
        assert set(ours["tags"]) <= set(task.facts.labels)
        assert spans_of(ours["tags"]) == spans_of(theirs["tags"])
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-4)
    path = tmp_path / "chunk" / "config.json"
    (tmp_path / "chunk" / "manifest.json").unlink()
    said = path.read_text()
    for kind, words in (
        ("ElectraForSequenceClassification", "weights beside it are those of"),
        ("ElectraForMultipleChoice", "whose head cannot be read"),
    ):
        path.write_text(said.replace("ElectraForTokenClassification", kind))
        with pytest.raises(UserError, match=f"{kind}.* {words}"):
            electra_tf.load(tmp_path / "chunk")


@pytest.mark.parametrize("name", ["cola", "sts", "topics", "plain"])
def test_what_hugging_face_reads_predicts_as_the_trial(runs, tmp_path, name):
    pytest.importorskip("safetensors")
    config, task, _ = runs[name]
    exported = finetuned.read_task(_path(config), task.name)
    conversions.write_task(exported, _path(config), tmp_path, log=lambda line: None)
    model = electra_tf.load(tmp_path / task.name)
    trial = electra_tf.load(config.trial_dir(1), task.name)
    asked = asked_of(name) + ([LONG] if name == "cola" else [])
    ours, theirs = model.predict(asked), trial.predict(asked)
    assert len(ours) == len(asked)
    for row, expected in zip(ours, theirs, strict=True):
        assert row.keys() == expected.keys()
        for key, value in expected.items():
            is_number = isinstance(value, float | dict)
            wanted = pytest.approx(value, abs=1e-5) if is_number else value
            assert row[key] == wanted, key
    with pytest.raises(UserError, match="input 0"):
        model.predict([("a", "b", "c")])


@pytest.mark.parametrize("kind", ["classification", "tagging"])
def test_exports_read_the_tables_of_their_trial(data, tmp_path, kind):
    """By the columns of the description, the user's own ids with them."""
    pytest.importorskip("safetensors")
    row = {"nr": "n7", "id": "no", "index": 3, "words": ["no"]}
    row |= {"tokens": WORDS[:3], "tags": ["B-A", "O", "O"], "said": "waa", "class": "y"}
    file = tmp_path / "own.jsonl"
    other = row | {"class": "n", "nr": "n8", "tokens": WORDS[1:3], "tags": ["O"] * 2}
    file.write_text(json.dumps(row) + "\n" + json.dumps(other) + "\n")
    description = {"type": kind, "train": str(file), "dev": str(file), "id": "nr"}
    if kind == "tagging":
        description |= {"words": "tokens", "tags": "tags"}
    else:
        description |= {"text_a": "said", "label": "class"}
    hparams = {"task_names": ["own"], "tasks": {"own": description}}
    config, _, _ = write_run(data, hparams | {"model_dir": f"own_{kind}"})
    task = finetuned.read_task(_path(config), "own")
    made = saved_models.TASKS[kind](task)
    saved = saved_models.write_saved_model(made, task.source, "own", tmp_path / "s")
    conversions.write_task(task, _path(config), tmp_path / "hf", log=lambda line: None)
    found = []
    for path in (config.trial_dir(1), saved, tmp_path / "hf" / "own"):
        model = electra_tf.load(path)
        rows = model.rows(model.asked(inputs.Source.of(file)))
        keys = ("id", "text", "words")
        found.append([{k: row[k] for k in keys if k in row} for row in rows])
    assert [row["id"] for row in found[0]] == ["n7", "n8"]
    assert found[1] == found[0] and found[2] == found[0]


def test_exports_know_their_task_and_the_ids_of_glue(data, runs, exports, tmp_path):
    pytest.importorskip("safetensors")
    config = runs["cola"][0]
    task = finetuned.read_task(_path(config), "cola")
    conversions.write_task(task, _path(config), tmp_path / "hf", log=lambda line: None)
    asked = [{"index": 4, "sentence": "waa"}]
    for path in (exports["cola"], tmp_path / "hf" / "cola"):
        [row] = electra_tf.load(path, task="cola").predict(asked)
        assert row["id"] == 4 and row["text"] == "waa"
        with pytest.raises(UserError, match="--task sts: .* is of the task 'cola'"):
            electra_tf.load(path, task="sts")
        with pytest.raises(UserError, match="is of the task 'cola'"):
            prediction.load_predictor(str(path), task="classification")
    (tmp_path / "hf" / "cola" / "manifest.json").unlink()
    with pytest.raises(UserError, match="does not say what task it has"):
        electra_tf.load(tmp_path / "hf" / "cola", task="cola")
