# SPDX-License-Identifier: Apache-2.0
"""A folder with its manifest appears whole or not at all."""

import json
import stat

import numpy as np
import pytest

from electra_tf.errors import EXIT_CANNOT_WRITE, EXIT_DAMAGED, UserError
from electra_tf.storage.manifest import MANIFEST, verify_folder, write_manifest
from electra_tf.storage.new_folder import new_folder, require_room


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
