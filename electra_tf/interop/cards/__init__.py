# SPDX-License-Identifier: Apache-2.0
"""Model cards: a Markdown file for each format."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template


def sections(name: str) -> dict[str, Template]:
    """The parts of a card by name, each below a line `<!-- name -->`.

    Args:
      name: of the file, such as "onnx".
    """
    text = Path(__file__).with_name(f"{name}.md").read_text(encoding="utf-8")
    parts = re.split(r"^<!-- (.+) -->\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], map(Template, parts[2::2]), strict=True))
