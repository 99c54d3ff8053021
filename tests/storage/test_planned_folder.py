# SPDX-License-Identifier: Apache-2.0
"""Folders that a plan fills: what they hold, and one writer at a time."""

import contextlib
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


def check_is_refused(folder, code, word):
    with pytest.raises(UserError, match=word) as caught, opened(folder):
        pass
    assert caught.value.exit_code == code


@pytest.fixture(params=["local", "bucket"])
def folder(request, tmp_path, monkeypatch):
    memory_bucket.empty(tmp_path, monkeypatch)
    if request.param == "bucket":
        return memory_bucket.place("folder")
    return str(tmp_path / "folder")


def put(folder, name, content):
    text = content if isinstance(content, str) else json.dumps(content)
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, name).write_text(text)
    remote.put(folder, [name])


def test_from_nothing_to_a_finished_folder(folder):
    with contextlib.suppress(UserError), opened(folder) as found:
        assert found.state is None
        raise UserError("an early mistake")
    with opened(folder) as found:
        assert found == (None, {})
        put(folder, "state.json", FOUND)
        put(folder, "shard", "12345")
    with opened(folder) as found:
        assert found.state == FOUND and not found.is_finished
        assert found.sizes["shard"] == 5
        put(folder, "manifest.json", DONE)
    with opened(folder) as found:
        assert found.state == DONE and found.is_finished
        with opened(folder) as again:
            assert again == found
    assert not [name for name in os.listdir(folder) if name.startswith("run.lock")]


def test_a_second_start_touches_nothing(folder, tmp_path, monkeypatch):
    with opened(folder):
        put(folder, "state.json", FOUND)
        part = Path(folder, ".part-of-the-first")
        part.touch()
        check_is_refused(folder, 75, "another --output-dir")
        assert part.exists()
        if remote.is_remote(folder):  # from another machine
            with monkeypatch.context() as patch:
                patch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "another"))
                place = memory_bucket.place("folder")
                check_is_refused(place, 75, "another --output-dir")
    with opened(folder):
        pass


def test_the_first_finishes_while_the_second_waits(folder, monkeypatch):
    enter = RunLock.__enter__

    def after_the_first(lock):
        with monkeypatch.context() as patch:
            patch.setattr(RunLock, "__enter__", enter)
            with opened(folder):
                put(folder, "shard", "12345")
                put(folder, "manifest.json", DONE)
        return enter(lock)

    monkeypatch.setattr(RunLock, "__enter__", after_the_first)
    with opened(folder) as found:
        assert found.is_finished and found.state == DONE


def test_folders_that_cannot_be_used(folder, tmp_path):
    put(folder, "precious", "")
    check_is_refused(folder, 2, r"already holds something \(precious\)")
    assert os.listdir(folder) == ["precious"]
    (tmp_path / "file").write_text("")
    check_is_refused(tmp_path / "file" / "folder", 2, "cannot use")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state.json").write_text("{")
    check_is_refused(tmp_path / "damaged", 65, "state.json cannot be read")
