# SPDX-License-Identifier: Apache-2.0
"""Benchmarks as a user starts them, with TensorFlow's Python or with JAX's."""

import os
import subprocess

import pytest

from tests.helpers.runs import ROOT

BENCHMARKS = ROOT / "benchmarks"
PYTHON = ROOT / ".venv-accelerators" / "bin" / "python"

compilers = pytest.mark.skipif(
    not PYTHON.exists(),
    reason="the compilers are not installed: ./test.sh --accelerators installs them",
)


def run(python, script: str, *flags, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(python), str(BENCHMARKS / script), *map(str, flags)],
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2"} | environment,
        timeout=500,
        check=False,
    )


def ok(*args, **environment) -> str:
    done = run(*args, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done, code: int, *texts: str) -> None:
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    for text in texts:
        assert text in done.stderr
