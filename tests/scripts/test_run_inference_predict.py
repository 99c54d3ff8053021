# SPDX-License-Identifier: Apache-2.0
"""run_inference.py predict, and electra_tf.load, on models of every kind of task."""

import functools
import json
import shutil
from itertools import count

import pytest

import electra_tf
from electra_tf.errors import UserError
from electra_tf.finetune.inputs import Input, open_source
from tests.helpers.runs import run_script
from tests.helpers.tiny_finetuning import own_sentences

TEXTS = [" ".join(words) for words in own_sentences(6)]
LINES = "".join(f"{text}\n" for text in TEXTS)


@pytest.fixture(scope="module")
def data(finetuned_own):
    return finetuned_own


@pytest.fixture(scope="module")
def trial(data):
    [folder] = (data / "models" / "own" / "finetuning_models").iterdir()
    return folder


@functools.cache
def load(trial, task):
    return electra_tf.load(trial, task)


def written(data, task):
    """The predictions of a test set as the trial wrote them, without example ids."""
    results = data / "models" / "own" / "results"
    [path] = results.glob(f"*_test_predictions/trial_1/{task}_test.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "eid"} for row in rows]


def without_ids(rows):
    return [{k: v for k, v in row.items() if k != "id"} for row in rows]


def asked_in(model, path):
    form = "conll" if path.suffix == ".txt" else None
    return model.read_inputs(open_source(str(path), form, model.reads))


def close(ours, theirs):
    """The same except for rounding."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            if name in ("value", "score", "probability", "probabilities"):
                assert b[name] == pytest.approx(value, abs=1e-5), name
            else:
                assert b[name] == value


@pytest.mark.parametrize(
    ("task", "file"),
    [
        ("reviews", "own/test.tsv"),
        ("topics", "own/test.tsv"),
        ("scores", "own/test.tsv"),
        ("names", "own/test.txt"),
        ("faq", "own/test.json"),
        ("sts", "finetuning_data/sts/test.tsv"),
    ],
)
def test_predictions_equal_those_of_the_trial(data, trial, task, file):
    model = load(trial, task)
    rows, expected = list(model.rows(asked_in(model, data / file))), written(data, task)
    if task == "sts":  # its files have an index
        assert [row.pop("id") for row in rows] == [str(n) for n in range(20)]
    close(rows, expected)
    if task == "reviews":
        close(model.predict(TEXTS), without_ids(expected))
        close(model.predict(TEXTS[0]), without_ids(expected[:1]))
    if task == "names":
        close(model.predict(own_sentences(6)), expected)
        texts = [{"text": text} for text in TEXTS]
        running = [text | row for text, row in zip(texts, expected, strict=True)]
        close(model.predict(TEXTS), running)
        close(model.predict(texts), running)
    if task == "faq":
        questions = [(row["question"], row["context"]) for row in expected]
        close(model.predict(questions), without_ids(expected))
        assert model.predict([("who ?", "")])[0]["start"] is None


def test_predictions_hold_text_and_all_probabilities(data):
    for n, (row, text) in enumerate(zip(written(data, "reviews"), TEXTS, strict=True)):
        assert row["id"] == f"r{n}" and row["text"] == text
        assert set(row["probabilities"]) == {"good", "awful"}
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
        assert sum(row["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    for row in written(data, "topics"):
        assert set(row["probabilities"]) == {"begin", "end"}
        assert row["labels"] == [k for k, v in row["probabilities"].items() if v > 0.5]
    for row, words in zip(written(data, "names"), own_sentences(6), strict=True):
        assert row["words"] == words and len(row["tags"]) == len(words)
        assert {tag.partition("-")[0] for tag in row["tags"]} <= {"I", "B", "O"}
        assert all(0 < share <= 1 for share in row["probabilities"])
    for n, row in enumerate(written(data, "faq")):
        assert row["id"] == f"test{n}" and row["context"] == TEXTS[n]
        assert row["context"][row["start"] : row["end"]] == row["answer"]


def test_inputs_are_read_lazily(trial):
    read = []
    asked = (read.append(n) or Input("", {"text": TEXTS[n % 6]}) for n in count())
    rows = load(trial, "reviews").rows(asked)
    found = [next(rows)["text"] for _ in range(700)]
    assert found == [TEXTS[n % 6] for n in range(700)]
    assert len(read) <= 1024


def test_a_trial_elsewhere_needs_its_vocabulary_but_no_data(data, trial, tmp_path):
    copy = shutil.copytree(trial, tmp_path / "trial")
    with pytest.raises(UserError, match="vocab.txt.*does not exist.\n.*--data-dir"):
        electra_tf.load(copy, "reviews")
    shutil.copy(data / "vocab.txt", tmp_path)
    model = electra_tf.load(copy, "reviews", str(tmp_path))
    close(model.predict(TEXTS), without_ids(written(data, "reviews")))
    settings = '{"do_lower_case": true, "strip_accents": false}'
    (tmp_path / "vocab.txt.json").write_text(settings)
    with pytest.raises(UserError, match="its text is uncased, accents stripped"):
        electra_tf.load(copy, "reviews", str(tmp_path))


def test_predict_reads_standard_input_and_writes_standard_output(data, trial):
    flags = ("--model", str(trial), "--task", "reviews", "--input-format", "txt")
    done = run_script("run_inference.py", "predict", *flags, text=LINES)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    close(rows, without_ids(written(data, "reviews")))
