# SPDX-License-Identifier: Apache-2.0
"""The scripts that build pre-training data, run as a user runs them."""

import gzip
import hashlib
import json
import os
import random
import shutil
import signal
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest

from electra_tf.data import dataset_building, record_index, tfrecord
from electra_tf.errors import UserError
from electra_tf.pretrain import pretrain_data
from electra_tf.text.tokenization import Tokenizer
from electra_tf.text.units import Unit
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.beam_workers import TWO_PROCESSES, workers_below
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
from tests.helpers.forked_runs import Run
from tests.helpers.runs import check_ok, run_script

SHARD = "pretrain_data.tfrecord-00000-of-00001"


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("text"))


# Output.


@pytest.mark.parametrize("case", [1, 14, 15], ids=lambda i: f"single{i:02d}")
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
    manifest = manifest_of(tmp_path / "out")
    ids, mask, _ = examples_in(tmp_path / "out")
    assert ids.shape == (manifest["corpus"]["examples"], 64)
    assert f"{len(ids):,} examples in 1 shard from" in output
    assert manifest["vocab"]["sha256"] == hashlib.sha256(VOCAB.read_bytes()).hexdigest()
    assert manifest["tokenizer"] == {"do_lower_case": True, "strip_accents": True}
    assert (manifest["seed"], manifest["max_seq_length"]) == (42, 64)
    assert manifest["corpus"]["lines"] == 1800
    assert manifest["corpus"]["names"] == [f"{i}.txt" for i in range(6)]
    (file,) = manifest["files"]
    shard = tmp_path / "out" / SHARD
    index = os.path.basename(record_index.index_path([shard]))
    names = {index, SHARD, "manifest.json", "token_counts.txt"}
    assert content(tmp_path / "out").keys() == names
    assert file["name"] == SHARD and file["examples"] == len(ids)
    assert file["bytes"] == shard.stat().st_size
    assert file["sha256"] == hashlib.sha256(shard.read_bytes()).hexdigest()
    sizes = mask.sum(axis=1)
    special = np.isin(ids, (2, 3)).sum()
    assert manifest["corpus"]["tokens_kept"] == sizes.sum() - special
    tokenizer = Tokenizer(Vocabulary.load(VOCAB))
    lines = (line for file in text.iterdir() for line in file.read_text().splitlines())
    assert manifest["corpus"]["tokens"] == sum(len(tokenizer.encode(x)) for x in lines)


def test_output_depends_on_text_and_seed_only(text, tmp_path):
    """Not on the kind of file (see tests/text), nor on the number of processes."""
    lines = [line for line in (text / "0.txt").read_text().split("\n") if line.strip()]
    documents = ["\n".join(lines[i : i + 5]) for i in range(0, len(lines), 5)]
    records = "".join(f"{json.dumps({'text': d})}\n" for d in documents)
    files = {"a.txt": "\n\n".join(documents).encode()}
    files |= {"b.jsonl.gz": gzip.compress(records.encode())}
    (tmp_path / "in").mkdir()
    made = set()
    for name, data in files.items():
        (tmp_path / "in" / name).write_bytes(data)
        succeed(tmp_path / "in" / name, tmp_path / name, "--max-seq-length=32")
        made.add(content(tmp_path / name)[SHARD])
    assert len(made) == 1
    for name, flags in (
        ("one", ["--num-processes=1"]),
        ("three", ["--num-processes=3"]),
        ("seed", ["--num-processes=2", "--seed=43"]),
    ):
        succeed(tmp_path / "in", tmp_path / name, "--num-out-files=4", *flags)
    one, other = content(tmp_path / "one"), content(tmp_path / "seed")
    assert len(one) == 7 and one == content(tmp_path / "three")
    assert other.keys() == one.keys()
    assert not any(other[name] == one[name] for name in one if "tfrecord" in name)
    # A blank line ends a document in some of the files and not in others.
    assert manifest_of(tmp_path / "one")["settings"]["blanks_separate_docs"] is None


def test_full_packing_uses_all_text(text, tmp_path):
    flags = ("--max-seq-length=16", "--num-out-files=3")
    cut = succeed(text, tmp_path / "cut", *flags)
    assert "% of its tokens used; --packing full uses all" in cut
    made = []
    for processes in (1, 2):
        out, own = tmp_path / str(processes), f"--num-processes={processes}"
        printed = succeed(text, out, "--packing=full", own, *flags)
        made.append(content(out))
    assert made[0] == made[1] and "; 100.0 % of its tokens used\n" in printed
    counts = manifest_of(out)["corpus"]
    assert counts["tokens_kept"] == counts["tokens"]
    ids, mask, _ = examples_in(out)
    assert np.isin(ids, (2, 3), invert=True)[mask > 0].sum() == counts["tokens"]
    assert (mask.sum(axis=1) < 16).sum() <= 3  # the last of each shard
    error, code = fail(text, out, *flags)
    assert "packing is 'full' there, None here" in error and code == 2


def test_more_shards_than_files_are_dealt_in_turn(tmp_path):
    write_corpus(tmp_path / "in", files=1, lines=40)
    succeed(tmp_path / "in", tmp_path / "one", "--max-seq-length=32")
    whole = examples_in(tmp_path / "one")[0]
    many = ("--max-seq-length=32", "--num-out-files=50")
    succeed(tmp_path / "in", tmp_path / "many", *many)
    sizes = [file["examples"] for file in manifest_of(tmp_path / "many")["files"]]
    # The last shards are empty, as the original leaves them.
    assert sizes == [1] * len(whole) + [0] * (50 - len(whole)) and len(whole) < 50
    assert np.array_equal(examples_in(tmp_path / "many")[0], whole)


def test_units_are_dealt_evenly_to_shards():
    rng = random.Random(5)
    for _ in range(200):
        sizes = [rng.randrange(1, 10**6) for _ in range(rng.randrange(1, 60))]
        parts = [Unit("text", str(i), str(i), 0, n, n) for i, n in enumerate(sizes)]
        count = rng.randrange(1, 20)
        groups = dataset_building.deal(parts, count, 1)
        assert sorted(u for group, _ in groups for u in group) == sorted(parts)
        assert [s for _, own in groups for s in own] == list(range(count))
        for group, own in groups:
            weight = sum(unit.weight for unit in group)
            assert weight <= sum(sizes) / count * len(own) + max(sizes)


def test_openwebtext(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(VOCAB.read_bytes())
    folder = tmp_path / "openwebtext"
    folder.mkdir()
    for i in range(5):
        (tmp_path / "page.txt").write_text(f"the page\n\nof the archive {i}\n")
        with tarfile.open(folder / f"urlsf_subset{i:02d}_data.xz", "w:xz") as archive:
            archive.add(tmp_path / "page.txt", "page.txt")
    script = "build_openwebtext_pretraining_dataset.py"
    flags = ("--data-dir", str(tmp_path), "--num-processes", "2", "--do-strip-accents")
    check_ok(run_script(script, *flags))
    folder = tmp_path / "pretrain_tfrecords"
    manifest = manifest_of(folder)
    assert manifest["tokenizer"]["strip_accents"] is True
    assert manifest["corpus"]["kind"] == "archive"
    # Each page is one document, its blank lines no boundaries.
    assert manifest["corpus"]["texts"] == len(examples_in(folder)[0]) == 5


@pytest.mark.thorough
def test_tensorflow_datasets(tmp_path):
    from tests.helpers import tiny_texts

    tiny_texts.TinyTexts(data_dir=tmp_path / "tfds").download_and_prepare()
    corpus = ["--tfds=tiny_texts:text", f"--tfds-data-dir={tmp_path / 'tfds'}"]
    vocab = tmp_path / "vocab.txt"
    flags = (f"--output-file={vocab}", "--vocab-size=130", "--no-strip-accents")
    done = run_script("build_vocab.py", *corpus, *flags)
    check_ok(done, "from 320 words, 45 of them different")
    assert {"page", "é"} < Vocabulary.load(vocab).ids.keys()
    settings = json.loads(Path(f"{vocab}.json").read_text())
    assert settings["corpus"] == {"tfds": "tiny_texts/1.0.0:text"}
    flags = (f"--vocab-file={vocab}", "--max-seq-length=32")
    for processes in (1, 2):
        more = (
            f"--output-dir={tmp_path / str(processes)}",
            f"--num-processes={processes}",
        )
        check_ok(run_script(SCRIPT, *corpus, *flags, *more))
    assert content(tmp_path / "1") == content(tmp_path / "2")
    manifest = manifest_of(tmp_path / "1")
    assert manifest["corpus"]["texts"] == len(examples_in(tmp_path / "1")[0]) == 40


# Errors.


def test_existing_output_is_left_alone(text, tmp_path):
    output = tmp_path / "out"
    succeed(text, output)
    before = {p.name: p.stat().st_mtime_ns for p in output.iterdir()}
    assert "is complete already" in succeed(text, output)
    flags = ("--seed=7", "--max-seq-length=64", "--text-key=raw")
    error, code = fail(text, output, *flags)
    assert "max_seq_length is 128 there, 64 here; seed is 42" in error and code == 2
    assert "text_key is 'text' there, 'raw' here" in error
    assert {p.name: p.stat().st_mtime_ns for p in output.iterdir()} == before
    # Output is not part of the corpus.
    assert "would be read as input" in fail(text, Path(text) / "records")[0]


# Warnings.


WORDS = [word for word in VOCAB.read_text().split() if word.isalpha()]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (" ".join(WORDS * 20), "lines are cut at --max-seq-length"),
        (f"{WORDS[0]} {'กาณ' * 100}\n" * 50, "tokens are [UNK]: is"),
    ],
)
def test_lost_tokens_are_reported(tmp_path, text, warning):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(text, encoding="utf-8")
    printed = succeed(tmp_path / "in", tmp_path / "out")
    assert warning in printed.partition("warning: ")[2]
    if "UNK" in warning:
        assert manifest_of(tmp_path / "out")["token_counts"]["unknown"] == 50


@pytest.mark.parametrize("name", ["00000-of-00001.bak", "00001-of-00002"])
def test_a_shard_that_the_manifest_does_not_list_is_refused(tmp_path, name):
    write_corpus(tmp_path / "in", files=1)
    folder = tmp_path / "out"
    succeed(tmp_path / "in", folder)
    vocab = Vocabulary.load(str(VOCAB))
    pattern = f"{folder}/pretrain_data.tfrecord*,{folder.parent}/./out/*tfrecord*"
    paths = pretrain_data.find_shards(pattern)
    assert [Path(path).name for path in paths] == [SHARD]
    assert len(pretrain_data.check_manifests(paths, pattern, vocab)) == 1
    stray = shutil.copy(paths[0], folder / f"pretrain_data.tfrecord-{name}")
    with pytest.raises(UserError) as caught:
        pretrain_data.check_manifests(
            pretrain_data.find_shards(pattern), pattern, vocab
        )
    assert f"{stray} is not among the shards" in str(caught.value)


# Builds whose worker is killed, or that run out of disk; see tests/jobs as well.

SHARDS = ("--num-out-files=8",)


def start(text, output, *flags, before=None):
    paths = (f"--corpus-dir={text}", f"--vocab-file={VOCAB}", f"--output-dir={output}")
    return Run(output.parent / "logs", SCRIPT, *paths, *SHARDS, *flags, before=before)


def shards_in(output):
    return {p.name: p.stat().st_mtime_ns for p in output.glob("pretrain*-of-*")}


def wait_for_shards(run, output, count):
    deadline = time.monotonic() + 200
    while run.process.is_alive() and len(shards_in(output)) < count:
        assert time.monotonic() < deadline, "no more shards"
        time.sleep(0.002)
    assert run.process.is_alive()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A corpus whose build takes long enough to be killed."""
    return write_corpus(tmp_path_factory.mktemp("large"), files=32, lines=1500)


@pytest.mark.thorough
def test_a_killed_worker_of_beam(large, tmp_path):
    pytest.importorskip("apache_beam")
    output = tmp_path / "out"
    run = start(large, output, "--runner=beam", f"--beam-args={TWO_PROCESSES}")
    wait_for_shards(run, output, 2)
    workers = workers_below(run.process.pid)
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    ended = run.wait()
    assert ended.returncode == 69, ended.stderr
    assert "error: a worker of Beam was killed or lost" in ended.stderr
    finished = shards_in(output)
    succeed(large, output, *SHARDS, "--runner=beam")
    succeed(large, tmp_path / "whole", *SHARDS)
    assert content(output) == content(tmp_path / "whole")
    assert shards_in(output).items() >= finished.items()


# Apache Beam.

FLAGS = ("--packing=full", "--num-out-files=4")
FLAGS += ("--encoding-errors=replace", "--text-key=body")
TWO_WORKERS = ("--runner=beam", f"--beam-args={TWO_PROCESSES} --runner=DirectRunner")


@pytest.mark.thorough
def test_builds_by_beam_write_the_bytes_of_a_local_build(tmp_path):
    pytest.importorskip("apache_beam")
    text, made, vocabularies = write_corpus(tmp_path / "text"), {}, []
    line = json.dumps({"body": (text / "0.txt").read_text()})
    (text / "a.jsonl").write_text(f"{line}\n" * 3)
    (text / "b.txt").write_bytes(b"caf\xe9\n")
    runners = {"local": (), "beam": ("--runner=beam",), "workers": TWO_WORKERS}
    for name, flags in runners.items():
        output = succeed(text, tmp_path / name, *FLAGS, *flags)
        made[name] = content(tmp_path / name)
        assert made[name] == made["local"]
        assert ("build: 4 of 4 parts with Beam" in output) == (name != "local")
    again = succeed(text, tmp_path / "beam", *FLAGS, "--runner=beam")
    assert "is complete already" in again
    for name in ("local", "workers"):
        output = tmp_path / f"{name}_vocab" / "vocab.txt"
        flags = (f"--corpus-dir={text}", f"--output-file={output}", "--vocab-size=400")
        check_ok(run_script("build_vocab.py", *flags, *FLAGS[2:], *runners[name]))
        vocabularies.append(content(output.parent))
    assert vocabularies[0] == vocabularies[1] and len(vocabularies[0]) == 2
