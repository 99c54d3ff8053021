# SPDX-License-Identifier: Apache-2.0
"""A folder with its manifest appears whole or not at all."""

import contextlib
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import fsspec
import numpy as np
import pytest

from electra_tf import paths
from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_DAMAGED, UserError
from electra_tf.storage.manifest import MANIFEST, verify_folder, write_manifest
from electra_tf.storage.new_folder import (
    check_free,
    new_folder,
    new_folders,
    require_room,
)


def write(output):
    with new_folder(output) as folder:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_bytes(b"123")
        (folder / "part" / "weights").chmod(0o600)
        (folder / "card").write_text("é")
        write_manifest(folder, {"format": "ours", "name": "é"}, ("numpy", "no-such"))
        assert not output.exists() or not any(output.iterdir())
    return output


def test_of_two_at_a_time_one_wins_and_the_other_says_so(tmp_path):
    output = tmp_path / "out"
    with pytest.raises(UserError, match="in use already.*nothing is overwritten"):
        with new_folder(output) as slow:
            (slow / "slow").write_text("1")
            with new_folder(output) as fast:
                (fast / "fast").write_text("2")
    assert [p.name for p in tmp_path.rglob("*")] == ["out", "fast"]


def test_folders_appear_together_or_not_at_all(tmp_path):
    outputs = [tmp_path / name / "1" for name in "abc"]
    with new_folders(outputs) as folders:
        for folder in folders:
            (folder / "slow").write_text("1")
        assert not any(output.exists() for output in outputs)
    assert all((output / "slow").read_text() == "1" for output in outputs)
    outputs = [tmp_path / name / "2" for name in "abc"]
    with pytest.raises(UserError, match="b/2 is in use already") as caught:
        with new_folders(outputs) as folders:
            for folder in folders:
                (folder / "slow").write_text("2")
            with new_folder(outputs[1]) as fast:
                (fast / "fast").write_text("2")
    assert caught.value.exit_code == EXIT_CANNOT_WRITE
    there = {p.relative_to(tmp_path).as_posix() for p in tmp_path.glob("*/*/*")}
    assert there == {"a/1/slow", "b/1/slow", "c/1/slow", "b/2/fast"}
    assert not list(tmp_path.glob("*/.*"))


HELD = """
import sys, time
from electra_tf.storage.new_folder import new_folder
with new_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("x")
    print(f"writing {folder}", flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def writing(output):
    """A process that is writing a folder, and that folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HELD, output], stdout=subprocess.PIPE, text=True
    )
    try:
        last = iter(process.stdout.readline, "")
        said = next(line for line in last if line.startswith("writing "))
        yield process, Path(said.removeprefix("writing ").strip())
    finally:
        process.kill()
        process.wait(20)
        process.stdout.close()


def test_what_killed_exports_left_is_removed_and_nothing_else(tmp_path, capsys):
    others = [".mine.partial", ".a.abcdefgh.partial", ".a.abcdefgh@elsewhere.partial"]
    for name in others:
        (tmp_path / name).mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    with writing(tmp_path / "alive") as (_, alive):
        with writing(tmp_path / "killed") as (process, left):
            process.kill()
            process.wait(20)
        assert (left / "half").exists()
        link = left.with_name(left.name.replace("killed", "linked"))
        link.symlink_to(outside)
        write(tmp_path / "out")
        assert (alive / "half").exists()
        said = capsys.readouterr().out
        assert f"removed {left}, which a killed export had left" in said
        assert str(alive) not in said
        assert f"{tmp_path / others[-1]} is an unfinished export" in said
        there = {path.name for path in tmp_path.iterdir()}
        assert there == {*others, "outside", "out", link.name, alive.name}
    write(tmp_path / "next")
    assert f"removed {alive}" in capsys.readouterr().out


def test_a_folder_that_another_removes_before_it_is_held_is_made_again(
    tmp_path, monkeypatch
):
    make, made = tempfile.mkdtemp, []

    def removed_at_once(*args):
        made.append(make(*args))
        if len(made) == 1:
            os.rmdir(made[0])
            os.mkdir(made[0])  # another inode under this name
            monkeypatch.setattr(fcntl, "flock", lost_once)
        return made[-1]

    def lost_once(descriptor, operation, real=fcntl.flock):
        monkeypatch.setattr(fcntl, "flock", real)
        os.rename(made[0], tmp_path / "taken")
        real(descriptor, operation)

    monkeypatch.setattr(tempfile, "mkdtemp", removed_at_once)
    write(tmp_path / "out")
    assert len(made) == 2


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EBADF])
def test_without_locks_nothing_is_removed(tmp_path, monkeypatch, capsys, number):
    with writing(tmp_path / "killed") as (_, left):
        pass

    def refused(*_):
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", refused)
    write(tmp_path / "out")
    assert left.exists() and str(left) in capsys.readouterr().out


def test_a_folder_and_its_manifest(tmp_path):
    output = write(tmp_path / "made" / "out")
    assert [p.name for p in output.parent.iterdir()] == ["out"]
    for path in (output / "card", output / "part" / "weights"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o044 == 0o044
    content = verify_folder(output)
    assert content == json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    assert content["format"] == "ours" and content["name"] == "é"
    assert content["versions"] == {"numpy": np.__version__}
    assert {k: v["bytes"] for k, v in content["files"].items()} == {
        "card": 2,
        "part/weights": 3,
    }


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_leads_to_the_new_folder(tmp_path, is_there):
    target, link = tmp_path / "disk" / "export", tmp_path / "link"
    if is_there:
        target.mkdir(parents=True)
    link.symlink_to(target)
    with new_folder(link) as folder:
        (folder / "a").write_text("1")
    assert link.is_symlink() and (target / "a").read_text() == "1"
    assert [p.name for p in target.parent.iterdir()] == ["export"]


def test_a_mount_point_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) == str(tmp_path))
    with pytest.raises(UserError, match="is a mount point") as caught:
        check_free(tmp_path)
    assert caught.value.exit_code == EXIT_CANNOT_WRITE
    assert f"such as {tmp_path / 'export'}" in str(caught.value)
    with new_folder(tmp_path / "export") as folder:
        (folder / "a").write_text("1")


def test_an_empty_folder_is_filled_and_a_used_one_refused(tmp_path):
    (tmp_path / "out").mkdir()
    output = write(tmp_path / "out")
    with pytest.raises(UserError, match=r"in use already \(") as caught:
        write(output)
    assert caught.value.exit_code == EXIT_CANNOT_WRITE
    verify_folder(output)
    with pytest.raises(UserError, match="it is a file"):
        write(output / "card")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path, error):
    with pytest.raises((UserError, KeyboardInterrupt)) as caught:
        with new_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("x")
            raise error
    assert list(tmp_path.iterdir()) == []
    if isinstance(error, OSError):
        assert caught.value.exit_code == EXIT_CANNOT_WRITE
        assert f"cannot write {tmp_path / 'out'}: No space left" in str(caught.value)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: f.write_bytes(b"124"), "part/weights is not what was written"),
        (lambda f: f.unlink(), "part/weights is missing"),
        (lambda f: f.with_name("more").touch(), "part/more is new"),
    ],
)
def test_damage_is_found(tmp_path, damage, message):
    output = write(tmp_path / "out")
    damage(output / "part" / "weights")
    with pytest.raises(UserError, match=message) as caught:
        verify_folder(output)
    assert caught.value.exit_code == EXIT_DAMAGED
    if "more" in message:
        assert verify_folder(output, log=print)["format"] == "ours"
    else:
        with pytest.raises(UserError, match=message):
            verify_folder(output, log=print)


def test_a_folder_without_manifest(tmp_path):
    assert verify_folder(tmp_path, log=print) == {}
    with pytest.raises(UserError, match=f"{MANIFEST} cannot be read"):
        verify_folder(tmp_path)
    (tmp_path / MANIFEST).write_text('{"files": []}')
    with pytest.raises(UserError, match="has no list of files"):
        verify_folder(tmp_path, log=print)


def test_room_is_asked_for_and_given_back(tmp_path):
    require_room(tmp_path, {"weights": np.zeros(1000, np.float32)})
    assert list(tmp_path.iterdir()) == []
    enormous = np.broadcast_to(np.float32(0), (2**50,))
    with pytest.raises(OSError):
        require_room(tmp_path, {"weights": enormous})
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The place of memory://bucket/out in an empty cache."""
    monkeypatch.setenv("ELECTRA_TF_CACHE", str(tmp_path / "cache"))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe_file("bucket/there", b"")
    return paths.local_of("memory://bucket/out")


def test_a_folder_in_a_bucket(bucket, monkeypatch):
    """It is made here, and goes up with the manifests last."""
    memory, order = fsspec.filesystem("memory"), []
    put = memory.put_file

    def seen(path, key, **options):
        order.append(key)
        return put(path, key, **options)

    monkeypatch.setattr(memory, "put_file", seen)
    with new_folder(bucket) as folder:
        for name in ("manifest.json", "part/manifest.json", "part/z", "a"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        assert memory.find("bucket/out") == []
    names = ["a", "part/z", "manifest.json", "part/manifest.json"]
    assert order == [f"bucket/out/{name}" for name in names]
    with pytest.raises(UserError, match="memory://bucket/out is in use already") as e:
        check_free(bucket)
    assert e.value.exit_code == 73
    # What lies in the cache only is no export.
    memory.rm("bucket/out", recursive=True)
    check_free(bucket)
    assert not os.path.exists(bucket)


def test_an_upload_that_broke_off(bucket):
    fsspec.filesystem("memory").pipe_file("bucket/out/a", b"")
    with pytest.raises(UserError, match="no manifest.json: an upload broke off"):
        with new_folder(bucket):
            pass
