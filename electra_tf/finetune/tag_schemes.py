# SPDX-License-Identifier: Apache-2.0
"""How tags write spans down: IOB1, IOB2, IO, BIOES, BILOU; read alike, written apart.

One reading serves all of them, that of conlleval: a span ends where a tag begins
another or names another class. On sequences that a scheme allows it is the scheme's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from electra_tf.errors import UserError

Span = tuple[int, int, str]  # first and last word, class

PLAIN = "plain"  # a tag per word, such as its part of speech; no spans
# Scheme -> the letters that stand before a class in it.
LETTERS = {"IO": "I", "IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}
_ALIASES = {"BIO": "IOB2", "IOB": "IOB1", "IOBES": "BIOES"}
_TAG = re.compile(r"O|[BIESLU]-.+", re.DOTALL)
_AS_BIOES = {"L": "E", "U": "S"}
_AS_BILOU = {theirs: ours for ours, theirs in _AS_BIOES.items()}


def scheme_named(name: str) -> str:
    """The scheme of a name that users give it.

    Raises `UserError` for a name that is none.
    """
    scheme = _ALIASES.get(name.upper(), name.upper())
    if name.lower() == PLAIN:
        return PLAIN
    if scheme not in LETTERS:
        names = ", ".join([*LETTERS, *_ALIASES, PLAIN])
        raise UserError(f"there is no scheme {name!r} of tags; there are {names}.")
    return scheme


def wrong_tag(tag: str, scheme: str | None) -> str | None:
    """What is wrong with a tag, if anything; scheme None: any but plain tags."""
    if scheme == PLAIN or tag == "O":
        return None
    allowed = LETTERS[scheme] if scheme else "BIESLU"
    if _TAG.fullmatch(tag) and tag[0] in allowed:
        return None
    listed = ", ".join(f"{letter}-" for letter in allowed)
    return f"is not O, nor a class with {listed} before it"


def scheme_of(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme that right tags are in, by the letters and where spans begin.

    Raises `UserError` when they mix two.
    """
    letters: set[str] = set()
    inside_begins = b_parts = b_begins = False
    for tags in sentences:
        letters.update(tag[0] for tag in tags if tag != "O")
        for before, tag in zip(["O", *tags], tags, strict=False):
            touches = before != "O" and before[2:] == tag[2:]
            inside_begins |= tag[0] == "I" and not touches
            b_parts |= tag[0] == "B" and touches
            b_begins |= tag[0] == "B" and not touches
    if letters & set("LU"):
        if letters & set("ES"):
            raise UserError("tags of two schemes, BIOES (E-, S-) and BILOU (L-, U-)")
        return "BILOU"
    if letters & set("ES"):
        return "BIOES"
    # In IOB1, B- only parts spans of one class that touch.
    return "IOB1" if inside_begins and (b_parts or not b_begins) else "IOB2"


def spans_in(tags: Sequence[str]) -> list[Span]:
    """Spans in tags of any scheme but plain."""
    spans: list[Span] = []
    start, last = None, ("O", "")
    for i, tag in enumerate([*tags, "O"]):
        letter, _, name = tag.partition("-")
        letter = _AS_BIOES.get(letter, letter)
        goes_on = letter in ("I", "E") and last[0] in ("B", "I") and last[1] == name
        if start is not None and not goes_on:
            spans.append((start, i - 1, last[1]))
            start = None
        if letter != "O" and start is None:
            start = i
        last = (letter, name)
    return spans


def tags_of(spans: Sequence[Span], length: int, scheme: str = "BIOES") -> list[str]:
    """The tags of spans in a scheme; IO merges those of one class that touch."""
    tags = ["O"] * length
    for start, end, name in spans:
        inner = ["I"] * (end - start + 1)
        if scheme in ("BIOES", "BILOU"):
            inner[0], inner[-1] = "B", "E"
            if start == end:
                inner[0] = "S"
            if scheme == "BILOU":
                inner = [_AS_BILOU.get(letter, letter) for letter in inner]
        elif scheme == "IOB2" or scheme == "IOB1" and _ends_at(spans, start - 1, name):
            inner[0] = "B"
        tags[start : end + 1] = [f"{letter}-{name}" for letter in inner]
    return tags


def _ends_at(spans: Sequence[Span], place: int, name: str) -> bool:
    return any(end == place and theirs == name for _, end, theirs in spans)
