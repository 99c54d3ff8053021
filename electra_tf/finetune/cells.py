# SPDX-License-Identifier: Apache-2.0
"""What the text of a cell stands for: printed lists and numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

_STRING = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_CONSTANTS = {"true": "True", "false": "False", "null": "None", "nan": "None"}


def printed(text: str) -> Any:
    """The list or object that a text is the printed form of; None if it is none.

    As JSON, Python, pandas, NumPy and Java print them: ["a"], ['a', 'b'], ['a' 'b'],
    [1. 0.], {'text': array(['a'], dtype=object)}, [a, b].
    """
    parts = re.split(_STRING, text.strip())
    for place in range(0, len(parts), 2):  # what is not between quotes
        part = re.sub(r",\s*dtype=\w+|\barray(?=\()", "", parts[place])
        part = re.sub(r"[a-z]+", lambda m: _CONSTANTS.get(m[0], m[0]), part)
        part = re.sub(r"(?<=[\w.])\s+(?=[-\w.])", ", ", part)
        is_inside = 0 < place < len(parts) - 1
        parts[place] = ", " if is_inside and not part.strip() else part
    try:
        found = ast.literal_eval("".join(parts))
        return (
            [*found]
            if isinstance(found, (tuple, set))
            else (found if isinstance(found, (list, dict)) else None)
        )
    except (ValueError, SyntaxError):
        inner = text.strip()
        is_list = inner[:1] == "[" and inner[-1:] == "]" and len(parts) == 1
        return [x.strip() for x in inner[1:-1].split(",")] if is_list else None


def is_printed(value: Any) -> bool:
    """Whether a text is a printed list, of several things or of quoted text."""
    if not isinstance(value, str) or not re.match(r"\s*[\[({]", value):
        return False
    found = printed(value)
    return isinstance(found, (list, dict)) and (len(found) != 1 or "'" in value)


def number_of(label: Any) -> float | None:
    """The number that a label is, if it is written as one; 01 is none."""
    is_number = re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", str(label))
    return float(label) if is_number else None


def with_decimal_point(number: str) -> str:
    """A number whose decimal sign is a comma, with a point.

    1,250 stays: its comma may part thousands.
    """
    is_clear = re.fullmatch(r"-?(0,\d+|\d+,(?!\d{3}$)\d+)", number)
    return number.replace(",", ".") if is_clear else number


def spellings(labels: Iterable[str]) -> dict[float | None, str]:
    """Number -> its shortest spelling among labels."""
    found = {number_of(x): x for x in sorted({*labels}, key=len, reverse=True)}
    found.pop(None, None)
    return found
