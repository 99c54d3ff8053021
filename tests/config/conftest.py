# SPDX-License-Identifier: Apache-2.0
"""Where the data directory "D" of these tests is: nowhere."""

import pytest


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    """As a user of the README's commands may have one in the checkout."""
    monkeypatch.chdir(tmp_path)
