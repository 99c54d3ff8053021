# SPDX-License-Identifier: Apache-2.0
"""Folders that a plan fills: what is found in them, and who may write there."""

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from electra_tf.errors import UserError
from electra_tf.storage import planned_folder, remote
from electra_tf.storage.lock import RunLock
from tests.helpers import memory_bucket

FOUND = {"settings": {"seed": 1}}
DONE = FOUND | {"files": [{"name": "shard", "bytes": 5}]}


def opened(folder):
    return planned_folder.opened(
        str(folder), "state.json", FOUND["settings"], lambda name: name == "shard"
    )


def refused(folder):
    """The exit code and message of whoever would fill a folder."""
    with pytest.raises(UserError) as caught, opened(folder):
        pass
    return caught.value.exit_code, str(caught.value)


@pytest.mark.parametrize("content", ["[]", "{", "\xff"])
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_a_file_that_says_nothing(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="latin-1")
    code, said = refused(tmp_path)
    assert f"{name} cannot be read" in said and "\nName another" in said
    assert code == 65


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    code, said = refused(tmp_path / "file" / "folder")
    assert "cannot use" in said and code == 2


@pytest.fixture(params=["here", "here, without flock", "bucket"])
def folder(request, tmp_path, monkeypatch):
    memory_bucket.empty(tmp_path, monkeypatch)
    if request.param == "bucket":
        return memory_bucket.place("folder")
    if "without" in request.param:

        def no_flock(*_):
            raise OSError(errno.ENOTSUP, "not supported")

        monkeypatch.setattr(fcntl, "flock", no_flock)
    return str(tmp_path / "folder")


def fill(folder, name, content):
    Path(folder, name).write_text(json.dumps(content))
    remote.put(folder, [name])


def test_from_nothing_to_a_finished_folder(folder):
    with contextlib.suppress(UserError), opened(folder) as found:
        assert found.state is None
        raise UserError("an early mistake")
    with opened(folder) as found:  # what the lock leaves is nobody's file
        assert found == (None, {})
        fill(folder, "state.json", FOUND)
        Path(folder, "shard").write_text("12345")
        remote.put(folder, ["shard"])
    with opened(folder) as found:
        assert found.state == FOUND and not found.is_finished
        assert found.sizes["shard"] == 5
        fill(folder, "manifest.json", DONE)
    with opened(folder) as found:
        assert found.state == DONE and found.is_finished
        with opened(folder) as again:
            assert again == found
    assert not [name for name in os.listdir(folder) if name.startswith("run.lock")]


def test_a_second_start_touches_nothing(folder):
    with opened(folder):
        fill(folder, "state.json", FOUND)
        part = Path(folder, ".part-of-the-first")
        part.touch()
        code, said = refused(folder)
        assert code == 75 and "another --output-dir" in said
        assert part.exists()
    with opened(folder):
        pass


def test_a_second_start_from_another_machine(tmp_path, monkeypatch):
    memory_bucket.empty(tmp_path, monkeypatch)
    with opened(memory_bucket.place("folder")):
        monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "another"))
        code, said = refused(memory_bucket.place("folder"))
        assert code == 75 and "another --output-dir" in said
        monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "cache"))


def test_the_first_finishes_while_the_second_waits(folder, monkeypatch):
    enter = RunLock.__enter__

    def after_the_first(lock):
        with monkeypatch.context() as patch:
            patch.setattr(RunLock, "__enter__", enter)
            with opened(folder):
                Path(folder, "shard").write_text("12345")
                remote.put(folder, ["shard"])
                fill(folder, "manifest.json", DONE)
        return enter(lock)

    monkeypatch.setattr(RunLock, "__enter__", after_the_first)
    with opened(folder) as found:
        assert found.is_finished and found.state == DONE


def test_what_is_not_ours_is_left(folder):
    Path(folder).mkdir(parents=True)
    Path(folder, "precious").touch()
    remote.put(folder, ["precious"])
    code, said = refused(folder)
    assert "already holds something (precious)" in said and code == 2
    assert os.listdir(folder) == ["precious"]
