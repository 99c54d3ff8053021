# SPDX-License-Identifier: Apache-2.0
"""The classes of characters BERT's tokenizer distinguishes, frozen at Unicode 14.0.

The original uses Python's `unicodedata`, so that an upgrade of Python can change the
tokens of a text: an unassigned code point, which was dropped, becomes a letter. These
tables are those of Python 3.11, for building, training and serving alike.
`tests/text/test_tokenization.py` derives them again if Python has the same Unicode.

Each class is a tuple of inclusive (first, last) code point ranges in rising order. The
large ones are in unicode_14.txt.
"""

import itertools
import re
from pathlib import Path

UNICODE_VERSION = "14.0.0"

Ranges = tuple[tuple[int, int], ...]


def _parse(text: str) -> Ranges:
    """Reads ranges in hexadecimal: "9-d 20" is ((9, 13), (32, 32))."""
    pairs = (item.partition("-") for item in text.split())
    return tuple((int(a, 16), int(b or a, 16)) for a, _, b in pairs)


def merge(*classes: Ranges) -> Ranges:
    """Returns the union of classes, its ranges disjoint and in rising order."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(pair for ranges in classes for pair in ranges):
        if merged and first <= merged[-1][1] + 1:
            first, previous_last = merged.pop()
            last = max(last, previous_last)
        merged.append((first, last))
    return tuple(merged)


def code_points(ranges: Ranges) -> frozenset[str]:
    """Returns the characters of a (small) class."""
    return frozenset(chr(c) for a, b in ranges for c in range(a, b + 1))


def pattern(*classes: Ranges, without: Ranges = ()) -> str:
    """A regular expression for one character of the classes, for RE2 and Oniguruma.

    Surrogates, which these lack, are left out. Ranges keep the order of the classes, as
    the tokenizer.json of exported models is compared as text.
    """
    parts = []
    for first, last in itertools.chain(*classes):
        for start, end in merge(without, ((0xD800, 0xDFFF),)):
            if first <= end and start <= last:
                if first < start:
                    parts.append((first, start - 1))
                first = end + 1
        if first <= last:
            parts.append((first, last))
    return "[" + "".join(f"\\x{{{a:X}}}-\\x{{{b:X}}}" for a, b in parts) + "]"


def _read_tables() -> dict[str, Ranges]:
    """Reads unicode_14.txt: blocks of a comment, a name and ranges."""
    text = Path(__file__).with_name("unicode_14.txt").read_text(encoding="ascii")
    blocks = re.sub("#.*\n", "", text).split("\n\n")
    named = (block.split(maxsplit=1) for block in blocks)
    return {name: _parse(ranges) for name, ranges in named}


_TABLES = _read_tables()

OTHER = _TABLES["OTHER"]
# The original counts as punctuation every printable ASCII character that is neither
# letter, digit nor space ("$", "+", "~" are symbols to Unicode).
PUNCTUATION = merge(_parse("21-2f 3a-40 5b-60 7b-7e"), _TABLES["PUNCTUATION"])
# Removed by accent stripping, after decomposition.
NONSPACING_MARKS = _TABLES["NONSPACING_MARKS"]

# Replaced by " ". Other characters at which str.split() splits are controls, which are
# removed. Line and paragraph separators pass the original's cleaning, then split.
WHITE_SPACE = merge(_TABLES["SPACES"], _parse("9-a d 2028-2029"))

# Removed: controls and others without white space, and the replacement character.
VANISHING = pattern(((0xFFFD, 0xFFFD),), OTHER, without=WHITE_SPACE)

# CJK ideographs, each a word of its own, without Hangul, kana and symbols.
IDEOGRAPHS = _parse(
    "3400-4dbf 4e00-9fff f900-faff 20000-2a6df 2a700-2b73f 2b740-2b81f 2b820-2ceaf"
    " 2f800-2fa1f"
)

# Scripts that do not part words by blanks: ideographs, kana, Thai, Lao, Tibetan,
# Burmese, Khmer.
_UNSPACED = merge(
    IDEOGRAPHS, _parse("e01-fff 1000-109f 1780-17ff 3005-3007 3041-30ff ff66-ff9f")
)
UNSPACED = "[" + "".join(f"{chr(a)}-{chr(b)}" for a, b in _UNSPACED) + "]"


def is_unspaced(text: str) -> bool:
    """Whether most of a text is in scripts that do not part words by blanks."""
    return 2 * len(re.findall(UNSPACED, text)) > sum(map(str.isalnum, text))
