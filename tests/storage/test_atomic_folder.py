# SPDX-License-Identifier: Apache-2.0
"""A folder with its manifest appears whole or not at all."""

import json
import os
import stat

import fsspec
import numpy as np
import pytest

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_DAMAGED, UserError
from electra_tf.storage.atomic_folder import (
    atomic_folder,
    atomic_folders,
    check_free,
    require_room,
)
from electra_tf.storage.manifest import MANIFEST, verify_folder, write_manifest
from tests.helpers import memory_bucket
from tests.helpers.runs import refused


def write(output):
    with atomic_folder(output) as folder:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_bytes(b"123")
        (folder / "part" / "weights").chmod(0o600)
        (folder / "card").write_text("é")
        write_manifest(folder, {"format": "ours", "name": "é"}, ("numpy", "no-such"))
        assert not output.exists() or not any(output.iterdir())
    return output


def test_folders_appear_together_or_not_at_all(tmp_path):
    outputs = [tmp_path / name / "1" for name in "abc"]
    with atomic_folders(outputs) as folders:
        for folder in folders:
            (folder / "slow").write_text("1")
        assert not any(output.exists() for output in outputs)
    assert all((output / "slow").read_text() == "1" for output in outputs)
    outputs = [tmp_path / name / "2" for name in "abc"]
    with pytest.raises(UserError, match="b/2 is in use already") as caught:
        with atomic_folders(outputs) as folders:
            for folder in folders:
                (folder / "slow").write_text("2")
            with atomic_folder(outputs[1]) as fast:
                (fast / "fast").write_text("2")
    assert caught.value.exit_code == EXIT_CANNOT_WRITE
    files = {p.relative_to(tmp_path).as_posix() for p in tmp_path.glob("*/*/*")}
    assert files == {"a/1/slow", "b/1/slow", "c/1/slow", "b/2/fast"}
    assert not list(tmp_path.glob("*/.*"))


def test_a_folder_and_its_manifest(tmp_path):
    output = write(tmp_path / "made" / "out")
    assert [p.name for p in output.parent.iterdir()] == ["out"]
    for path in (output / "card", output / "part" / "weights"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o044 == 0o044
    content = verify_folder(output)
    assert content == json.loads((output / MANIFEST).read_text(encoding="utf-8"))
    assert content["format"] == "ours" and content["name"] == "é"
    assert content["versions"] == {"numpy": np.__version__}
    sizes = {k: v["bytes"] for k, v in content["files"].items()}
    assert sizes == {"card": 2, "part/weights": 3}


def test_an_empty_folder_is_filled_and_a_used_one_refused(tmp_path):
    (tmp_path / "out").mkdir()
    output = write(tmp_path / "out")
    refused(lambda: write(output), "in use already (", code=EXIT_CANNOT_WRITE)
    verify_folder(output)
    refused(lambda: write(output / "card"), "it is a file")


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path, error):
    with pytest.raises((UserError, KeyboardInterrupt)) as caught:
        with atomic_folder(tmp_path / "out") as folder:
            (folder / "half").write_text("x")
            raise error
    assert list(tmp_path.iterdir()) == []
    if isinstance(error, OSError):
        assert caught.value.exit_code == EXIT_CANNOT_WRITE
        assert f"cannot write {tmp_path / 'out'}: No space left" in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: f.write_bytes(b"124"), "part/weights does not match its checksum"),
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


def test_room_is_required_and_given_back(tmp_path):
    require_room(tmp_path, {"weights": np.zeros(1000, np.float32)})
    enormous = np.broadcast_to(np.float32(0), (2**50,))
    with pytest.raises(OSError):
        require_room(tmp_path, {"weights": enormous})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_a_bucket(tmp_path, monkeypatch):
    """It is made here and uploaded with the manifests last."""
    memory, order = memory_bucket.empty(tmp_path, monkeypatch), []
    bucket = memory_bucket.place("out")
    put = memory.put_file

    def recorded(path, key, **options):
        order.append(key)
        return put(path, key, **options)

    monkeypatch.setattr(memory, "put_file", recorded)
    with atomic_folder(bucket) as folder:
        for name in ("manifest.json", "part/manifest.json", "part/z", "a"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        assert memory.find("bucket/out") == []
    names = ["a", "part/z", "manifest.json", "part/manifest.json"]
    assert order == [f"bucket/out/{name}" for name in names]
    with pytest.raises(UserError, match="memory://bucket/out is in use already") as e:
        check_free(bucket)
    assert e.value.exit_code == EXIT_CANNOT_WRITE
    # An export that is in the cache alone does not count.
    memory.rm("bucket/out", recursive=True)
    check_free(bucket)
    assert not os.path.exists(bucket)
    fsspec.filesystem("memory").pipe_file("bucket/out/a", b"")
    with pytest.raises(UserError, match="is in use already"):
        with atomic_folder(bucket):
            pass
