# SPDX-License-Identifier: Apache-2.0
"""run_inference.py predict, and electra_tf.load, on models of every kind of task."""

import fcntl
import functools
import io
import json
import os
import shutil
import signal
from itertools import count

import pytest

import electra_tf
from electra_tf.console import Console
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune.inputs import Asked, open_source
from electra_tf.inference import prediction
from tests.helpers import forked_runs
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
    return model.asked(open_source(str(path), None, model.reads))


def write(model, path, output, resume=False):
    """Writes the predictions of a file in this process; returns what was logged."""
    log = io.StringIO()
    prediction.write(model, asked_in(model, path), str(output), resume, Console(log))
    return log.getvalue()


def refused(pattern, *args, code=2, **kwargs):
    with pytest.raises(UserError, match=pattern) as caught:
        write(*args, **kwargs)
    assert caught.value.exit_code == code


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
    asked = (read.append(n) or Asked("", {"text": TEXTS[n % 6]}) for n in count())
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
    with pytest.raises(UserError, match="text that is uncased, accents stripped"):
        electra_tf.load(copy, "reviews", str(tmp_path))


def test_predict_reads_standard_input_and_writes_standard_output(data, trial):
    flags = ("--model", str(trial), "--task", "reviews", "--input-format", "txt")
    done = run_script("run_inference.py", "predict", *flags, text=LINES)
    assert done.returncode == 0 and "6 texts, " in done.stderr, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    close(rows, without_ids(written(data, "reviews")))


# Mistakes.


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.tsv", "id\ttexd\n1\ta\n", "x.tsv has no column 'text'.*'texd'?"),
        ("x.txt", b"a\nb\xe9\n", "x.txt, line 2.*not UTF-8"),
        ("x.xlsx", "a", "x.xlsx is xlsx(.|\n)*tsv, csv, jsonl, parquet, txt"),
    ],
)
def test_bad_lines_are_named_and_leave_no_output(trial, tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(words, load(trial, "reviews"), path, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_models_and_tasks_that_do_not_exist(trial, tmp_path):
    for place, task, pattern in (
        (tmp_path, None, "no fine-tuned model"),
        (trial.parents[1], None, f"Its fine-tuned models.*{trial.name}"),
        (trial, None, "several tasks: reviews(.|\n)*--task"),
        (trial, "revews", "not fine-tuned on 'revews'(.|\n)*reviews"),
    ):
        with pytest.raises(UserError, match=pattern):
            prediction.load_predictor(str(place), task)
    with pytest.raises(UserError, match="--input-format"):
        open_source("-", None, "texts")
    with pytest.raises(UserError, match="input 0 is"):
        load(trial, "reviews").predict([("a", "b")])


# Interruptions.


def kill_after_7():
    """kill -9 of this process in the midst of the 8th prediction."""
    from electra_tf.inference import prediction, predictor

    predictor._CHUNK = 8
    write = prediction._Unfinished.write

    def counted(self, row):
        write(self, row)
        if self.count == 7:
            self._file.write(b'{"text": "wa')
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    prediction._Unfinished.write = counted


@pytest.mark.parametrize(
    "task", ["reviews", pytest.param("faq", marks=pytest.mark.thorough)]
)
def test_killed_predictions_resume(trial, tmp_path, task):
    """No line is missing, damaged or repeated; other inputs are refused."""
    model, path = load(trial, task), tmp_path / "in.jsonl"
    rows = [
        {"id": n, "question": f"{TEXTS[n % 6][:3]} ?", "context": TEXTS[n % 5] * 9}
        if task == "faq"
        else {"id": n, "text": TEXTS[n % 6][: 4 + n]}
        for n in range(20)
    ]

    def put(*inputs):
        path.write_text("".join(json.dumps(row) + "\n" for row in inputs))

    put(*rows)
    straight = list(model.rows(asked_in(model, path)))
    assert [row["id"] for row in straight] == list(range(20))
    output, partial = tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    flags = ("--model", trial, "--task", task, "--input", path, "--output", output)
    args = ("run_inference.py", "predict", *map(str, flags), "--resume")
    done = forked_runs.Run(tmp_path / "logs", *args, before=kill_after_7).wait()
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert partial.read_bytes().endswith(b'"wa') and not output.exists()
    refused("was interrupted(.|\n)*--resume", model, path, output)
    put({**rows[0], "id": "other"}, *rows[1:])
    refused("line 1 is of another input", model, path, output, resume=True)
    put(*rows[:3])
    refused("line 4(.|\n)*which ends before", model, path, output, resume=True)
    put(*rows)
    if task == "reviews":
        other = load(trial, "topics")
        refused("was made with the model", other, path, output, resume=True)
    assert "Going on behind 7 predictions" in write(model, path, output, resume=True)
    found = [json.loads(line) for line in output.read_text().splitlines()]
    close(found, straight)
    assert not partial.exists()
    assert "is whole" in write(model, path, output, resume=True)
    put(*rows, rows[0])
    refused("20 predictions(.|\n)*line 21", model, path, output, resume=True)
    # The same weights elsewhere are the same model; others are not.
    put(*rows)
    facts_path = tmp_path / "out.jsonl.model.json"
    facts = json.loads(facts_path.read_text())
    facts_path.write_text(json.dumps(facts | {"path": "/elsewhere"}))
    assert "is whole" in write(model, path, output, resume=True)
    facts_path.write_text(json.dumps(facts | {"sha256": "0" * 64}))
    refused("sha256 000", model, path, output, resume=True)
    facts_path.unlink()
    refused("what model it is of", model, path, output, resume=True)


def test_unfinished_files_that_are_locked_or_damaged(trial, tmp_path):
    model, path, output = load(trial, "reviews"), tmp_path / "in.txt", tmp_path / "out"
    path.write_text(LINES)
    partial = tmp_path / "out.partial"
    with open(partial, "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for resume in (False, True):
            refused("another process", model, path, output, resume=resume, code=75)
    write(model, path, output)  # An empty one of a killed process is no beginning.
    assert len(output.read_text().splitlines()) == 6 and not partial.exists()
    (tmp_path / "out.model.json").rename(tmp_path / "out.partial.model.json")
    output.unlink()
    partial.write_text("nonsense\n")
    refused(
        "line 1: no prediction", model, path, output, resume=True, code=EXIT_DAMAGED
    )
