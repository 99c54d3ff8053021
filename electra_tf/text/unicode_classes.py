# SPDX-License-Identifier: Apache-2.0
"""The classes of characters BERT's tokenizer distinguishes, frozen at Unicode 14.0.

The original asks the `unicodedata` of whatever Python runs it, so that the same text
can become other tokens after an upgrade of Python: a code point that was unassigned,
and dropped, becomes a letter. A model outlives that. These tables fix the answer for
building, training and serving alike, and are the ones the original had on Python 3.11.
`tests/text/test_tokenization.py` derives them again where Python has the same Unicode.

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

    Surrogates, which these do not know, are left out. Ranges stay in the order of the
    classes: the tokenizer.json of exported models is compared as text.
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
# What accent stripping removes after decomposition.
NONSPACING_MARKS = _TABLES["NONSPACING_MARKS"]
# As str.lower knows them: a capital sigma becomes a final one after a cased letter and
# not before one, looking past the case-ignorable.
CASED = _TABLES["CASED"]
CASE_IGNORABLE = _TABLES["CASE_IGNORABLE"]

# What becomes " ". The rest of what str.split() splits at are controls, which vanish.
# The line and paragraph separators pass the original's cleaning, then split.
WHITE_SPACE = merge(_TABLES["SPACES"], _parse("9-a d 2028-2029"))

# What is removed: with the replacement character, but without white space.
VANISHING = pattern(((0xFFFD, 0xFFFD),), OTHER, without=WHITE_SPACE)

# CJK ideographs, each of which is a word of its own. Hangul, kana and the symbols of
# these scripts are not among them.
IDEOGRAPHS = _parse(
    "3400-4dbf 4e00-9fff f900-faff 20000-2a6df 2a700-2b73f 2b740-2b81f 2b820-2ceaf"
    " 2f800-2fa1f"
)

# Capitals that came with Unicode 14 and what to add for their small letters: ICU inside
# TensorFlow 2.21 is older and leaves them as they are.
CAPITALS_OF_UNICODE_14 = (
    ((0x2C2F, 0x2C2F), 0x30),
    ((0xA7C0, 0xA7C0), 1),
    ((0xA7D0, 0xA7D0), 1),
    ((0xA7D6, 0xA7D6), 1),
    ((0xA7D8, 0xA7D8), 1),
    ((0x10570, 0x10595), 0x27),  # Vithkuqi; the gaps in the range are unassigned.
)
