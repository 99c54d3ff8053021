# SPDX-License-Identifier: Apache-2.0
"""Runs the programs in model cards and pages."""

import os
import re
import subprocess
import sys

_PROGRAM = """
import os, pathlib, sys
for path in sys.argv[1:]:
    os.chdir(pathlib.Path(path).parent)
    print(">>>", path, flush=True)
    exec(compile(pathlib.Path(path).read_text(), path, "exec"), {"__name__": "card"})
"""


def snippets(card) -> list[str]:
    """The Python programs in a page."""
    return re.findall(r"```python\n(.*?)```", card.read_text(encoding="utf-8"), re.S)


def run_snippets(scratch, cards, before="") -> dict[str, str]:
    """Runs the programs of cards, each in its card's directory, in one process.

    Args:
      scratch: a directory for this helper's files.
      before: a program that runs first.

    Returns what each card's printed, by the name of its directory.
    """
    (scratch / "before.py").write_text(before)
    paths = [scratch / "before.py"]
    for card in cards:
        assert snippets(card), card
        for snippet in snippets(card):
            paths.append(card.parent / f"snippet_{len(paths)}.py")
            paths[-1].write_text(snippet)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *paths],
        capture_output=True,
        text=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    printed: dict[str, str] = {}
    for part in done.stdout.split(">>> ")[1:]:
        path, _, said = part.partition("\n")
        name = os.path.basename(os.path.dirname(path))
        printed[name] = printed.get(name, "") + said
    return printed
