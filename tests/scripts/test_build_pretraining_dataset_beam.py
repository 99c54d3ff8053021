# SPDX-License-Identifier: Apache-2.0
"""Builds by Apache Beam write the bytes of a local build."""

import json
import re

import pytest

from tests.helpers.beam_workers import TWO_PROCESSES, job_server
from tests.helpers.building import build, content, fail, succeed, write_corpus
from tests.helpers.runs import run_script

pytest.importorskip("apache_beam")
pytestmark = pytest.mark.thorough

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
    folder = tmp_path_factory.mktemp("local") / "out"
    succeed(text, folder, *FLAGS)
    return content(folder)


def test_in_this_process(text, local, tmp_path):
    output = succeed(text, tmp_path / "out", *FLAGS, "--runner=beam")
    assert content(tmp_path / "out") == local
    assert "4 of 4 groups" in output
    again = succeed(text, tmp_path / "out", *FLAGS, "--runner=beam")
    assert "is complete already" in again


def test_in_two_workers_with_filters(text, tmp_path):
    succeed(text, tmp_path / "local", *FLAGS, *FILTERS)
    flags = ("--runner=beam", f"--beam-args={TWO_PROCESSES} --runner=DirectRunner")
    succeed(text, tmp_path / "out", *FLAGS, *FILTERS, *flags)
    assert content(tmp_path / "out") == content(tmp_path / "local")


def test_by_a_job_server_and_its_workers(text, local, tmp_path):
    """The protocol that Flink and Spark speak."""
    with job_server(tmp_path) as args:
        flags = ("--runner=beam", f"--beam-args={args}")
        succeed(text, tmp_path / "out", *FLAGS, *flags)
        assert content(tmp_path / "out") == local
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.jsonl").write_text('{"text": \n')
        done = build(tmp_path / "in", tmp_path / "bad", *flags)
        assert done.returncode == 65 and "Traceback" not in done.stderr
        assert f"error: {tmp_path}/in/a.jsonl line 1 is not JSON" in done.stderr


@pytest.mark.parametrize(
    ("args", "problem", "code"),
    [
        ("--runner=NoSuchRunner", "Beam runner failed: .*NoSuchRunner", 2),
        ("nonsense", "--beam-args: 'nonsense' is no option", 1),
    ],
)
def test_wrong_arguments_of_beam(text, tmp_path, args, problem, code):
    flags = (*FLAGS, "--runner=beam", f"--beam-args={args}")
    done = build(text, tmp_path / "out", *flags)
    assert done.returncode == code and re.search(problem, done.stderr)
    assert "Traceback" not in done.stderr


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


def test_buckets_are_refused(text):
    error, code = fail(text, "s3://bucket/out", *FLAGS, "--runner=beam")
    assert "--runner beam does not write to a bucket" in error and code == 2
