# SPDX-License-Identifier: Apache-2.0
"""Output of TensorFlow while it is imported: only notices are dropped."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from electra_tf import startup
from tests.helpers.runs import ROOT

NOTICE = "I0000 cudart_stub.cc:31] Could not find cuda drivers on your machine\\n"
# Stands in for TensorFlow: writes as its C++ code does.
TENSORFLOW = f"""
import os, signal, types
os.write(2, b"{NOTICE}E0000 the driver is too old\\n")
os.write(2, b"{NOTICE}F0000 check failed: no newline at the end")
{{end}}
config = types.SimpleNamespace(list_physical_devices=lambda: [])
"""
PRINTED = "E0000 the driver is too old\nF0000 check failed: no newline at the end\n"


SCRIPT = "from electra_tf import startup\nstartup.import_tensorflow()\n"
USERS = "import electra_tf, tensorflow\n"


def start(folder, end, program):
    (folder / "tensorflow.py").write_text(TENSORFLOW.format(end=end))
    return subprocess.run(
        [sys.executable, "-c", program + "import sys; print('after', file=sys.stderr)"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("program", [SCRIPT, USERS], ids=["script", "users"])
@pytest.mark.parametrize(
    ("end", "code", "stderr"),
    [
        ("os.abort()", -signal.SIGABRT, PRINTED),
        ("os._exit(3)", 3, PRINTED),
        ("", 0, f"{PRINTED}after\n"),
        ("raise ImportError('libcudart.so is missing')", 1, f"{PRINTED}Traceback"),
    ],
)
def test_only_notices_are_dropped(tmp_path, program, end, code, stderr):
    done = start(tmp_path, end, program)
    assert done.returncode == code and done.stderr.startswith(stderr)
    if code == 1:
        assert "libcudart.so is missing" in done.stderr
    else:
        assert done.stderr == stderr


def test_callback_after_an_import_that_follows_a_lookup(tmp_path, monkeypatch):
    (tmp_path / "looked_for.py").write_text("value = 1")
    monkeypatch.syspath_prepend(tmp_path)
    seen = []

    @contextlib.contextmanager
    def context():
        yield
        seen.append(sys.modules["looked_for"].value)

    finder = startup._OnImport("looked_for", context)
    sys.meta_path.insert(0, finder)
    assert importlib.util.find_spec("looked_for") and not seen
    assert importlib.import_module("looked_for") and seen == [1]
    assert finder not in sys.meta_path
