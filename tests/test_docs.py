# SPDX-License-Identifier: Apache-2.0
"""Python in README.md and docs/ runs, and prints what the page shows.

A block of Python is followed by a block of `text` with its output. Comments before it
are `<!-- not run: REASON -->`, or `<!-- run with OLD => NEW; OLD => NEW -->` for a
shorter run, whose output is not compared. The blocks of a page share their names and a
directory that has examples/.
"""

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", *sorted(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
PAGES.remove("docs/python_api.md")  # Signatures, made and tested by other programs.
# What a page has done before.
EXPORT = "--init-checkpoint examples/novels_model --format saved_model"
BEFORE = {"docs/serving.md": f"export_model.py {EXPORT} --output-dir exports"}
BLOCK = re.compile(
    r"^(?:<!-- (not run|run with):? ([^\n]*) -->\n)?```python\n(.*?)^```\n"
    r"(?:\n?```(?:text)?\n(.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
# Runs the blocks of each page in its folder; writes what each printed.
PROGRAM = """
import contextlib, io, json, os, sys
printed = []
for folder, blocks in json.load(open(sys.argv[1])):
    os.chdir(folder)
    names = {"__name__": "page"}
    for place, source in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, place, "exec"), names)
        printed.append(out.getvalue())
json.dump(printed, open(sys.argv[2], "w"))
"""


class Block(NamedTuple):
    """A block of Python to run; `source` has its line numbers in the page."""

    place: str
    source: str
    output: str | None  # None: not compared


def blocks_of(page: str) -> list[Block]:
    text, found = (ROOT / page).read_text(encoding="utf-8"), []
    for match in BLOCK.finditer(text):
        kind, remark, source, output = match.groups()
        if kind == "not run":
            continue
        changes = remark.split("; ") if kind else []
        for old, new in (change.split(" => ") for change in changes):
            assert old in source, f"{page} has no {old}"
            source = source.replace(old, new)
        lines = text.count("\n", 0, match.start(3))
        expected = None if kind else output or ""
        found.append(Block(f"{page}:{lines + 1}", "\n" * lines + source, expected))
    return found


def assert_alike(shown: str, printed: str, place: str):
    """Equal but for spaces, and for numbers that differ by a few per cent."""
    advice = f"{place} shows\n{shown}\nbut prints\n{printed}"
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (shown, printed)]
    assert words[0] == words[1], advice
    for pair in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        a, b = (float(number.replace(",", "")) for number in pair)
        assert math.isclose(a, b, rel_tol=0.05, abs_tol=0.02), advice


@pytest.mark.thorough
def test_python_in_pages_prints_what_they_show(tmp_path):
    order, expected = [], []
    for page in PAGES:
        blocks = blocks_of(page)
        folder = tmp_path / page.replace("/", "_")
        folder.mkdir()
        (folder / "examples").symlink_to(ROOT / "examples")
        if command := BEFORE.get(page):
            script, *flags = command.split()
            command = [sys.executable, ROOT / script, *flags]
            subprocess.run(command, cwd=folder, check=True, capture_output=True)
        order.append((str(folder), [(block.place, block.source) for block in blocks]))
        expected += blocks
    assert len(expected) >= 6
    (tmp_path / "order.json").write_text(json.dumps(order))
    command = [sys.executable, "-c", PROGRAM, "order.json", tmp_path / "printed.json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = json.loads((tmp_path / "printed.json").read_text())
    for block, text in zip(expected, printed, strict=True):
        if block.output is not None:
            assert_alike(block.output, text, block.place)
