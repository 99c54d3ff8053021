# SPDX-License-Identifier: Apache-2.0
"""run_inference.py --output-dir: a model's answers for a whole corpus."""

import json
import shutil

import pytest

import electra_tf
from tests.helpers import tiny_finetuning
from tests.helpers.corpus_runs import ELECTRIC, fail, rows_in, succeed, write_texts
from tests.helpers.runs import pretrain, tiny

SMALL = "--shard-mb=0.004"
ONE, TWO = "--workers=1", "--workers=2"
COLA = "--task=cola"


@pytest.fixture(scope="module")
def electric(pretrained):
    return pretrained("electric") / "models" / "electric"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    return folder, write_texts(folder)


@pytest.fixture(scope="module")
def scored(electric, texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scored") / "out"
    files, done = succeed("score", electric, texts[0], folder, SMALL, ONE)
    assert f"score: {len(files) - 1} of {len(files) - 1} parts, " in done.stderr
    return folder, files


@pytest.fixture(scope="module")
def trial(finetuned):
    return finetuned / "models/tiny/finetuning_models/cola,sts,chunk_model_1"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with the same inputs of cola in every format."""
    folder, words = tmp_path_factory.mktemp("inputs"), tiny_finetuning.WORDS
    lines = [" ".join(words[i % 40 : i % 40 + i % 7]) for i in range(300)]
    table = "".join(f"n{i}\t{text}\n" for i, text in enumerate(lines))
    (folder / "a.tsv").write_text(f"id\tsentence\n{table}")
    objects = (json.dumps({"text": text}) + "\n" for text in lines)
    (folder / "b.jsonl").write_text("".join(objects))
    (folder / "d.csv").write_text('text\n"a ""quote""\nin two lines"\n')
    return folder, lines


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def test_scores_of_all_texts_in_their_order(scored, electric, texts):
    folder, files = scored
    rows, manifest = rows_in(folder), manifest_of(folder)
    assert [row["text"] for row in rows] == texts[1]
    expected = electra_tf.load(electric).score_texts(texts[1])
    for row, score in zip(rows, expected, strict=True):
        assert row["score"] == pytest.approx(score.score, abs=1e-4)
        assert row["num_tokens"] == score.num_tokens
    counts = manifest["counts"]
    assert counts["texts"] == len(rows)
    assert counts["tokens"] == sum(row["num_tokens"] for row in rows)
    unknown = [r["num_tokens"] == r["num_unknown"] for r in rows]
    assert counts["texts_without_known_tokens"] == sum(unknown) > 0
    assert manifest["settings"]["model"]["path"] == f"{electric}/model.ckpt-12"
    assert {f["name"]: f["sha256"] for f in manifest["files"]} == {
        name: digest for name, digest in files.items() if name != "manifest.json"
    }
    assert len(files) > 5


def test_nothing_is_overwritten(scored, electric, texts):
    done = succeed("score", electric, texts[0], scored[0], SMALL, ONE)[1]
    assert "is complete already" in done.stdout
    flags = (SMALL, ONE, "--tokens")
    error, code = fail("score", electric, texts[0], scored[0], *flags)
    assert "options" in error and "Nothing is overwritten" in error and code == 2


def test_run_continues_after_a_damaged_line_is_repaired(electric, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    texts = write_texts(source)
    damaged = (source / "1.txt").read_bytes()
    place = damaged.index(b"\n", 5000) + 1
    (source / "1.txt").write_bytes(damaged[:place] + b"\xff" + damaged[place + 1 :])
    error, code = fail("score", electric, source, output, SMALL, ONE)
    assert f"1.txt: byte 0xff at offset {place} is not UTF-8" in error and code == 65
    made = {p.name: p.stat().st_mtime_ns for p in output.glob("part-*")}
    assert made and not (output / "manifest.json").exists()
    (source / "1.txt").write_bytes(damaged)
    succeed("score", electric, source, output, SMALL, ONE)
    assert [row["text"] for row in rows_in(output)] == texts
    for name, changed in made.items():
        assert (output / name).stat().st_mtime_ns == changed


@pytest.mark.thorough
def test_a_run_continues_with_the_checkpoint_that_it_began_with(pretrained, tmp_path):
    data = shutil.copytree(pretrained("electric"), tmp_path / "data")
    model, source, output = data / "models/electric", tmp_path / "in", tmp_path / "out"
    write_texts(source)
    (source / "b.txt").write_bytes(b"\xff")
    fail("score", model, source, output, ONE)
    (source / "b.txt").write_bytes(b"w")
    hparams = tiny(**ELECTRIC, num_train_steps=13)
    assert pretrain(data, "electric", hparams).returncode == 0
    error, code = fail("score", model, source, output, ONE)
    assert "model.ckpt-12' there" in error and "model.ckpt-13'" in error and code == 2
    succeed("score", model / "model.ckpt-12", source, output, ONE)
    path = manifest_of(output)["settings"]["model"]["path"]
    assert path.endswith("model.ckpt-12")


@pytest.mark.thorough
def test_predictions_of_all_inputs(trial, inputs, tmp_path):
    source, lines = inputs
    files, _ = succeed("predict", trial, source, tmp_path / "1", SMALL, ONE, COLA)
    assert len(files) > 3
    again = succeed("predict", trial, source, tmp_path / "2", SMALL, TWO, COLA)
    assert again[0] == files
    rows = rows_in(tmp_path / "1")
    quoted = 'a "quote"\nin two lines'
    assert [row["text"] for row in rows] == [*lines, *lines, quoted]
    assert [r["id"] for r in rows[:300]] == [f"n{i}" for i in range(300)]
    expected = electra_tf.load(trial, "cola").predict(lines)
    for row, one in zip(rows, expected, strict=False):
        assert row["label"] == one["label"]
        shares = one["probabilities"]
        assert row["probabilities"] == pytest.approx(shares, abs=1e-5)
    assert manifest_of(tmp_path / "1")["counts"]["texts"] == len(rows)
