# SPDX-License-Identifier: Apache-2.0
"""Builds by Apache Beam write the bytes of a local build."""

import json

import pytest

from tests.helpers.beam_workers import TWO_PROCESSES
from tests.helpers.building import content, fail, succeed, write_corpus
from tests.helpers.runs import run_script

pytest.importorskip("apache_beam")
pytestmark = pytest.mark.thorough

FLAGS = ("--num-out-files=4", "--encoding-errors=replace", "--text-key=body")


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
    assert "build: 4 of 4 parts with Beam" in output
    again = succeed(text, tmp_path / "out", *FLAGS, "--runner=beam")
    assert "is complete already" in again


def test_in_two_workers(text, local, tmp_path):
    flags = ("--runner=beam", f"--beam-args={TWO_PROCESSES} --runner=DirectRunner")
    succeed(text, tmp_path / "out", *FLAGS, *flags)
    assert content(tmp_path / "out") == local


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
