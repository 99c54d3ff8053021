# SPDX-License-Identifier: Apache-2.0
"""What TensorFlow prints while it is imported: notices are dropped, the rest is not."""

import os
import signal
import subprocess
import sys

import pytest

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
SAID = "E0000 the driver is too old\nF0000 check failed: no newline at the end\n"


def start(folder, end="", before=""):
    (folder / "tensorflow.py").write_text(TENSORFLOW.format(end=end))
    code = f"{before}\nfrom electra_tf import startup\nstartup.import_tensorflow()\n"
    return subprocess.run(
        [sys.executable, "-c", code + "import sys; print('after', file=sys.stderr)"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.abort()", -signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os._exit(3)", 3),
    ],
)
def test_what_tensorflow_says_before_it_aborts_is_seen(tmp_path, end, code):
    done = start(tmp_path, end)
    assert (done.returncode, done.stderr) == (code, SAID)


def test_notices_are_dropped_and_the_order_is_kept(tmp_path):
    done = start(tmp_path)
    assert (done.returncode, done.stderr) == (0, f"{SAID}after\n")


def test_an_import_error_is_seen_after_what_was_printed(tmp_path):
    done = start(tmp_path, "raise ImportError('libcudart.so is missing')")
    assert done.returncode == 1 and done.stderr.startswith(f"{SAID}Traceback")
    assert "libcudart.so is missing" in done.stderr


def test_without_another_process_everything_is_printed(tmp_path):
    broken = "import sys; sys.executable = '/nowhere/python'"
    done = start(tmp_path, before=broken)
    assert done.returncode == 0 and done.stderr.count("cuda drivers") == 2
    assert "E0000 the driver is too old" in done.stderr


@pytest.mark.parametrize("in_script", [True, False])
def test_keras_looks_for_no_wrappers_in_a_script(in_script):
    code = f"""
import sys
from electra_tf import startup
startup.in_script = {in_script}
startup.import_tensorflow()
print("sklearn" in sys.modules, "matplotlib" in sys.modules)
import matplotlib.pyplot, sklearn.metrics
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == f"{not in_script} {not in_script}\n", done.stderr
