# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may ask for."""

from pathlib import Path

import pytest

from electra_tf import startup
from tests.helpers.runs import write_tiny_data

startup.keep_triton_out()  # Tests import torch themselves.


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    """A data directory that tests may train in, each with its own --model-name."""
    return write_tiny_data(tmp_path_factory.mktemp("data"))
