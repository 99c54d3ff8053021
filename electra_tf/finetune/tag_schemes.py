# SPDX-License-Identifier: Apache-2.0
"""Schemes of tags for spans: IOB1, IOB2, BIOES, BILOU, BMES; tags are like B-PER.

One reading serves all of them, that of conlleval: a span ends where a tag begins
another or names another class. On sequences that a scheme allows it is the scheme's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from electra_tf.errors import UserError

Span = tuple[int, int, str]  # first and last word, class

PLAIN = "plain"  # a tag per word, such as its part of speech; no spans
# Scheme -> its letters for those of BIOES, as far as it has them.
_LETTERS = {
    "IOB1": {"B": "B", "I": "I"},
    "IOB2": {"B": "B", "I": "I"},
    "BIOES": dict(zip("BIES", "BIES", strict=True)),
    "BILOU": dict(zip("BIES", "BILU", strict=True)),
    "BMES": dict(zip("BIES", "BMES", strict=True)),
    "BMEWO": dict(zip("BIES", "BMEW", strict=True)),
}
LETTERS = {name: "".join(letters.values()) for name, letters in _LETTERS.items()}
# IO is IOB1 without spans of one class that touch.
_ALIASES = {"BIO": "IOB2", "IOB": "IOB1", "IO": "IOB1", "IOBES": "BIOES"}
_ALIASES["BMEW"] = "BMEWO"
_AS_BIOES = {"L": "E", "U": "S", "M": "I", "W": "S"}
_ANY = "BIESLUMW"


def scheme_named(name: str) -> str:
    """The scheme of a name such as "BIO"; `UserError` for an unknown one."""
    if name.lower() == PLAIN:
        return PLAIN
    scheme = _ALIASES.get(name.upper(), name.upper())
    if scheme not in LETTERS:
        names = ", ".join([*LETTERS, *_ALIASES, PLAIN])
        raise UserError(f"unknown scheme {name!r} of tags; known are {names}.")
    return scheme


def stored_scheme(name: str) -> str:
    """The scheme of an earlier model, which may name the form of a tag after it."""
    return scheme_named(name.split()[0].lower().replace("bare", "IO"))


def as_bioes(tag: str, scheme: str | None = None) -> str | None:
    """A tag in BIOES; None if the scheme, or any, has no such tag."""
    if scheme == PLAIN or tag == "O":
        return tag
    letters = LETTERS[scheme] if scheme else _ANY
    if not re.fullmatch(f"[{letters}]-.+", tag, re.DOTALL):
        return None
    return _AS_BIOES.get(tag[0], tag[0]) + tag[1:]


def scheme_of(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme by the letters of the tags, and where spans begin.

    Raises `UserError` where no tag is like B-PER, or the letters are those of two
    schemes.
    """
    inside_begins = b_parts = b_begins = False
    letters, others = set(), set()
    for tags in sentences:
        before = "O"
        for tag in tags:
            if as_bioes(tag) is None:
                others.add(tag)
                tag = "O"  # noqa: PLW2901
            touches = before != "O" and before[2:] == tag[2:]
            inside_begins |= tag[0] == "I" and not touches
            b_parts |= tag[0] == "B" and touches
            b_begins |= tag[0] == "B" and not touches
            letters |= {tag[0]} - {"O"}
            before = tag
    if others and not letters:
        raise UserError(
            f"no tag like B-PER, but {', '.join(sorted(others)[:5])}.\nRewrite the "
            "tags of spans so (IOB2: B-PER, I-PER, O), or list the names of numbers in "
            '"tag_names"; "scheme": "plain" has a tag for each word'
        )
    if letters <= {*"BI"}:
        # In IOB1, B- only parts spans of one class that touch.
        return "IOB1" if inside_begins and (b_parts or not b_begins) else "IOB2"
    for scheme in ("BIOES", "BILOU", "BMES", "BMEWO"):
        if letters <= {*LETTERS[scheme]}:
            return scheme
    raise UserError(
        f"tags of two schemes: the letters {', '.join(sorted(letters))}, but BIOES has "
        "B, I, E, S, BILOU has B, I, L, U, BMES has B, M, E, S"
    )


def spans_in(tags: Sequence[str], is_original: bool = False) -> list[Span]:
    """Spans in tags of any scheme but plain.

    Args:
      is_original: a span goes on through other classes, and has that of its last tag.
    """
    spans: list[Span] = []
    start, letter, last = None, "O", ""
    for i, tag in enumerate([*tags, "O"]):
        before, (letter, _, name) = letter, tag.partition("-")
        letter = _AS_BIOES.get(letter, letter)
        is_inside = letter in ("I", "E")
        touches = is_original or before in ("B", "I") and last == name
        if start is not None and not (is_inside and touches):
            spans.append((start, i - 1, last))
            start = None
        if letter != "O" and start is None:
            start = i
        last = name
    return spans


def tags_of(spans: Sequence[Span], length: int, scheme: str = "BIOES") -> list[str]:
    """The tags of spans in a scheme."""
    letters = _LETTERS[scheme]
    tags, ends = ["O"] * length, {(end, name) for _, end, name in spans}
    for start, end, name in spans:
        inner = ["I"] * (end - start + 1)
        if "E" in letters:
            inner[0], inner[-1] = "B", "E"
            if start == end:
                inner[0] = "S"
        elif scheme == "IOB2" or scheme == "IOB1" and (start - 1, name) in ends:
            inner[0] = "B"
        tags[start : end + 1] = [f"{letters[letter]}-{name}" for letter in inner]
    return tags
