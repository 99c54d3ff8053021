# SPDX-License-Identifier: Apache-2.0
"""The scripts that build pre-training data, run as a user runs them."""

import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import tarfile
from pathlib import Path

import numpy as np
import pytest

from electra_tf.data import build_plan, record_index, tfrecord
from electra_tf.text import corpus, units
from electra_tf.text.units import Unit
from tests.helpers.building import (
    GOLDEN,
    SCRIPT,
    VOCAB,
    content,
    examples_in,
    fail,
    succeed,
    write_corpus,
)
from tests.helpers.runs import run_script
from tests.parity import examples as parity_examples


@pytest.mark.parametrize(
    "row", list(parity_examples.replay(str(GOLDEN))), ids=lambda row: row.quantity
)
def test_examples_are_those_of_the_original(row):
    assert row.deviation <= row.tolerance


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text"))


# What is built.


@pytest.mark.parametrize("case", [0, 1, 14, 15], ids=lambda i: f"single{i:02d}")
def test_a_single_file_gives_the_examples_of_the_original(tmp_path, case):
    with open(GOLDEN / "examples.json", encoding="utf-8") as f:
        case = json.load(f)["single"][case]
    flags = [
        f"--max-seq-length={case['max_seq_length']}",
        f"--seed={case['seed']}",
        "--blanks-separate-docs",
        str(case["blanks_separate_docs"]),
        "--do-lower-case" if case["do_lower_case"] else "--no-lower-case",
        "--strip-accents" if case["strip_accents"] else "--no-strip-accents",
    ]
    succeed(GOLDEN / "corpus" / case["file"], tmp_path, *flags)
    expected = np.load(GOLDEN / "examples.npz")
    for name, values in zip(tfrecord.FEATURES, examples_in(tmp_path), strict=True):
        assert np.array_equal(values, expected[f"{case['key']}/{name}"])


def test_the_command_line_of_the_original(text, tmp_path):
    output = succeed(
        text,
        tmp_path / "out",
        *"--max-seq-length 64 --num-processes 1 --blanks-separate-docs True".split(),
        *("--do-lower-case", "--do-strip-accents"),
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    ids, mask, segments = examples_in(tmp_path / "out")
    assert ids.shape == (manifest["corpus"]["examples"], 64)
    assert f"{len(ids):,} examples in 1 shard from" in output
    assert "6/6 files" in output and "MB/s" in output and "left" in output
    assert manifest["vocab"] == {
        "file": "vocab_tiny.txt",
        "size": 1000,
        "sha256": hashlib.sha256(VOCAB.read_bytes()).hexdigest(),
    }
    assert manifest["tokenizer"] == {"do_lower_case": True, "strip_accents": True}
    assert (manifest["seed"], manifest["max_seq_length"]) == (42, 64)
    assert manifest["corpus"]["files"] == 6
    assert manifest["corpus"]["lines"] == 1800
    assert manifest["corpus"]["names"] == [f"{i}.txt" for i in range(6)]
    (file,) = manifest["files"]
    shard = tmp_path / "out" / "pretrain_data.tfrecord-00000-of-00001"
    assert content(tmp_path / "out").keys() == {
        os.path.basename(record_index.index_path([shard])),
        shard.name,
        "manifest.json",
        "token_counts.txt",
    }
    assert file["name"] == shard.name and file["examples"] == len(ids)
    assert file["bytes"] == shard.stat().st_size
    assert file["sha256"] == hashlib.sha256(shard.read_bytes()).hexdigest()
    # What every example looks like.
    assert (ids[:, 0] == 2).all()
    sizes = mask.sum(axis=1)
    assert (mask == (np.arange(64) < sizes[:, None])).all()
    assert (ids[np.arange(len(ids)), sizes - 1] == 3).all()
    assert (ids[mask == 0] == 0).all() and (segments[mask == 0] == 0).all()
    assert 0.8 < segments.any(axis=1).mean() < 1.0  # one in ten has one segment
    special = np.isin(ids, (2, 3)).sum()
    assert manifest["corpus"]["tokens_kept"] == sizes.sum() - special


def test_the_processes_do_not_show(text, tmp_path):
    for processes in (1, 2, 3):
        flags = (f"--num-processes={processes}", "--num-out-files=4")
        succeed(text, tmp_path / str(processes), *flags)
    one = content(tmp_path / "1")
    assert len(one) == 7
    assert one == content(tmp_path / "2") == content(tmp_path / "3")
    succeed(text, tmp_path / "seed", "--num-out-files=4", "--seed=43")
    other = content(tmp_path / "seed")
    assert other.keys() == one.keys()
    assert not any(other[name] == one[name] for name in one)


def test_blank_lines(tmp_path):
    (tmp_path / "in").mkdir()
    line = "the first of these two"
    (tmp_path / "in" / "a.txt").write_text(f"{line}\n\n \t\n{line}\n{line}\n\n{line}")
    counts = {}
    for value in ("True", "False", None):
        flags = ["--blanks-separate-docs", value] if value else []
        succeed(tmp_path / "in", tmp_path / str(value), *flags)
        counts[value] = len(examples_in(tmp_path / str(value))[0])
    assert counts == {"True": 3, "False": 1, None: 3}


def test_more_shards_than_files_are_dealt_in_turn(tmp_path):
    write_corpus(tmp_path / "in", files=1, lines=40)
    succeed(tmp_path / "in", tmp_path / "one", "--max-seq-length=32")
    whole = examples_in(tmp_path / "one")[0]
    succeed(
        tmp_path / "in", tmp_path / "many", "--max-seq-length=32", "--num-out-files=50"
    )
    manifest = json.loads((tmp_path / "many" / "manifest.json").read_text())
    assert len(manifest["files"]) == 50
    assert len(whole) < 50  # the last shards are empty, as the original leaves them
    sizes = [file["examples"] for file in manifest["files"]]
    assert sizes == [1] * len(whole) + [0] * (50 - len(whole))
    assert np.array_equal(examples_in(tmp_path / "many")[0], whole)


def test_shards_have_about_the_size_that_is_asked_for(text, monkeypatch):
    """Units are dealt evenly, whatever their number, and none is lost."""
    rng = random.Random(5)
    for _ in range(200):
        sizes = [rng.randrange(1, 10**6) for _ in range(rng.randrange(1, 60))]
        parts = [Unit("text", str(i), str(i), 0, n, n) for i, n in enumerate(sizes)]
        shards = rng.randrange(1, 20)
        groups = build_plan.deal(parts, shards, 1)
        assert sorted(u for g in groups for u in g.units) == sorted(parts)
        assert [s for g in groups for s in g.shards] == list(range(shards))
        assert all(sum(g.parts(), []) == g.units for g in groups)
        for group in groups:
            weight = sum(unit.weight for unit in group.units)
            share = sum(sizes) / shards
            assert weight <= share * len(group.shards) + max(sizes)


def test_long_files_are_cut_into_pieces(tmp_path, monkeypatch):
    """The lines of a long file are those of its pieces, each once."""
    write_corpus(tmp_path, files=2, lines=200)
    monkeypatch.setattr(units, "PIECE_BYTES", 1000)
    plan = units.file_corpus(str(tmp_path))
    assert len(plan.units) > 20
    assert len({unit.stream for unit in plan.units}) == len(plan.units)
    lines = []
    for unit in plan.units:
        with open(unit.path, "rb") as f:
            reader = corpus.TextReader(f, "text", "strict", unit.start, unit.end)
            lines += [line for block in reader for line in block]
    assert lines == [
        line
        for i in range(2)
        for line in (tmp_path / f"{i}.txt").read_text().split("\n")[:-1]
    ]


def test_a_line_of_10_mb_and_odd_files(tmp_path):
    folder = write_corpus(tmp_path / "in", files=2, lines=20)
    (folder / "long.txt").write_text("the first of " * 800_000 + "\nthe end\n")
    (folder / "empty.txt").write_text("")
    (folder / "bom.txt").write_bytes(b"\xef\xbb\xbfthe first\r\nof the\r\n\r\nend")
    (folder / "controls.txt").write_bytes(b"\x00\x01\x02\n\x7f\n")
    (folder / "deep").mkdir()
    (folder / "deep" / "more.txt").write_text("the first\n")
    succeed(folder, tmp_path / "out", "--num-processes=2")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["corpus"]["files"] == 7
    assert manifest["corpus"]["names"][-1] == "long.txt"
    assert manifest["corpus"]["lines"] == 40 + 2 + 4 + 2 + 1


def test_file_names_that_are_not_utf8(tmp_path):
    folder = write_corpus(tmp_path / "in", files=2, lines=20)
    os.rename(folder / "1.txt", os.fsencode(folder) + b"/caf\xe9.txt")
    succeed(folder, tmp_path / "out", "--num-processes=2")
    with open(os.fsencode(folder) + b"/caf\xe9.txt", "ab") as f:
        f.write(b"\xe9\n")
    error, code = fail(folder, tmp_path / "strict")
    assert "caf" in error and code == 65
    said = succeed(folder, tmp_path / "replaced", "--encoding-errors=replace")
    assert "1 bytes that were not UTF-8" in said


# What cannot be built.


def test_text_that_is_not_utf8(tmp_path):
    folder = write_corpus(tmp_path / "in", files=3)
    good = (folder / "1.txt").read_bytes()
    (folder / "1.txt").write_bytes(good + b"caf\xe9\n")
    for processes in (1, 2):
        flag = f"--num-processes={processes}"
        error, code = fail(folder, tmp_path / f"strict{processes}", flag)
        assert f"{folder}/1.txt: byte 0xe9 at offset {len(good) + 3} is" in error
        assert "--encoding-errors replace" in error and code == 65
    output = succeed(folder, tmp_path / "replace", "--encoding-errors", "replace")
    assert f"1 bytes that were not UTF-8 in {folder}/1.txt (1)" in output
    manifest = json.loads((tmp_path / "replace" / "manifest.json").read_text())
    assert manifest["corpus"]["replaced_bytes"] == 1
    assert manifest["corpus"]["replaced_in"] == {f"{folder}/1.txt": 1}


def test_a_corpus_without_text(tmp_path):
    output = tmp_path / "out"
    error, code = fail(tmp_path / "nothing", output)
    assert "does not exist" in error and code == 2
    (tmp_path / "in").mkdir()
    assert "holds no files" in fail(tmp_path / "in", output)[0]
    (tmp_path / "in" / "empty.txt").write_text("")
    assert "are empty" in fail(tmp_path / "in", output)[0]
    assert not output.exists()
    (tmp_path / "in" / "blank.txt").write_text("\n \n\x00\n")
    error, code = fail(tmp_path / "in", output)
    assert "hold no text" in error and code == 65
    assert not list(output.iterdir())


def test_an_output_directory_that_holds_something(text, tmp_path):
    (tmp_path / "precious.txt").write_text("work of years")
    error, code = fail(text, tmp_path)
    assert "already holds something (precious.txt)" in error and code == 2
    assert content(tmp_path).keys() == {"precious.txt"}


def test_a_finished_build_is_left_alone(text, tmp_path):
    succeed(text, tmp_path)
    before = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    assert "is complete already" in succeed(text, tmp_path)
    error, code = fail(text, tmp_path, "--seed=7", "--max-seq-length=64")
    assert "max_seq_length 128, now 64; seed 42, now 7" in error and code == 2
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == before
    (tmp_path / "pretrain_data.tfrecord-00000-of-00001").write_bytes(b"")
    assert "has 0 bytes, but the manifest" in fail(text, tmp_path)[0]


def test_settings_that_contradict_the_vocabulary(text, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_bytes(VOCAB.read_bytes())
    settings = {
        "do_lower_case": False,
        "strip_accents": False,
        "vocab_sha256": hashlib.sha256(VOCAB.read_bytes()).hexdigest(),
    }
    Path(f"{vocab}.json").write_text(json.dumps(settings))
    flags = [f"--corpus-dir={text}", f"--vocab-file={vocab}"]
    result = run_script(SCRIPT, *flags, f"--output-dir={tmp_path}/1", "--do-lower-case")
    assert result.returncode == 2
    assert "built cased" in result.stderr and "vocab.txt.json" in result.stderr
    result = run_script(SCRIPT, *flags, f"--output-dir={tmp_path}/2")
    manifest = json.loads((tmp_path / "2" / "manifest.json").read_text())
    assert manifest["tokenizer"]["do_lower_case"] is False


@pytest.mark.parametrize(
    ("flags", "problem", "code"),
    [
        (["--max-seq-length=4"], "leaves no room", 2),
        (["--num-processes=0"], "--num-processes 0", 2),
        (["--num-out-files=0"], "--num-out-files 0", 2),
        (["--tfds=a:b"], "either --corpus-dir or --tfds", 2),
        (["--encoding-errors=ignore"], "encoding_errors", 1),
        (["--max-seq-len=4"], "did you mean --max-seq-length", 1),
    ],
)
def test_wrong_flags(text, tmp_path, flags, problem, code):
    error, found = fail(text, tmp_path / "out", *flags)
    assert problem in error and found == code
    assert not (tmp_path / "out").exists()


# Other sources.


def test_openwebtext(tmp_path):
    (tmp_path / "openwebtext").mkdir()
    (tmp_path / "vocab.txt").write_bytes(VOCAB.read_bytes())
    pages = 0
    for i in range(5):
        path = tmp_path / "openwebtext" / f"urlsf_subset{i:02d}_data.xz"
        with tarfile.open(path, "w:xz") as tar:
            for page in range(4):
                data = f"the page {page}\n\nof the archive {i}\n".encode()
                info = tarfile.TarInfo(f"{page}.txt")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
                pages += 1
    script = "build_openwebtext_pretraining_dataset.py"
    flags = ("--data-dir", str(tmp_path), "--num-processes", "2", "--do-strip-accents")
    result = run_script(script, *flags)
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "pretrain_tfrecords"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["tokenizer"]["strip_accents"] is True
    assert manifest["corpus"]["texts"] == pages
    assert manifest["corpus"]["kind"] == "archive"
    # Each page is one document, its blank lines no boundaries.
    assert len(examples_in(folder)[0]) == pages
    # A hostile archive.
    with tarfile.open(tmp_path / "openwebtext" / "evil.xz", "w:xz") as tar:
        tar.addfile(tarfile.TarInfo("../../evil.txt"))
    for path in folder.iterdir():
        path.unlink()
    result = run_script(script, "--data-dir", str(tmp_path))
    assert result.returncode == 65 and "'../../evil.txt' lies outside" in result.stderr


def test_openwebtext_that_is_not_there(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(VOCAB.read_bytes())
    script = "build_openwebtext_pretraining_dataset.py"
    result = run_script(script, "--data-dir", str(tmp_path))
    assert result.returncode == 2 and "openwebtext does not exist" in result.stderr


def write_documents(folder, documents):
    """The same documents in every kind of file that needs no further package."""
    lines = "".join(f"{json.dumps({'text': d})}\n" for d in documents)
    files = {
        "a.txt": "\n\n".join(documents),
        "a.jsonl": lines,
        "a.txt.xz": lzma.compress("\n\n".join(documents).encode()),
        "a.jsonl.gz": gzip.compress(lines.encode()),
    }
    for name, data in files.items():
        path = folder / name / name
        path.parent.mkdir(parents=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    with contextlib.suppress(ImportError):
        import pyarrow as pa
        import pyarrow.parquet

        (folder / "a.parquet").mkdir()
        table = pa.table({"text": documents})
        pa.parquet.write_table(table, folder / "a.parquet" / "a.parquet")
    return [path.name for path in folder.iterdir()]


def test_the_same_documents_in_every_kind_of_file(text, tmp_path):
    """The examples are those of the text file: byte for byte, on 1 and 2 processes."""
    lines = (text / "0.txt").read_text().split("\n")
    lines = [line for line in lines if line.strip()]
    documents = ["\n".join(lines[i : i + 5]) for i in range(0, len(lines), 5)]
    names = write_documents(tmp_path / "in", documents)
    shards = {}
    for name in names:
        succeed(tmp_path / "in" / name, tmp_path / name, "--max-seq-length=32")
        shards[name] = content(tmp_path / name)["pretrain_data.tfrecord-00000-of-00001"]
    assert len(names) >= 4 and len(set(shards.values())) == 1
    for processes in (1, 3):
        flags = (f"--num-processes={processes}", "--num-out-files=3")
        succeed(tmp_path / "in", tmp_path / f"all{processes}", *flags)
    whole = content(tmp_path / "all1")
    assert whole == content(tmp_path / "all3")
    manifest = json.loads((tmp_path / "all1" / "manifest.json").read_text())
    assert manifest["settings"]["text_key"] == "text"
    # A blank line ends a document in some of the files and not in others.
    assert manifest["settings"]["blanks_separate_docs"] is None


def test_a_broken_line_of_json(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "the first"}\n{"text": \n')
    for processes in (1, 2):
        flag = f"--num-processes={processes}"
        error, code = fail(tmp_path / "in", tmp_path / f"out{processes}", flag)
        assert f"{tmp_path}/in/a.jsonl line 2 is not JSON" in error and code == 65


def test_tensorflow_datasets(tmp_path):
    from tests.helpers import tiny_texts

    tiny_texts.TinyTexts(data_dir=tmp_path / "tfds").download_and_prepare()
    flags = ["--tfds=tiny_texts:text", f"--tfds-data-dir={tmp_path / 'tfds'}"]
    flags += [f"--vocab-file={VOCAB}", "--max-seq-length=32"]
    for processes in (1, 2):
        output = f"--output-dir={tmp_path / str(processes)}"
        result = run_script(SCRIPT, *flags, output, f"--num-processes={processes}")
        assert result.returncode == 0, result.stderr
    assert content(tmp_path / "1") == content(tmp_path / "2")
    manifest = json.loads((tmp_path / "1" / "manifest.json").read_text())
    assert manifest["corpus"]["texts"] == 40
    assert manifest["settings"]["blanks_separate_docs"] is False
    assert len(examples_in(tmp_path / "1")[0]) == 40


def test_a_run_reads_text_as_its_data_do(text, tmp_path):
    """Google's cased vocabularies do not say that they are."""
    (tmp_path / "vocab.txt").write_text(Path(VOCAB).read_text())
    records = tmp_path / "pretrain_tfrecords"
    flags = ("--no-lower-case", f"--vocab-file={tmp_path}/vocab.txt")
    succeed(text, records, *flags, "--max-seq-length=32")
    hparams = {"max_seq_length": 32, "train_batch_size": 2}
    for lower, code in ((True, 2), (False, 0)):
        done = run_script(
            *("run_pretraining.py", "--data-dir", str(tmp_path), "--model-name", "m"),
            *("--hparams", json.dumps(hparams | {"do_lower_case": lower}), "--dry-run"),
        )
        assert done.returncode == code, done.stderr
        assert ('Set "do_lower_case": false' in done.stderr) == lower


def test_what_is_built_is_no_text_of_the_corpus(text, tmp_path):
    inside = Path(text) / "records"
    assert "is in --corpus-dir" in fail(text, inside)[0]
    assert not inside.exists()
