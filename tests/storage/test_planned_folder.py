# SPDX-License-Identifier: Apache-2.0
"""Folders that a plan fills: what is found in them, and who may write there."""

import pytest

from electra_tf.errors import UserError
from electra_tf.storage import planned_folder


@pytest.mark.parametrize("content", ["[]", "{", "\xff"])
@pytest.mark.parametrize("name", ["manifest.json", "state.json"])
def test_a_file_that_says_nothing(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match=f"{name} cannot be read.*\\nName another") as e:
        planned_folder.load_state(str(tmp_path), "state.json", {})
    assert e.value.exit_code == 65


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write") as e:  # noqa: SIM117
        with planned_folder.locked(str(tmp_path / "file" / "folder")):
            pass
    assert e.value.exit_code == 73
