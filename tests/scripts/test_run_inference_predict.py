# SPDX-License-Identifier: Apache-2.0
"""run_inference.py predict, as its users run it, on models of every kind of task."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from itertools import count

import pytest

import electra_tf
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune.inputs import Asked, open_source
from tests.helpers import forked_runs
from tests.helpers.pipes import drained
from tests.helpers.runs import ROOT
from tests.helpers.tiny_finetuning import fork, write_data
from tests.scripts.test_run_finetuning_own_tasks import (
    HPARAMS,
    sentences,
    write_own_files,
)

ALL_TASKS = {**HPARAMS, "task_names": [*HPARAMS["task_names"], "sts"]}
TEXTS = [" ".join(words) for words in sentences(6)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A trial with a task of each kind, and the predictions of its test sets."""
    folder = write_data(tmp_path_factory.mktemp("predict"))
    write_own_files(folder / "own")
    run = fork(folder, "m", ALL_TASKS | {"write_test_outputs": True})
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="module")
def trial(data):
    [folder] = (data / "models" / "m" / "finetuning_models").iterdir()
    return folder


def written(data, task):
    """What the trial itself has written of a test set, without the example ids."""
    results = data / "models" / "m" / "results"
    [path] = results.glob(f"*_test_predictions/trial_1/{task}_test.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "eid"} for row in rows]


def texts_of(data, task="reviews"):
    """The same without the ids."""
    rows = written(data, task)
    assert [row.pop("id") for row in rows] == [f"r{n}" for n in range(6)]
    return rows


def start(data, trial, *flags, before=None):
    logs = data / "logs" / "predict"
    args = ("predict", "--model", str(trial), *map(str, flags))
    return forked_runs.Run(logs, "run_inference.py", *args, before=before)


def predicted(data, trial, tmp_path, *flags):
    """(rows, what was said) of a call that goes well."""
    output = tmp_path / "out" / "rows.jsonl"
    done = start(data, trial, "--output", output, *flags).wait()
    assert done.returncode == 0, done.stdout + done.stderr
    there = sorted(path.name for path in output.parent.iterdir())
    assert there == ["rows.jsonl", "rows.jsonl.model.json"]
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    output.unlink()
    return rows, done.stderr


def close(ours, theirs):
    """The same but for rounding."""
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
def test_predictions_are_those_of_the_trial(data, trial, tmp_path, task, file):
    rows, said = predicted(
        data, trial, tmp_path, "--task", task, "--input", data / file
    )
    theirs = written(data, task)
    if task == "sts":  # whose files have an index
        assert [row.pop("id") for row in rows] == [str(n) for n in range(20)]
    close(rows, theirs)
    assert f"{len(rows)} texts, " in said and "texts/s" in said


def test_files_hold_id_text_and_all_probabilities(data):
    for row, text in zip(written(data, "reviews"), TEXTS, strict=True):
        assert row["text"] == text and set(row["probabilities"]) == {"good", "awful"}
        assert row["label"] == max(row["probabilities"], key=row["probabilities"].get)
        assert sum(row["probabilities"].values()) == pytest.approx(1.0, abs=1e-5)
    for row in written(data, "topics"):
        assert set(row["probabilities"]) == {"begin", "end"}
        assert row["labels"] == [k for k, v in row["probabilities"].items() if v > 0.5]
    for row, words in zip(written(data, "names"), sentences(6), strict=True):
        assert row["words"] == words and len(row["tags"]) == len(words)
        assert {tag.partition("-")[0] for tag in row["tags"]} <= {"I", "B", "O"}
        assert all(0 < share <= 1 for share in row["probabilities"])
    for number, row in enumerate(written(data, "faq")):
        assert row["id"] == f"test{number}" and row["context"] == TEXTS[number]
        assert row["context"][row["start"] : row["end"]] == row["answer"]


# A file of each format, with the same texts and the user's own ids.
FORMS = {
    "tsv": "id\ttext\tnote\n" + "".join(f"n{i}\t{t}\tx\n" for i, t in enumerate(TEXTS)),
    "csv": "text,id\n" + "".join(f'"{t}",n{i}\n' for i, t in enumerate(TEXTS)),
    "jsonl": "".join(
        json.dumps({"id": f"n{i}", "text": t, "kind": "?"}) + "\n"
        for i, t in enumerate(TEXTS)
    ),
    "txt": "".join(f"{t}\n" for t in TEXTS),
}


def test_every_format_says_the_same(data, trial, tmp_path):
    """In one process, as Python's users do; the trained data may be gone."""
    (data / "own").rename(data / "gone")
    try:
        model = electra_tf.load(trial, "reviews")
        expected = texts_of(data)
        close(model.predict(TEXTS), expected)
        close(model.predict(TEXTS[0]), expected[:1])
        for form, content in FORMS.items():
            path = tmp_path / f"texts.{form}"
            path.write_text(content)
            source = open_source(str(path), None, "texts")
            rows = list(model.rows(model.asked(source)))
            if form != "txt":
                assert [row.pop("id") for row in rows] == [f"n{i}" for i in range(6)]
            close(rows, expected)
        tagger = electra_tf.load(trial, "names")
        close(tagger.predict(sentences(6)), written(data, "names"))
        reader = electra_tf.load(trial, "faq")
        asked = [(row["question"], row["context"]) for row in written(data, "faq")]
        answers = [{"id": f"test{n}"} | r for n, r in enumerate(reader.predict(asked))]
        close(answers, written(data, "faq"))
        assert reader.predict([("who ?", "")])[0]["start"] is None
    finally:
        (data / "gone").rename(data / "own")


def test_inputs_are_read_as_they_are_needed(trial):
    model = electra_tf.load(trial, "reviews")
    read = []
    asked = (read.append(n) or Asked("", {"text": TEXTS[n % 6]}) for n in count())
    rows = model.rows(asked)
    assert [next(rows)["text"] for _ in range(700)] == [
        TEXTS[n % 6] for n in range(700)
    ]
    assert len(read) <= 1024


def test_a_trial_elsewhere(data, trial, tmp_path):
    copy = tmp_path / "trial"
    shutil.copytree(trial, copy)
    with pytest.raises(UserError, match="vocab.txt.*does not exist.\n.*--data-dir"):
        electra_tf.load(copy, "reviews")
    model = electra_tf.load(copy, "reviews", str(data))
    close(model.predict(TEXTS), texts_of(data))


def test_standard_input_and_output(trial):
    flags = ("--model", str(trial), "--task", "reviews", "--input-format", "txt")
    done = subprocess.run(
        [sys.executable, str(ROOT / "run_inference.py"), "predict", *flags],
        input="".join(f"{text}\n" for text in TEXTS),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    close([json.loads(r) for r in done.stdout.splitlines()], texts_of(trial.parents[3]))


def test_links_pipes_and_another_process(data, trial, tmp_path):
    flags = ("--task", "reviews", "--input", data / "own/test.tsv", "--output")
    with drained(tmp_path / "pipe") as got:
        done = start(data, trial, *flags, tmp_path / "pipe").wait()
    assert done.returncode == 0, done.stderr
    close([json.loads(row) for row in got[0].splitlines()], written(data, "reviews"))
    (tmp_path / "link").symlink_to("rows.jsonl")
    assert start(data, trial, *flags, tmp_path / "link").wait().returncode == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "rows.jsonl").read_text() == got[0]
    busy = tmp_path / "busy"
    with open(f"{busy}.partial", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for text, more in (("", []), ("row", []), ("row", ["--resume"])):
            other.write(text)
            other.flush()
            done = start(data, trial, *flags, busy, *more).wait()
            assert done.returncode == 75 and "another process" in done.stderr
    assert (tmp_path / "busy.partial").read_text() == "rowrow"
    # One that was killed before its first prediction has begun nothing.
    (tmp_path / "busy.partial").write_text("")
    assert start(data, trial, *flags, busy).wait().returncode == 0
    assert busy.read_text() == got[0] and not os.path.exists(f"{busy}.partial")


# Mistakes.


def refused(done, code, *words):
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.tsv", "id\ttexd\n1\ta\n", ["x.tsv has no column 'text'", "'texd'?"]),
        ("x.jsonl", '{"text": "a"}\n{"text"\n', ["x.jsonl, line 2"]),
        ("x.jsonl", '{"text": "a"}\n{"txt": "b"}\n', ["line 2", "'text'", "txt"]),
        ("x.tsv", "text\na\nb\tc\n", ["x.tsv, line 3", "more columns"]),
        ("x.txt", b"a\nb\xe9\n", ["x.txt, line 2", "not UTF-8"]),
        ("x.xlsx", "a", ["x.xlsx is xlsx", "tsv, csv, jsonl, parquet, txt"]),
    ],
)
def test_bad_lines(data, trial, tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    output = tmp_path / "out.jsonl"
    flags = ("--task", "reviews", "--input", path, "--output", output)
    refused(start(data, trial, *flags).wait(), 2, *words)
    assert not output.exists()


def test_what_is_no_model(data, trial, tmp_path):
    given = ("--input", data / "own" / "test.tsv")
    refused(start(data, tmp_path, *given).wait(), 2, "no fine-tuned model")
    run = data / "models" / "m"
    refused(start(data, run, *given).wait(), 2, "Its fine-tuned models", trial.name)
    refused(start(data, trial, *given).wait(), 2, "several tasks: reviews", "--task")
    wrong = start(data, trial, *given, "--task", "revews").wait()
    refused(wrong, 2, "not fine-tuned on 'revews'", "reviews")
    none = start(data, trial, "--task", "reviews", "--input", "-").wait()
    refused(none, 2, "--input-format")
    with pytest.raises(UserError, match="input 0 is"):
        electra_tf.load(trial, "reviews").predict([("a", "b")])


# Interruptions.


def kill_after(rows):
    """kill -9 of this process when it has written so many predictions, and a half."""
    import os

    from electra_tf.finetune import prediction, predictor

    predictor._CHUNK = 8
    write = prediction._Unfinished.write

    def counted(self, row):
        write(self, row)
        if self.count == rows:
            self._file.write(b'{"text": "wa')
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    prediction._Unfinished.write = counted


class KillAfter:
    def __init__(self, rows):
        self.rows = rows

    def __call__(self):
        kill_after(self.rows)


@pytest.mark.parametrize("task", ["reviews", "faq"])
def test_kills_and_resumes(data, trial, tmp_path, task):
    """No line is missing or there twice; a half one is made whole."""
    path = tmp_path / "in.jsonl"
    rows = [
        {"id": n, "question": f"{TEXTS[n % 6][:3]} ?", "context": TEXTS[n % 5] * 9}
        if task == "faq"
        else {"id": n, "text": TEXTS[n % 6][: 4 + n]}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--task", task, "--input", path)
    straight, _ = predicted(data, trial, tmp_path, *flags)
    assert [row["id"] for row in straight] == list(range(40))
    output = tmp_path / "killed.jsonl"
    flags = (*flags, "--output", output, "--resume")
    for rows_before in (7, 33):
        done = start(data, trial, *flags, before=KillAfter(rows_before)).wait()
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not output.exists()
    partial = tmp_path / "killed.jsonl.partial"
    assert partial.read_bytes().endswith(b'"wa')
    again = start(data, trial, *flags[:-1]).wait()
    refused(again, 2, "was interrupted", "--resume")
    done = start(data, trial, *flags).wait()
    assert done.returncode == 0, done.stderr
    assert "Going on behind 33 predictions" in done.stderr
    close([json.loads(r) for r in output.read_text().splitlines()], straight)
    assert not partial.exists()
    done = start(data, trial, *flags).wait()
    assert done.returncode == 0 and "is whole" in done.stderr
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    refused(start(data, trial, *flags).wait(), 2, "40 predictions", "line 41")
    rows[3] |= {"id": "other"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused(start(data, trial, *flags).wait(), 2, "line 4 is of another input")


def test_a_file_of_another_model_is_not_taken_for_whole(data, trial, tmp_path):
    path, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    flags = ("--task", "reviews", "--input", path, "--output", output)
    moved = tmp_path / "moved" / trial.name
    shutil.copytree(trial, moved)
    place = ("--data-dir", data)
    done = start(data, moved, *flags, *place).wait()
    assert done.returncode == 0, done.stderr
    # The same weights, wherever they are.
    done = start(data, trial, *flags, "--resume").wait()
    assert done.returncode == 0 and "is whole" in done.stderr
    said = tmp_path / "out.jsonl.model.json"
    facts = json.loads(said.read_text())
    said.write_text(json.dumps(facts | {"sha256": "0" * 64}))
    refused(start(data, trial, *flags, "--resume").wait(), 2, "sha256 000")
    said.unlink()
    refused(start(data, trial, *flags, "--resume").wait(), 2, "what model it is of")


def test_an_error_at_the_first_line_leaves_nothing(data, trial, tmp_path):
    path, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    flags = ("--task", "reviews", "--input", path, "--output", output)
    path.write_text('{"other": "x"}\n')
    refused(start(data, trial, *flags).wait(), 2, "line 1")
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


def test_predictions_of_another_input_are_not_gone_on_with(data, trial, tmp_path):
    path, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    path.write_text("".join(f"{text}\n" for text in TEXTS))
    flags = ("--task", "reviews", "--input", path, "--output", output, "--resume")
    done = start(data, trial, *flags, before=KillAfter(4)).wait()
    assert done.returncode == -signal.SIGKILL
    path.write_text("".join(f"{text} more\n" for text in TEXTS))
    refused(start(data, trial, *flags).wait(), 2, "line 1 is of another input")
    path.write_text(f"{TEXTS[0]}\n")
    refused(start(data, trial, *flags).wait(), 2, "line 2", "which ends before")
    other = start(data, trial, "--task", "topics", *flags[2:]).wait()
    refused(other, 2, "was made with the model")
    partial = tmp_path / "out.jsonl.partial"
    partial.write_text("nonsense\n")
    refused(start(data, trial, *flags).wait(), EXIT_DAMAGED, "line 1: no prediction")


def test_a_vocabulary_that_is_used_otherwise_than_in_training(data, trial, tmp_path):
    texts, beside = tmp_path / "texts.txt", data / "vocab.txt.json"
    texts.write_text(f"{TEXTS[0]}\n")
    beside.write_text('{"do_lower_case": true, "strip_accents": false}')
    try:
        done = start(data, trial, "--task", "reviews", "--input", texts).wait()
        again = fork(data, "m", ALL_TASKS)
    finally:
        beside.unlink()
    assert done.returncode == 2, done.stdout + done.stderr
    assert "was trained on text that is uncased, accents stripped" in done.stderr
    assert f"Put this into {beside}" in done.stderr
    assert again.returncode == 2, again.stdout + again.stderr
    assert "strip_accents" in again.stderr
