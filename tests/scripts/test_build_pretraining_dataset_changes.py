# SPDX-License-Identifier: Apache-2.0
"""What changes around a build of pre-training data, and what it warns of."""

import io
import json
import os
import shutil
import signal
import tarfile
from pathlib import Path

import pytest

from electra_tf.errors import UserError
from electra_tf.pretrain import shards
from electra_tf.text.vocabulary import Vocabulary
from tests.helpers.building import SCRIPT, VOCAB, content, fail, succeed, write_corpus
from tests.helpers.forked_runs import Run
from tests.helpers.runs import run_script

FOUR = ("--num-out-files=4", "--num-processes=1")


def kill_after_two_shards():
    from electra_tf.data import shard_writing

    finish, done = shard_writing.finish_group, []

    def counted(*args):
        finish(*args)
        done.append(args)
        if len(done) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    shard_writing.finish_group = counted


def interrupted(text, output, *flags):
    paths = (f"--corpus-dir={text}", f"--vocab-file={VOCAB}", f"--output-dir={output}")
    logs = output.parent / "logs"
    run = Run(logs, SCRIPT, *paths, *flags, before=kill_after_two_shards)
    assert run.wait(120).returncode == -signal.SIGKILL


def replace_text(path):
    """By another of the same size, a second later."""
    stats = path.stat()
    path.write_bytes(path.read_bytes().swapcase())
    assert path.stat().st_size == stats.st_size
    later = stats.st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))


def test_shards_of_text_that_was_changed_are_made_again(tmp_path):
    """Also where it has the same size; no data set is of two texts."""
    text, output = tmp_path / "text", tmp_path / "out"
    write_corpus(text)
    interrupted(text, output, *FOUR)
    made = {path.name: path.stat().st_mtime_ns for path in output.glob("*.tfrecord-*")}
    shutil.copytree(output, tmp_path / "again")
    shutil.copytree(text, tmp_path / "copy")  # which keeps the times
    succeed(tmp_path / "copy", tmp_path / "again", *FOUR)
    for name, time in made.items():
        assert (tmp_path / "again" / name).stat().st_mtime_ns == time
    for path in text.iterdir():
        replace_text(path)
    succeed(text, output, *FOUR)
    succeed(text, tmp_path / "fresh", *FOUR)
    assert content(output) == content(tmp_path / "fresh")


def test_documents_that_were_compared_are_those_of_now(tmp_path):
    text, output = tmp_path / "text", tmp_path / "out"
    write_corpus(text)
    flags = (*FOUR, "--drop-duplicate-lines")
    interrupted(text, output, *flags)
    (output / "run.lock").unlink()  # of the killed one; the next one would remove it
    before = content(output)
    replace_text(text / "3.txt")
    error, code = fail(text, output, *flags)
    assert f"(the newest: {text}/3.txt)" in error and code == 2
    assert content(output) == before


def test_a_finished_build_names_newer_text(tmp_path):
    text, output = tmp_path / "text", tmp_path / "out"
    write_corpus(text)
    assert "warning" not in succeed(text, output)
    assert "warning" not in succeed(text, output)
    manifest = output / "manifest.json"
    os.utime(text / "3.txt", ns=(manifest.stat().st_mtime_ns + 10**9,) * 2)
    again = succeed(text, output)
    assert f"warning: {text}/3.txt is newer than this data" in again
    assert "is complete already" in again


def pack_records(path):
    """A tar archive of JSON Lines, each record with two texts."""
    rows = [{"text": f"{w} {w}", "raw": f"the {w} of {w}"} for w in WORDS * 20]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    member = tarfile.TarInfo("a.jsonl")
    member.size = len(data)
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize("name", ["a.tar.gz", "a.gz"])
def test_archives_are_read_by_one_key(tmp_path, name):
    text, output = tmp_path / "in", tmp_path / "out"
    pack_records(text / name)
    succeed(text, output, "--text-key=raw")
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["settings"]["text_key"] == "raw"
    assert "is complete already" in succeed(text, output, "--text-key=raw")
    error, code = fail(text, output)
    assert 'text_key "raw", now null' in error and code == 2


def test_what_an_earlier_version_made_of_archives_is_known(tmp_path):
    """It did not say by which key: the usual one goes on."""
    text, output = tmp_path / "in", tmp_path / "out"
    pack_records(text / "a.tar.gz")
    succeed(text, output)
    manifest = json.loads((output / "manifest.json").read_text())
    assert "text_key" not in manifest["settings"]
    error, code = fail(text, output, "--text-key=raw")
    assert 'text_key null, now "raw"' in error and code == 2


def test_rests_of_a_kill_are_no_obstacle(tmp_path):
    text, output = tmp_path / "text", tmp_path / "out"
    write_corpus(text)
    output.mkdir()
    (output / "build.json.partial").write_text("{")  # of the first write
    interrupted(text, output, *FOUR)
    (state,) = sorted(output.glob(".group-*[0-9].json"))[:1]
    state.write_text('{"counts": ')
    succeed(text, output, *FOUR)
    succeed(text, tmp_path / "whole", *FOUR)
    assert content(output) == content(tmp_path / "whole")


def test_a_manifest_of_something_else(tmp_path):
    write_corpus(tmp_path / "text")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "manifest.json").write_text('{"settings": []}')
    error, code = fail(tmp_path / "text", tmp_path / "out")
    assert "was made with" in error and code == 2


def test_the_vocabulary_is_no_text_of_the_corpus(tmp_path):
    text = tmp_path / "text"
    write_corpus(text)
    vocab = shutil.copy(VOCAB, text / "vocab.txt")
    flags = (f"--corpus-dir={text}", f"--output-dir={tmp_path}/out")
    done = run_script(SCRIPT, f"--vocab-file={vocab}", *flags)
    assert f"--vocab-file {vocab} is in --corpus-dir" in done.stderr
    assert done.returncode == 2


# What is built, but perhaps not as it was meant.


def warnings_of(tmp_path, text, *flags):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(text, encoding="utf-8")
    printed = succeed(tmp_path / "in", tmp_path / "out", *flags)
    return printed.partition("warning: ")[2]


WORDS = [word for word in VOCAB.read_text().split() if word.isalpha()]


def test_most_tokens_are_cut_off(tmp_path):
    found = warnings_of(tmp_path, " ".join(WORDS * 20) + "\n")
    assert "tokens are used: what of a line goes beyond --max-seq-length" in found


def test_most_tokens_are_unknown(tmp_path):
    thai = "\u0e01\u0e32\u0e23" * 100
    found = warnings_of(tmp_path, f"{WORDS[0]} {thai}\n" * 50)
    assert "tokens are [UNK]: is" in found and "more than 200 characters" in found
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    counts = manifest["token_counts"]
    assert counts["unknown"] == 50 and counts["all"] >= 100


def test_a_cased_vocabulary_and_lower_case(tmp_path):
    vocab = tmp_path / "cased.txt"
    tokens = VOCAB.read_text().splitlines()
    tokens += [f"Z{word}" for word in WORDS if word.isascii()][:99]
    vocab.write_text("".join(f"{token}\n" for token in tokens))
    write_corpus(tmp_path / "in")
    for lower in (True, False):
        done = run_script(
            SCRIPT,
            *(f"--corpus-dir={tmp_path}/in", f"--vocab-file={vocab}"),
            f"--output-dir={tmp_path}/{lower}",
            *([] if lower else ["--no-lower-case"]),
        )
        assert ("have capital letters" in done.stdout) == lower
        assert done.returncode == 0


# Files beside the shards.


@pytest.mark.parametrize("name", ["00000-of-00001.bak", "00001-of-00002"])
def test_a_shard_that_the_manifest_does_not_list(tmp_path, name):
    write_corpus(tmp_path / "in")
    folder = tmp_path / "out"
    succeed(tmp_path / "in", folder)
    vocab = Vocabulary.load(str(VOCAB))
    pattern = f"{folder}/pretrain_data.tfrecord*,{folder.parent}/./out/*tfrecord*"
    paths = shards.find_shards(pattern)
    assert [Path(path).name for path in paths] == [
        "pretrain_data.tfrecord-00000-of-00001"
    ]
    assert len(shards.check_manifests(paths, pattern, 128, vocab)) == 1
    stray = shutil.copy(paths[0], folder / f"pretrain_data.tfrecord-{name}")
    with pytest.raises(UserError) as caught:
        shards.check_manifests(shards.find_shards(pattern), pattern, 128, vocab)
    assert f"{stray} is not among the shards" in str(caught.value)
