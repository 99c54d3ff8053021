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
    """Variables for a process; what they need is written into the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_BLOCK)
    path = os.pathsep.join([str(folder), str(ROOT / "benchmarks")])
    return os.environ | {"PYTHONPATH": path}
