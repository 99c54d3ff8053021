# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may ask for."""

import functools
import gc
import importlib.util
import os
import random
import re
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from electra_tf import startup
from tests.helpers import shared
from tests.helpers.runs import write_tiny_data

startup.keep_triton_out()  # Tests import torch themselves.


# What the one who runs the tests may have set for other work, and the project reads.
_NOT_FOR_TESTS = (
    *("TF_CONFIG", "XLA_FLAGS", "TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS"),
    "HF_HUB_OFFLINE",
)


def pytest_configure(config):
    """Tests run in the same environment everywhere: on CPUs, with a cache of their own.

    What they keep in the cache is not the user's, and goes with them.
    """
    folder = tempfile.TemporaryDirectory(prefix="electra_tf_cache_")
    config.add_cleanup(folder.cleanup)
    os.environ["ELECTRA_TF_CACHE"] = folder.name
    for name in _NOT_FOR_TESTS:
        os.environ.pop(name, None)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Servers that tests start are asked directly.
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """A test that fails for want of a package is skipped where that is not installed.

    `./test.sh --next` has none of tensorflow-text, for instance.
    """
    report = yield
    missing = re.search(r"\(No module named '(\w+)'\)", str(report.longrepr))
    if report.failed and missing and not importlib.util.find_spec(missing[1]):
        report.outcome = "skipped"
        report.longrepr = str(item.path), item.location[1], f"no {missing[1]}"
    return report


def pytest_collection_finish():
    gc.disable()
    gc.freeze()  # Modules stay; a collection need not walk through them.


@pytest.fixture(scope="module", autouse=True)
def _graphs_are_freed():
    """Models are freed after each file; else all at once, and a test waits for it."""
    yield
    gc.collect()


def pytest_make_parametrize_id(val, argname):
    """Tests are not named after bytes: gzip's say when they were written.

    Then two workers have tests of unlike names, and pytest-xdist runs none.
    """
    return argname if isinstance(val, bytes) else None


def _seed(name: str) -> None:
    """For NumPy and for Keras, whose weights are drawn by Python's numbers.

    Not TensorFlow's own: setting them makes it forget all compiled operations. Nothing
    in the tests draws from them but seeds of dropout.
    """
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """A fixture draws the same numbers whichever test asks for it first."""
    _seed(f"{fixturedef.baseid}::{fixturedef.argname}[{request.param_index}]")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test draws the same numbers in every run, and leaves no iterator behind.

    What fails because of the numbers fails again when it is run again. An iterator of
    tf.data may wait at its end for as long as it lived, up to a minute.
    """
    _seed(item.nodeid)
    yield
    gc.collect(1)


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory) -> Path:
    """A data directory that a file's tests train in, each with its own --model-name."""
    return write_tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory) -> Callable[[str], Path]:
    """kind of shared.KINDS -> a data directory with models/<kind>; do not change it."""

    def data_of(kind: str) -> Path:
        make = functools.partial(shared.pretrain, kind=kind)
        return shared.make_once(tmp_path_factory, kind, make)

    return data_of


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory) -> Path:
    """A data directory with models/tiny, trained on three tasks; do not change it."""
    return shared.make_once(tmp_path_factory, "finetuned", shared.finetune)


@pytest.fixture(scope="session")
def finetuned_own(tmp_path_factory) -> Path:
    """A data directory with models/own, trained on own tasks; do not change it."""
    return shared.make_once(tmp_path_factory, "own", shared.finetune_own)
