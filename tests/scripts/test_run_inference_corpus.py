# SPDX-License-Identifier: Apache-2.0
"""run_inference.py --output-dir: what models say of a corpus, whoever does the work."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import electra_tf
from electra_tf.storage.lock import RunLock
from tests.helpers import tiny_trials
from tests.helpers.corpus_runs import (
    ELECTRIC,
    fail,
    rows_in,
    succeed,
    write_model,
    write_texts,
)
from tests.helpers.exporting import shared_export, shared_source, write_run
from tests.helpers.runs import TINY, pretrain, run_script

SMALL = "--shard-mb=0.004"
ONE, TWO = "--workers=1", "--workers=2"
TOKENS = {"score": ["--tokens"]}
CHANGED = {"score": "detect", "detect": "score"}


@pytest.fixture(scope="module")
def electric(tiny_data):
    return write_model(tiny_data, "corpus_electric", **ELECTRIC)


@pytest.fixture(scope="module")
def electra(tiny_data):
    return write_model(tiny_data, "corpus_electra")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    return folder, write_texts(folder)


@pytest.fixture(scope="module")
def scored(electric, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored") / "out"
    files, done = succeed("score", electric, texts[0], folder, SMALL, ONE)
    assert done.stderr.splitlines()[0].startswith(f"{len(files) - 1} of ")
    return folder, files


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    data = tiny_trials.write_data(tmp_path_factory.mktemp("trial"))
    config, _, _ = tiny_trials.write_run(data, {"task_names": ["cola"]})
    words = tiny_trials.WORDS
    lines = [" ".join(words[i % 40 : i % 40 + i % 7]) for i in range(300)]
    table = "".join(f"n{i}\t{text}\n" for i, text in enumerate(lines))
    (data / "in").mkdir()
    (data / "in" / "a.tsv").write_text(f"id\tsentence\n{table}")
    objects = (json.dumps({"text": text}) + "\n" for text in lines)
    (data / "in" / "b.jsonl").write_text("".join(objects))
    (data / "in" / "c.txt").write_text("".join(f"{text}\n" for text in lines))
    (data / "in" / "d.csv").write_text('text\n"a ""quote""\nin two lines"\n')
    return Path(config.trial_dir(1)), data / "in", lines


def test_scores_of_all_texts_in_their_order(scored, electric, texts):
    folder, files = scored
    rows, manifest = rows_in(folder), json.loads((folder / "manifest.json").read_text())
    assert [row["text"] for row in rows] == texts[1]
    expected = electra_tf.load(electric).score_texts(texts[1])
    for row, score in zip(rows, expected, strict=True):
        assert row["score"] == pytest.approx(score.score, abs=1e-4)
        assert row["num_tokens"] == score.num_tokens
    counts = manifest["counts"]
    assert counts["texts"] == len(rows)
    assert counts["tokens"] == sum(row["num_tokens"] for row in rows)
    assert counts["texts_without_tokens"] == sum(not r["num_tokens"] for r in rows)
    assert manifest["settings"]["model"]["path"] == f"{electric}/model.ckpt-2"
    assert {f["name"]: f["sha256"] for f in manifest["files"]} == {
        name: digest for name, digest in files.items() if name != "manifest.json"
    }
    assert len(files) > 5


def test_two_processes_write_the_same_bytes(scored, electric, texts, tmp_path):
    flags = (SMALL, TWO)
    assert succeed("score", electric, texts[0], tmp_path / "o", *flags)[0] == scored[1]


def test_what_is_there_stays_as_it_is(scored, electric, texts, tmp_path):
    done = succeed("score", electric, texts[0], scored[0], SMALL, TWO)[1]
    assert "is complete already" in done.stdout
    flags = (SMALL, ONE, "--tokens")
    error, code = fail("score", electric, texts[0], scored[0], *flags)
    assert "options" in error and "Nothing is overwritten" in error and code == 2
    (tmp_path / "precious").write_text("")
    error, code = fail("score", electric, texts[0], tmp_path, ONE)
    assert "already holds something (precious)" in error and code == 2
    with RunLock(tmp_path / "locked"):
        error, code = fail("score", electric, texts[0], tmp_path / "locked", ONE)
    assert "locked is in use by process" in error and code == 75


def test_a_damaged_line_and_what_was_written_before_it(electric, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    texts = write_texts(source)
    damaged = (source / "1.txt").read_bytes()
    place = damaged.index(b"\n", 5000) + 1
    (source / "1.txt").write_bytes(damaged[:place] + b"\xff" + damaged[place + 1 :])
    errors = [fail("score", electric, source, output, SMALL, n) for n in (ONE, TWO)]
    assert errors[0] == errors[1] and errors[0][1] == 65
    assert f"1.txt: byte 0xff at offset {place} is not UTF-8" in errors[0][0]
    there = {p.name: p.stat().st_mtime_ns for p in output.glob("part-*")}
    assert there and not (output / "manifest.json").exists()
    # Repaired, the run goes on; a text that has changed since is not mixed in.
    (source / "1.txt").write_bytes(damaged)
    other = (source / "0.txt").read_bytes()
    (source / "0.txt").write_bytes(b"?" + other[1:])
    error, code = fail("score", electric, source, output, SMALL, ONE)
    assert "part-00000" in error and "made from another text" in error and code == 2
    (source / "0.txt").write_bytes(other)
    succeed("score", electric, source, output, SMALL, ONE)
    assert [row["text"] for row in rows_in(output)] == texts
    for name, changed in there.items():
        assert (output / name).stat().st_mtime_ns == changed


@pytest.mark.thorough
def test_another_model_of_that_name(tiny_data, tmp_path):
    model = write_model(tiny_data, "corpus_goes_on", **ELECTRIC)
    write_texts(tmp_path / "in")
    (tmp_path / "in" / "b.txt").write_bytes(b"\xff")
    fail("score", model, tmp_path / "in", tmp_path / "out", ONE)
    (tmp_path / "in" / "b.txt").write_bytes(b"w")
    # Training goes on; the corpus is scored with the checkpoint that it was begun with.
    hparams = TINY | ELECTRIC | {"num_train_steps": 3, "num_warmup_steps": 1}
    assert pretrain(tiny_data, "corpus_goes_on", hparams).returncode == 0
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for path in model.glob("model.ckpt-2.*"):
        path.rename(hidden / path.name)
    error, code = fail("score", model, tmp_path / "in", tmp_path / "out", ONE)
    assert "was begun with" in error and "model.ckpt-2, which is not there" in error
    assert code == 2
    for path in hidden.iterdir():
        path.rename(model / path.name)
    succeed("score", model, tmp_path / "in", tmp_path / "out", ONE)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["settings"]["model"]["path"].endswith("model.ckpt-2")
    # What is finished is not taken for the work of the newest one.
    error, code = fail("score", model, tmp_path / "in", tmp_path / "out", ONE)
    assert "model: path" in error and code == 2
    assert 'model.ckpt-2", now ' in error and 'model.ckpt-3"' in error


def test_text_that_has_changed_since(electric, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.txt").write_text("w1 w2 w3")
    rows = [{"text": "w1 w2"}, {"text": "w3 " * 99}]
    pq.write_table(pa.Table.from_pylist(rows), source / "b.parquet")
    succeed("score", electric, source, output, ONE)
    (source / "a.txt").write_text("w1 w2 w4")
    error, code = fail("score", electric, source, output, ONE)
    assert "was made from another text than is in" in error and "a.txt" in error
    (source / "a.txt").write_text("w1 w2 w3")
    assert (
        "complete already" in succeed("score", electric, source, output, ONE)[1].stdout
    )
    whole = (source / "b.parquet").read_bytes()
    place = whole.index(b"w1 w2")
    (source / "b.parquet").write_bytes(whole[:place] + b"w9" + whole[place + 2 :])
    error, code = fail("score", electric, source, output, ONE)
    assert "was made from another text" in error and code == 2


@pytest.mark.thorough
def test_detections_by_length(electra, texts, tmp_path):
    files, _ = succeed("detect", electra, texts[0], tmp_path / "1", SMALL, ONE)
    assert succeed("detect", electra, texts[0], tmp_path / "2", SMALL, TWO)[0] == files
    rows, wanted = rows_in(tmp_path / "1"), [t.strip() for t in texts[1] if t.strip()]
    assert [row["text"] for row in rows] == wanted
    expected = electra_tf.load(electra).detect(wanted)
    for row, tokens in zip(rows, expected, strict=True):
        ours = [token["probability"] for token in row["tokens"]]
        assert ours == pytest.approx([t.probability for t in tokens], abs=1e-5)
    counts = json.loads((tmp_path / "1" / "manifest.json").read_text())["counts"]
    assert counts["tokens"] == sum(len(row["tokens"]) for row in rows)


@pytest.mark.thorough
def test_predictions_in_pieces(trial, tmp_path):
    model, source, lines = trial
    files, _ = succeed("predict", model, source, tmp_path / "1", SMALL, ONE)
    assert len(files) > 4
    assert succeed("predict", model, source, tmp_path / "2", SMALL, TWO)[0] == files
    rows = rows_in(tmp_path / "1")
    quoted = 'a "quote"\nin two lines'
    assert [row["text"] for row in rows] == [*lines, *lines, *lines, quoted]
    assert [r["id"] for r in rows[:300]] == [f"n{i}" for i in range(300)]
    for row, expected in zip(rows, electra_tf.load(model).predict(lines), strict=False):
        assert row["label"] == expected["label"]
        shares = expected["probabilities"]
        assert row["probabilities"] == pytest.approx(shares, abs=1e-5)
    counts = json.loads((tmp_path / "1" / "manifest.json").read_text())["counts"]
    labels = [count for name, count in counts.items() if name.startswith("label ")]
    assert sum(labels) == counts["texts"] == len(rows)


@pytest.mark.parametrize(
    ("command", "variant", "what"),
    [("score", "electric", "scorer"), ("detect", "electra", "detector")],
)
def test_saved_models_say_the_same(tmp_path, command, variant, what):
    exported = shared_export(variant, what)
    write_run(tmp_path, shared_source(variant), layers=2)
    source, written = tmp_path / "in", []
    source.mkdir()
    (source / "a.txt").write_text("the doctor opened it\n\na good film!\n" * 20)
    (source / "b.txt").write_text("read it . " * 30 + "\n")
    for name, model in (("run", tmp_path / "models/tiny"), ("saved", exported.parent)):
        succeed(command, model, source, tmp_path / name, ONE, *TOKENS.get(command, ()))
        written.append(rows_in(tmp_path / name))
    assert [row["text"] for row in written[0]] == [row["text"] for row in written[1]]
    assert len(written[0]) == (61 if command == "score" else 41)
    key = "score" if command == "score" else "probability"
    for theirs, ours in zip(*written, strict=True):
        assert [t["token"] for t in ours["tokens"]] == [
            t["token"] for t in theirs["tokens"]
        ]
        values = [t[key] for t in theirs["tokens"]]
        assert [t[key] for t in ours["tokens"]] == pytest.approx(values, abs=1e-4)
        assert ours.get("score", 0.0) == pytest.approx(theirs.get("score", 0), abs=1e-3)
    inside = exported / "new"
    error, code = fail(command, exported, source, inside, ONE)
    assert f"{inside} is in {exported}" in error and code == 2 and not inside.exists()
    error, code = fail(CHANGED[command], exported, source, tmp_path / "other", ONE)
    assert f"is the SavedModel of {what}, which gives no" in error and code == 2
    # Without --output-dir it takes a run's graph, which is not in an export.
    done = run_script("run_inference.py", command, f"--model={exported}", text="a b\n")
    assert "is a SavedModel, whose weights cannot be read" in done.stderr
    assert "with --output-dir score and detect" in done.stderr and done.returncode == 2
    # Its probabilities are of words.
    generator = shared_export("electra", "generator")
    error, code = fail("detect", generator, source, tmp_path / "other", ONE)
    assert "is the SavedModel of generator, which gives no" in error and code == 2


@pytest.mark.parametrize(
    ("name", "damage", "problem", "code"),
    [
        ("a.tsv", b"n9\ta\tb", "more columns than the first line", 2),
        ("b.jsonl", b"{", "line 251: ", 2),
        ("c.txt", b"\xff", "not UTF-8", 2),
    ],
)
def test_the_line_that_cannot_be_predicted(
    trial, tmp_path, name, damage, problem, code
):
    """The same line as without pieces, which begin far before it."""
    model, source, _ = trial
    lines = (source / name).read_bytes().splitlines(keepends=True)
    path = tmp_path / name
    path.write_bytes(b"".join(lines[:250]) + damage + b"\n" + b"".join(lines[250:]))
    error, found = fail("predict", model, path, tmp_path / "out", SMALL, TWO)
    assert f"{path}, line 251" in error and problem in error and found == code
    args = (f"--model={model}", f"--input={path}", f"--output={tmp_path}/o.jsonl")
    whole = run_script("run_inference.py", "predict", *args)
    assert whole.stderr.partition("error: ")[2].startswith(error.splitlines()[0])


@pytest.mark.parametrize(
    ("command", "flags", "problem"),
    [
        ("score", ["--workers=2"], "--workers is for --output-dir"),
        ("score", ["--runner=beam"], "--runner is for --output-dir"),
        ("detect", ["--text-key=body"], "--text-key is for JSON Lines"),
        ("score", ["--output-dir=o"], "--output-dir needs a file or directory"),
        ("score", ["--output-dir=o", "--input=-"], "needs a file or directory"),
        ("score", ["--output-dir=o", "--output=f"], "--output is not for --output-dir"),
        ("detect", ["--output-dir=o", "--corrupt"], "--corrupt is not for"),
        ("detect", ["--output-dir=o", "--max-passages=9"], "--max-passages is not for"),
        ("predict", ["--output-dir=o", "--resume"], "which is always gone on with"),
        ("predict", ["--output-dir=o", "--text-key=a"], "not used by predict"),
        ("rerank", ["--output-dir=o"], "--output-dir is not used by rerank"),
        ("score", ["--output-dir=o", "--beam-args=--x"], "is for --runner beam"),
        (
            "score",
            ["--output-dir=o", "--runner=beam", "--workers=2"],
            "--workers is for --runner local",
        ),
        ("score", ["--output-dir=s3://b/o"], "has to be on this machine"),
        ("score", ["--output-dir=o", "--input=x", "--shard-mb=0"], "more than 0"),
        ("predict", ["--output-dir=o", "--input=x"], "predict needs --model"),
    ],
)
def test_flags_that_do_not_go_together(command, flags, problem):
    done = run_script("run_inference.py", command, *flags)
    assert done.returncode == 1 and problem in done.stderr, done.stderr
    assert done.stderr.count("\n") <= 3 and "Traceback" not in done.stderr


def test_what_is_not_there(electric, texts, tmp_path):
    output = tmp_path / "out"
    error, code = fail("score", tmp_path / "none", texts[0], output, ONE)
    assert re.search("none is not the directory of a run", error) and code == 2
    error, code = fail("score", electric, tmp_path / "none", output, ONE)
    assert "none does not exist" in error and code == 2
    error, code = fail("predict", electric, texts[0], output, ONE)
    assert "is no fine-tuned model" in error and code == 2
    error, code = fail("score", electric, texts[0], output, ONE, "--overlap=40")
    assert "an overlap of 40 tokens" in error and code == 2
    error, code = fail("score", electric, texts[0], output, "--method=mask_each", ONE)
    assert "has no scores by the method 'mask_each'" in error and code == 2
    error, code = fail("score", electric, texts[0], texts[0] / "new/out", ONE)
    assert "out is in" in error and code == 2
    assert not output.exists() and not (texts[0] / "new").exists()
