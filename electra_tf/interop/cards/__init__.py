# SPDX-License-Identifier: Apache-2.0
"""Model cards: the Markdown templates in this folder, and their filling."""

import re
import string
from pathlib import Path


def fill(template: str, part: str, **facts: object) -> str:
    """A part of `<template>.md`, with `$name` replaced by the fact of that name.

    Each part begins with a comment that holds its name. Paragraphs may be empty.
    """
    path = Path(__file__).with_name(f"{template}.md")
    _, *found = re.split(r"(?m)^<!-- (.+) -->\n", path.read_text(encoding="utf-8"))
    parts = dict(zip(found[::2], found[1::2], strict=True))
    text = string.Template(parts[part]).substitute(facts)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")


def write(folder: Path, text: str) -> None:
    """Writes the card of a folder."""
    (folder / "README.md").write_text(f"{text}\n", encoding="utf-8")
