# SPDX-License-Identifier: Apache-2.0
"""Imports of the package, and the backend of Keras."""

import os
import sys
import types

import pytest

from electra_tf import startup
from electra_tf.errors import UserError
from tests.helpers import building, forked_runs, runs, tiny_finetuning
from tests.helpers.runs import ROOT, check_ok, tiny, write_tiny_data

# Fails if importing the package has started, installed or changed anything.
NOTHING_ELSE = """
import os, sys
before = list(sys.meta_path), sys.stdin, sys.stdout, sys.stderr, dict(os.environ)
descriptors = os.listdir("/proc/self/fd")
sys.executable = "/nowhere/python"
import electra_tf
assert "keras" not in sys.modules and "tensorflow" not in sys.modules
after = list(sys.meta_path), sys.stdin, sys.stdout, sys.stderr, dict(os.environ)
assert before == after and descriptors == os.listdir("/proc/self/fd")
from electra_tf import startup
startup.import_tensorflow()
assert "sklearn" in sys.modules  # of Keras's wrappers, which the program may use
"""


def python(code, **env):
    return runs.python("-c", code, **{"KERAS_BACKEND": "", **env})


def test_importing_the_package_does_nothing_else():
    check_ok(python(NOTHING_ELSE))


MODEL = str(ROOT / "examples" / "novels_model")
DETECT = ["", "detect", "--model", MODEL, "--input", str(ROOT / "README.md")]

COMMAND = f"""
import sys
from electra_tf.commands import run
try:
    run("infer", {DETECT})
except SystemExit as end:
    assert not end.code
unused = "matplotlib", "pandas", "pyarrow", "sklearn", "tensorflow_text", "torch"
assert not {{*unused}} & {{*sys.modules}}
import matplotlib, sklearn
"""


def test_a_command_imports_nothing_that_it_does_not_use():
    check_ok(python(COMMAND))


@pytest.mark.parametrize(
    "call",
    [
        "import electra_tf; electra_tf.ElectraPretrainer",
        "from electra_tf import TextEncoder",
        f"import electra_tf; electra_tf.load({MODEL!r})",
        f"from electra_tf.commands import run; run('infer', {DETECT})",
    ],
    ids=["class", "layer", "load", "script"],
)
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_another_backend_is_refused_before_tensorflow(tmp_path, call, backend):
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('was imported')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = python(call, KERAS_BACKEND=backend, PYTHONPATH=path)
    message = (
        f"electra_tf needs Keras's TensorFlow backend, but KERAS_BACKEND is {backend}."
    )
    assert done.stderr.splitlines()[-1].endswith(message), done.stderr
    if "commands" in call:
        assert (done.stderr, done.returncode) == (f"error: {message}\n", 2)


def test_keras_imported_with_another_backend_is_refused(monkeypatch):
    backend = types.SimpleNamespace(backend=lambda: "jax")
    monkeypatch.setitem(sys.modules, "keras", types.SimpleNamespace(backend=backend))
    with pytest.raises(UserError, match="backend of the imported keras is jax"):
        startup.choose_backend()


# Packages that only some uses need.


@pytest.mark.thorough
def test_training_and_prediction_need_no_optional_package(finetuned, tmp_path):
    """In processes in which those packages cannot be imported."""
    data = write_tiny_data(tmp_path / "data")
    building.write_corpus(tmp_path / "texts", files=1, lines=20)
    flags = [f"--corpus-dir={tmp_path / 'texts'}", f"--vocab-file={building.VOCAB}"]
    flags += [f"--output-dir={tmp_path / 'built'}", "--num-processes=1"]
    [trial] = (finetuned / "models" / "tiny" / "finetuning_models").iterdir()
    asked = ["predict", f"--model={trial}", "--task=cola"]
    asked.append(f"--input={data / 'vocab.txt'}")
    plainly = {"before": forked_runs.plainly}
    logs = tmp_path / "logs"
    for run in (
        forked_runs.Run(logs, building.SCRIPT, *flags, **plainly),
        forked_runs.pretrain(data, "m", tiny(num_train_steps=1), **plainly),
        forked_runs.Run(logs, "run_inference.py", *asked, **plainly),
    ):
        check_ok(run.wait())
    tiny_finetuning.write_data(tmp_path)
    hparams = {"task_names": ["cola"], "num_train_epochs": 0.1}
    check_ok(tiny_finetuning.fork(tmp_path, "m", hparams, **plainly))
