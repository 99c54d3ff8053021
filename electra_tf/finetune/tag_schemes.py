# SPDX-License-Identifier: Apache-2.0
"""Notations of spans by tags: IOB1, IOB2, IO, BIOES, BILOU, BMES; forms of tags.

One reading serves all of them, that of conlleval: a span ends where a tag begins
another or names another class. On sequences that a scheme allows it is the scheme's.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from electra_tf.errors import UserError

Span = tuple[int, int, str]  # first and last word, class

PLAIN = "plain"  # a tag per word, such as its part of speech; no spans
# Scheme -> its letters for those of BIOES, as far as it has them.
_LETTERS = {
    "IO": {"I": "I"},
    "IOB1": {"B": "B", "I": "I"},
    "IOB2": {"B": "B", "I": "I"},
    "BIOES": dict(zip("BIES", "BIES", strict=True)),
    "BILOU": dict(zip("BIES", "BILU", strict=True)),
    "BMES": dict(zip("BIES", "BMES", strict=True)),
    "BMEWO": dict(zip("BIES", "BMEW", strict=True)),
}
LETTERS = {name: "".join(letters.values()) for name, letters in _LETTERS.items()}
_ALIASES = {"BIO": "IOB2", "IOB": "IOB1", "IOBES": "BIOES", "BMEW": "BMEWO"}
_AS_BIOES = {"L": "E", "U": "S", "M": "I", "W": "S"}
_ANY = "BIESLUMW"
_UNNAMED = "span"  # the class where tags are letters alone
# How a tag is written, by an example; the last two have no class, no letter.
FORMS = ("B-PER", "B_PER", "PER-B", "PER_B", "b-PER", "B", "PER")
OUTSIDE = ("O", "0", "o", "-")


def _like(form: str, letter: str, name: str) -> str:
    """A form with something else for its letter and its class."""
    letter = letter.lower() if form[0] == "b" else letter
    return re.sub("PER|[Bb]", lambda m: name if m[0] == "PER" else letter, form)


def _pattern(form: str, letters: str) -> re.Pattern[str]:
    letters = letters.lower() if form[0] == "b" else letters
    pattern = _like(form.upper(), f"(?P<letter>[{letters}])", "(?P<name>.+)")
    return re.compile(pattern, re.DOTALL)


class Notation(NamedTuple):
    """How the tags of a file are written.

    Attributes:
      scheme: of LETTERS or PLAIN; None: not known yet, all letters are read.
      form: of FORMS.
      outside: the tag of a word in no span.
    """

    scheme: str | None = None
    form: str = "B-PER"
    outside: str = "O"

    @classmethod
    def named(cls, name: str) -> Notation:
        """The notation of a name such as "IOB2", or "IOB2 PER-B 0".

        Raises `UserError` for an unknown name.
        """
        word, *more = name.split() or [""]
        if word.lower() == "bare":
            return cls("IO", "PER", *more[:1])
        scheme = _ALIASES.get(word.upper(), word.upper())
        scheme = PLAIN if word.lower() == PLAIN else scheme
        is_form = not more or more[0] in FORMS
        if scheme not in (*LETTERS, PLAIN) or not is_form or len(more) > 2:
            names = ", ".join([*LETTERS, *_ALIASES, "bare", PLAIN])
            raise UserError(
                f"unknown scheme {name!r} of tags; known are {names}.\nThe form of a "
                f'tag ({", ".join(FORMS)}) may follow, as in "IOB2 PER_B 0".'
            )
        return cls(scheme, *more)

    def __str__(self) -> str:
        text = f"{self.scheme or ''} {self.form} {self.outside}"
        return text.removesuffix(" O").removesuffix(" B-PER")

    def read(self, tag: str) -> str | None:
        """A tag as BIOES has it, the letter first; None where it is none."""
        if self.scheme == PLAIN or tag == "O" == self.outside:
            return tag
        if tag == self.outside:
            return "O"
        letters = LETTERS[self.scheme] if self.scheme else _ANY
        found = _pattern(self.form, letters).fullmatch(tag)
        if not found or tag in OUTSIDE:
            return None
        parts = found.groupdict()
        letter = parts.get("letter", "I").upper()
        return f"{_AS_BIOES.get(letter, letter)}-{parts.get('name', _UNNAMED)}"

    def wrong(self) -> str:
        """Why `read` gives None."""
        letters = LETTERS[self.scheme] if self.scheme else "BIESLU"
        listed = ", ".join(_like(self.form, letter, "PER") for letter in letters)
        return f"is not {self.outside}, nor like {listed}"

    def written(self, spans: Sequence[Span], length: int) -> list[str]:
        """The tags of spans."""
        tags = tags_of(spans, length, self.scheme or "BIOES")
        pairs = (tag.partition("-") for tag in tags)
        return [
            _like(self.form, letter, name) if name else self.outside
            for letter, _, name in pairs
        ]


def notation_of(
    sentences: Iterable[Sequence[str]], given: Notation | None = None
) -> Notation:
    """How right tags are written, by the tags and where spans begin.

    Args:
      given: the known part; `form` and `outside` are found in any case.

    Raises `UserError` when they mix two schemes, or could be in one of two.
    """
    sentences = [list(tags) for tags in sentences]
    counts = collections.Counter(tag for tags in sentences for tag in tags)
    there = [sign for sign in OUTSIDE if sign in counts]
    outside = given.outside if given and given.outside in counts else (*there, "O")[0]
    if given and given.form != "B-PER":
        return given._replace(outside=outside)
    classes = {tag: n for tag, n in counts.items() if tag not in OUTSIDE}
    found = Notation(given and given.scheme, outside=outside)

    def readable(form: str) -> int:
        read = found._replace(form=form).read
        return sum(n for tag, n in classes.items() if read(tag))

    form = max(FORMS[:4], key=readable)  # the first of equals
    if classes and not readable(form):
        # One of several classes may be called e-mail.
        is_lower = readable("b-PER") == sum(classes.values())
        form = "B" if set(classes) <= set(_ANY) else "PER"
        form = "b-PER" if is_lower and "b" in {tag[0] for tag in classes} else form
    if form == "PER":
        if counts[outside] < max(counts.values()) and not given:
            names = ", ".join(sorted(classes)[:5])
            raise UserError(
                f'tags without letters such as B- ({names}).\n"scheme": "plain" has a '
                'tag for each word; "bare" makes a span of neighbours with one tag'
            )
        return found._replace(scheme="IO", form=form)
    found = found._replace(form=form)
    if not found.scheme:
        tags = [[found.read(tag) or "O" for tag in tags] for tags in sentences]
        read = filter(None, map(_pattern(form, _ANY).fullmatch, classes))
        letters = {match["letter"].upper() for match in read}
        found = found._replace(scheme=_scheme_of(tags, letters))
    return found


def _scheme_of(sentences: Iterable[Sequence[str]], letters: set[str]) -> str:
    """The scheme by the letters that a file has, and where its spans begin.

    Raises `UserError` when the letters are those of two.
    """
    inside_begins = b_parts = b_begins = False
    for tags in sentences:
        for before, tag in zip(["O", *tags], tags, strict=False):
            touches = before != "O" and before[2:] == tag[2:]
            inside_begins |= tag[0] == "I" and not touches
            b_parts |= tag[0] == "B" and touches
            b_begins |= tag[0] == "B" and not touches
    if letters <= set("BI"):
        # In IOB1, B- only parts spans of one class that touch.
        return "IOB1" if inside_begins and (b_parts or not b_begins) else "IOB2"
    for scheme in ("BIOES", "BILOU", "BMES", "BMEWO"):
        if letters <= set(LETTERS[scheme]):
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
    """The tags of spans in a scheme; IO merges those of one class that touch."""
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
