# SPDX-License-Identifier: Apache-2.0
"""Lines that a command writes: into files, links, pipes, beside another process."""

import errno
import os
import threading

import pytest

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_LOCKED, UserError
from electra_tf.storage import files
from electra_tf.storage.files import (
    cannot_write,
    is_stream,
    keep_others_out,
    line_writer,
)
from tests.helpers.pipes import drained


def write(path, *lines):
    with line_writer(path) as write_line:
        for line in lines:
            write_line(line)


def refused(path, code, text):
    with pytest.raises(UserError, match=text) as caught:
        write(path, "b")
    assert caught.value.exit_code == code


def test_a_file_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "new" / "out"
    with line_writer(path) as write_line:
        write_line("é")
        assert not path.exists()
    assert path.read_bytes() == "é\n".encode()
    assert os.listdir(path.parent) == ["out"]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "out"
    path.write_text("old")
    with pytest.raises(UserError, match="half"), line_writer(path) as write_line:
        write_line("a")
        raise UserError("half")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["out"]


def test_a_link_leads_to_the_file(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there/out")
    write(link, "a")
    assert link.is_symlink() and (tmp_path / "there/out").read_text() == "a\n"
    assert os.listdir(tmp_path / "there") == ["out"]


def test_a_pipe_gets_each_line_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    with drained(pipe) as got:
        write(pipe, "a", "b")
    assert got == ["a\nb\n"] and pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    has_left = threading.Event()

    def read():
        with open(pipe):
            pass
        has_left.set()

    threading.Thread(target=read, daemon=True).start()
    with line_writer(pipe) as write_line:
        assert has_left.wait(60)
        for _ in range(3):
            write_line("a")


def test_what_fails_beside_it_is_not_the_outputs_fault(tmp_path):
    for place in (tmp_path / "out", "/dev/null", None):
        with pytest.raises(FileNotFoundError), line_writer(place):
            open(tmp_path / "weights")
    assert os.listdir(tmp_path) == []
    refused("/dev/full", EXIT_CANNOT_WRITE, "cannot write /dev/full: No space left")


def test_what_is_a_stream(tmp_path):
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    streams = ["/dev/null", "/dev/stdout", "/dev/fd/1"]
    streams += [tmp_path / "pipe", tmp_path / "link"]
    assert all(map(is_stream, streams))
    files = [tmp_path, tmp_path / "file", tmp_path / "new", "/dev/shm/new", "new"]
    assert not any(map(is_stream, files))


def test_output_of_the_shell_is_not_emptied(tmp_path, monkeypatch):
    """`--output /dev/stdout >> file`."""
    path = tmp_path / "out"
    path.write_text("old\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    write(f"/dev/fd/{descriptor}", "a")
    os.close(descriptor)
    assert path.read_text() == "old\na\n"
    monkeypatch.setattr(files, "closed_streams", {"stdout"})
    for place in (None, "/dev/stdout"):
        refused(place, EXIT_CANNOT_WRITE, "standard output is closed")


def test_two_processes_do_not_write_one_file(tmp_path):
    path, partial = tmp_path / "out", tmp_path / "out.partial"
    with line_writer(path) as write_line:
        write_line("a")
        refused(path, EXIT_LOCKED, "another process is writing .*out.partial")
    assert path.read_text() == "a\n" and not partial.exists()
    # Opened while the other had it, which has finished since.
    partial.touch()
    with open(partial, "a") as f:
        partial.rename(path)
        with pytest.raises(UserError, match="another process"):
            keep_others_out(f, partial)
    # What a killed process left is written over.
    partial.write_text("half a li")
    write(path, "b")
    assert path.read_text() == "b\n" and os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EIO])
def test_files_that_have_no_locks(tmp_path, monkeypatch, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    if number == errno.EIO:
        with pytest.raises(OSError, match="Input/output error"):
            write(tmp_path / "out", "a")
        return
    write(tmp_path / "out", "a")
    assert (tmp_path / "out").read_text() == "a\n"


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    refused(tmp_path / "file" / "out", EXIT_CANNOT_WRITE, "cannot write")
    refused(tmp_path, EXIT_CANNOT_WRITE, "cannot write")


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (OSError(errno.EACCES, "a/b is read-only"), True),
        (OSError(errno.EIO, "a/b; No space left on device"), True),  # TensorFlow's
        (RuntimeError("a/b; Permission denied"), True),
        (OSError(errno.ENOENT, "No such file or directory"), False),
        (OSError(errno.ENOTEMPTY, "Directory not empty"), False),
        (OSError(errno.EIO, "Input/output error"), False),
    ],
)
def test_room_and_permissions_are_advised_where_they_help(tmp_path, error, helps):
    said = str(cannot_write(tmp_path, error))
    assert said.startswith(f"cannot write {tmp_path}: ") and said.count("\n") == 1
    assert ("make room" in said) == ("is intact" in said) == helps
