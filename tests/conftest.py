# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may ask for."""

import os
import tempfile
import zlib
from pathlib import Path

import pytest

from electra_tf import startup
from tests.helpers.runs import write_tiny_data

startup.keep_triton_out()  # Tests import torch themselves.


def pytest_configure(config):
    """What tests keep in the cache is not the user's, and goes with them."""
    if "ELECTRA_TF_CACHE" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="electra_tf_cache_")
        config.add_cleanup(folder.cleanup)
        os.environ["ELECTRA_TF_CACHE"] = folder.name


def pytest_make_parametrize_id(val, argname):
    """Tests are not named after bytes: gzip's say when they were written.

    Then two workers have tests of unlike names, and pytest-xdist runs none.
    """
    return argname if isinstance(val, bytes) else None


def pytest_runtest_setup(item):
    """A test and the fixtures it makes draw the same numbers in every run.

    What fails because of the numbers fails again when it is run again.
    """
    import keras

    keras.utils.set_random_seed(zlib.crc32(item.nodeid.encode()))


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory) -> Path:
    """A data directory that a file's tests train in, each with its own --model-name."""
    return write_tiny_data(tmp_path_factory.mktemp("data"))
