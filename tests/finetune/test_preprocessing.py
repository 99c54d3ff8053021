# SPDX-License-Identifier: Apache-2.0
"""The manifest beside a task's features."""

import pytest

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.finetune import preprocessing


@pytest.mark.parametrize("text", ["{}", "[]", ""])
def test_a_manifest_that_is_none_is_said_to_be(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="manifest.json") as error:
        preprocessing.read_skipped(tmp_path)
    assert error.value.exit_code == EXIT_DAMAGED
