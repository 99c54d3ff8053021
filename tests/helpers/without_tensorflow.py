# SPDX-License-Identifier: Apache-2.0
"""An environment in which TensorFlow and Keras cannot be imported, as beside JAX."""

import os
from pathlib import Path

from tests.helpers.runs import ROOT

_BLOCK = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
"""


def environment(folder: Path) -> dict[str, str]:
    """What to add to a process's environment; the folder gets what that needs."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_BLOCK)
    path = os.pathsep.join([str(folder), str(ROOT / "benchmarks")])
    return {"PYTHONPATH": path}
