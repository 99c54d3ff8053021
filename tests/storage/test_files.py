# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole: into files, links, pipes, beside another process."""

import os
import resource

import pytest

from electra_tf.errors import EXIT_CANNOT_WRITE, UserError
from electra_tf.storage.files import atomic_write, is_stream, line_writer
from tests.helpers.pipes import drained


def write(path, *lines):
    with line_writer(path) as write_line:
        for line in lines:
            write_line(line)


def check_is_refused(path, code, text):
    with pytest.raises(UserError, match=text) as caught:
        write(path, "b")
    assert caught.value.exit_code == code


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "out"
    with line_writer(path) as write_line:
        write_line("é")
        assert not path.exists()
    assert path.read_bytes() == "é\n".encode()
    with pytest.raises(UserError, match="half"), line_writer(path) as write_line:
        write_line("a")
        raise UserError("half")
    assert path.read_bytes() == "é\n".encode() and os.listdir(path.parent) == ["out"]


def test_atomic_write_keeps_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "file.json"
    atomic_write(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))  # stands for a full disk
    try:
        with pytest.raises(UserError, match="cannot write") as e:
            atomic_write(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert e.value.exit_code == EXIT_CANNOT_WRITE
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["file.json"]


def test_links_and_pipes_are_written_through(tmp_path):
    (tmp_path / "there").mkdir()
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("there/out")
    write(link, "a")
    assert link.is_symlink() and (tmp_path / "there/out").read_text() == "a\n"
    with drained(pipe) as got:
        write(pipe, "a", "b")
    assert got == ["a\nb\n"] and pipe.is_fifo()
    assert is_stream(pipe) and is_stream("/dev/stdout")
    assert not is_stream(tmp_path / "there/out") and not is_stream(tmp_path / "new")


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    check_is_refused(tmp_path / "file" / "out", EXIT_CANNOT_WRITE, "cannot write")
    check_is_refused(tmp_path, EXIT_CANNOT_WRITE, "cannot write")
    check_is_refused("/dev/full", EXIT_CANNOT_WRITE, "cannot write /dev/full: No space")
    # Another error inside is not the output's.
    for place in (tmp_path / "out", None):
        with pytest.raises(FileNotFoundError), line_writer(place):
            open(tmp_path / "weights")
    assert os.listdir(tmp_path) == ["file"]
