# SPDX-License-Identifier: Apache-2.0
"""Builds by Apache Beam: the bytes of a local build, whoever does the work."""

import json

import pytest

from electra_tf.text import vocabulary_training
from electra_tf.text.units import Reading, file_corpus
from electra_tf.text.vocabulary import TokenizerConfig
from tests.helpers.beam_workers import TWO_PROCESSES, job_server
from tests.helpers.building import VOCAB, content, fail, succeed, write_corpus
from tests.helpers.runs import run_script

pytest.importorskip("apache_beam")

FLAGS = ("--num-out-files=4", "--encoding-errors=replace", "--text-key=body")
FILTERS = ("--drop-duplicate-documents", "--drop-duplicate-lines")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = write_corpus(tmp_path_factory.mktemp("text"))
    line = json.dumps({"body": (folder / "0.txt").read_text()})
    (folder / "a.jsonl").write_text(f"{line}\n" * 3)
    (folder / "b.txt").write_bytes(b"caf\xe9\n")
    return folder


@pytest.fixture(scope="module")
def local(text, tmp_path_factory):
    folders = [tmp_path_factory.mktemp("local") / str(i) for i in range(2)]
    succeed(text, folders[0], *FLAGS)
    succeed(text, folders[1], *FLAGS, *FILTERS)
    return [content(folder) for folder in folders]


def test_in_this_process(text, local, tmp_path):
    said = succeed(text, tmp_path / "out", *FLAGS, "--runner=beam")
    assert content(tmp_path / "out") == local[0]
    assert "4 of 4 groups" in said and "examples in 4 shards" in said
    again = succeed(text, tmp_path / "out", *FLAGS, "--runner=beam")
    assert "is complete already" in again


@pytest.mark.parametrize("mode", ["multi_processing", "multi_threading"])
def test_in_two_workers_with_filters(text, local, tmp_path, mode):
    args = TWO_PROCESSES.replace("multi_processing", mode) + " --runner=DirectRunner"
    flags = (*FLAGS, *FILTERS, "--runner=beam", f"--beam-args={args}")
    succeed(text, tmp_path / "out", *flags)
    assert content(tmp_path / "out") == local[1]


@pytest.mark.thorough
def test_by_a_job_server_and_its_workers(text, local, tmp_path):
    """The protocol that Flink and Spark speak."""
    with job_server(tmp_path) as args:
        flags = ("--runner=beam", f"--beam-args={args}")
        succeed(text, tmp_path / "out", *FLAGS, *flags)
        assert content(tmp_path / "out") == local[0]
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.jsonl").write_text('{"text": \n')
        error, code = fail_whatever_is_logged(tmp_path / "in", tmp_path / "bad", *flags)
        assert f"{tmp_path}/in/a.jsonl line 1 is not JSON" in error and code == 65


def fail_whatever_is_logged(*args):
    """As `fail`, for runners that log to stderr; returns what comes after that."""
    from tests.helpers.building import build

    result = build(*args)
    error = result.stderr.partition("error: ")[2]
    assert error.count("\n") <= 3 and "Traceback" not in result.stderr
    return error, result.returncode


def test_errors_are_those_of_a_local_build(text, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(b"caf\xe9\n")
    errors = [
        fail(tmp_path / "in", tmp_path / f"out{i}", *flags)
        for i, flags in enumerate(((), ("--runner=beam",)))
    ]
    assert errors[0] == errors[1] and errors[0][1] == 65
    (tmp_path / "in" / "a.txt").write_bytes(b"a cafe\n")
    succeed(tmp_path / "in", tmp_path / "out1", "--runner=beam")


@pytest.mark.parametrize(
    ("args", "problem", "code"),
    [
        ("--runner=NoSuchRunner", "Beam runner failed: .*NoSuchRunner", 2),
        ("nonsense", "--beam-args: 'nonsense' is no option", 1),
        ("--runner='", "--beam-args cannot be read", 1),
    ],
)
def test_what_prevents_a_run(text, tmp_path, args, problem, code):
    flags = (*FLAGS, "--runner=beam", f"--beam-args={args}")
    error, found = fail_whatever_is_logged(text, tmp_path / "out", *flags)
    assert found == code
    import re

    assert re.search(problem, error)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (
            ["--runner=beam", "--num-processes=2"],
            "--num-processes is for --runner local",
        ),
        (["--beam-args=--runner=FlinkRunner"], "--beam-args is for --runner beam"),
    ],
)
def test_flags_that_do_not_go_together(text, tmp_path, flags, problem):
    error, code = fail(text, tmp_path / "out", *flags)
    assert problem in error and code == 1


def test_vocabularies(text, tmp_path):
    written = []
    for i, flags in enumerate(((), ("--runner=beam", f"--beam-args={TWO_PROCESSES}"))):
        output = tmp_path / str(i) / "vocab.txt"
        result = run_script(
            "build_vocab.py",
            f"--corpus-dir={text}",
            f"--output-file={output}",
            *("--vocab-size=400", "--encoding-errors=replace", "--text-key=body"),
            *flags,
        )
        assert result.returncode == 0, result.stderr
        written.append(content(output.parent))
    assert written[0] == written[1] and len(written[0]) == 2


def test_what_lies_where_a_vocabulary_is_counted(tmp_path):
    """Only what such a count has left there is removed, and never taken for others'."""
    (tmp_path / "in").mkdir()
    text = tmp_path / "in" / "a.txt"
    text.write_text("some words of a text\n" * 50)
    folder = tmp_path / "vocab.txt.counts"
    folder.mkdir()
    (folder / "mine.tsv").write_text("precious")
    (folder / f"{'0' * 16}-000000.json").write_text("[]")  # of an earlier count
    done = run_script(
        "build_vocab.py",
        *(f"--corpus-dir={text.parent}", f"--output-file={tmp_path}/vocab.txt"),
        *("--vocab-size=400", "--runner=beam", "--beam-args=--runner=DirectRunner"),
    )
    assert done.returncode == 0, done.stderr
    assert content(folder).keys() == {"mine.tsv"}


def test_a_text_that_was_changed_is_counted_again(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    arguments = (TokenizerConfig(), Reading(), str(tmp_path / "counts"), "")
    for text in ("old old text", "new new text"):
        path.write_text(f"{text}\n")
        [unit] = file_corpus(str(path)).units
        with monkeypatch.context() as patch:
            if text.startswith("old"):  # killed when all is counted
                patch.setattr(vocabulary_training, "_sum", lambda *args: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    vocabulary_training.count_units_on_beam([unit], *arguments)
                continue
            found = vocabulary_training.count_units_on_beam([unit], *arguments)
    assert found.words["new"] == 2 and "old" not in found.words


def test_openwebtext(tmp_path):
    import io
    import tarfile

    written = []
    for runner in ("local", "beam"):
        folder = tmp_path / runner
        (folder / "openwebtext").mkdir(parents=True)
        (folder / "vocab.txt").write_bytes(VOCAB.read_bytes())
        for i in range(3):
            path = folder / "openwebtext" / f"{i}.xz"
            with tarfile.open(path, "w:xz") as tar:
                info = tarfile.TarInfo(f"{i}.txt")
                data = f"the page\n\nof the archive {i}\n".encode()
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        script = "build_openwebtext_pretraining_dataset.py"
        result = run_script(script, f"--data-dir={folder}", f"--runner={runner}")
        assert result.returncode == 0, result.stderr
        written.append(content(folder / "pretrain_tfrecords"))
    names = written[0].keys() - {"manifest.json"}
    assert all(written[0][name] == written[1][name] for name in names)


def test_a_bucket_is_no_place_that_workers_share(text):
    error, code = fail(text, "s3://bucket/out", *FLAGS, "--runner=beam")
    assert "--runner beam does not write to a bucket" in error and code == 2
