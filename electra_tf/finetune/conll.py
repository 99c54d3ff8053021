# SPDX-License-Identifier: Apache-2.0
"""Sentences: lines of columns (CoNLL), lists of words in JSON or Parquet, running text.

In columns a line is a word, a blank line or -DOCSTART- ends a sentence. Cells are
separated by tabs; in a line without tabs, by blanks. The word is in the first column
and its tag in the last one, unless the task names them: by number from 1, or by name
where the first line names the columns.

Tags for spans are like B-PER, in a scheme such as IOB1, IOB2, BIOES, BILOU or BMES.
One reading serves all of them, that of conlleval: a span ends where a tag begins
another or names another class. On sequences that a scheme allows it is the scheme's.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from electra_tf.errors import UserError
from electra_tf.finetune import inputs
from electra_tf.finetune.inputs import Columns, Input, Row, Source, refuse, shown

Named = str | int | None  # a column, by name or number from 1; None: the default
# Names of lists of words in JSON, and of tags.
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags")
_SAMPLE = 20_000  # lines of an input that the number of its columns is read from
_BLANK = " \t\r"
_BREAK = ["-DOCSTART-"]
_KEYED = re.compile(
    r"#+ ?[\w.:-]+ = |#+ ?(newdoc|newpar|begin document|end document)\b"
)
_RANGE = re.compile(r"\d+[-.]\d+")  # CoNLL-U: several words in one, an empty word


class Sentence(NamedTuple):
    """A sentence of a file."""

    where: str
    words: list[str]
    tags: list[str] | None = None  # None without any
    id: Any = None  # the user's own


class Layout(NamedTuple):
    """The columns of a file.

    Attributes:
      words, tags: columns, from 0; tags None: they are not read.
      width: columns of a line.
      has_header: the first line names the columns.
    """

    words: int = 0
    tags: int | None = None
    width: int = 1
    has_header: bool = False


def cells_of(line: str) -> list[str]:
    """The cells of a line, none of a blank one."""
    line = line.rstrip(_BLANK)
    if "\t" in line:
        return [cell.strip(" ") or cell for cell in line.split("\t")]
    return re.split(" +", line.lstrip(" ")) if line else []


def _is_comment(line: str, cells: list[str], width: int) -> bool:
    """Whether a line is about its sentence; a word may be or begin with # as well."""
    is_marked = len(cells) != width or cells[0].startswith("# ")
    return bool(is_marked and re.match(r"#+[ \t]", line) or _KEYED.match(line))


def sentences_of(
    name: str, lines: Iterable[str], layout: Layout, bad: Callable[[str, str], None]
) -> Iterator[Sentence]:
    """The words and tags in a file's lines.

    Args:
      bad: takes (where, what is wrong) of sentences that cannot be used.
    """
    places, rows = [], []
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        cells = [] if number == 1 and layout.has_header else cells_of(line)
        if cells[:1] not in ([], _BREAK):
            # In CoNLL-U a range stands for several words, before them.
            is_range = layout.words and _RANGE.fullmatch(cells[0])
            if not (is_range or _is_comment(line, cells, layout.width)):
                places.append(f"{name}, line {number}")
                rows.append(cells)
            continue
        wrong = [len(row) != layout.width or not row[layout.words] for row in rows]
        if any(wrong):
            line = shown(" ".join(rows[k := wrong.index(True)]))
            bad(places[k], f"{line} has an empty word or not {layout.width} columns")
        elif rows:
            tags = None if layout.tags is None else [row[layout.tags] for row in rows]
            yield Sentence(places[0], [row[layout.words] for row in rows], tags)
        places, rows = [], []


def width_of(lines: Iterable[str]) -> int:
    """The columns that most lines of a file have."""
    rows = [cells for cells in map(cells_of, lines) if cells[:1] not in ([], _BREAK)]
    words = [cells for cells in rows if not cells[0].startswith("#")]  # or comments
    counts = collections.Counter(map(len, words or rows))
    return counts.most_common(1)[0][0] if counts else 1


def layout_of(
    name: str,
    lines: Sequence[str],
    words: Named = None,
    tags: Named = None,
    has_tags: bool = True,
) -> Layout:
    """The layout of a file.

    Args:
      name: of the file.
      lines: all of it, or many.
      words, tags: columns that the task names.
      has_tags: whether tags are read.

    Raises `UserError` where a named column is missing, or where columns have to be
    named: if the first one counts the words, or two could be that of the tags.
    """
    first = next((cells_of(x) for x in lines if not x.startswith("#")), [])
    has_header = not {words, tags}.isdisjoint(first)
    lines = lines[has_header:]
    width = width_of(lines)

    def place(column: Named, default: int) -> int:
        number = default + 1 if column is None else column
        if isinstance(number, str):
            number = first.index(number) + 1 if number in first else 0
        if not 0 < number <= width:
            raise UserError(
                f"{name} has {width} columns and no column {column!r}; its first line "
                f"is {shown(' '.join(first))}.\nName columns by number, counted from 1."
            )
        return number - 1

    in_words = place(words, 0)
    in_tags = place(tags, width - 1) if has_tags else in_words
    rows = [
        cells
        for line in lines
        if len(cells := cells_of(line)) == width and cells[:1] != _BREAK
        if not _is_comment(line, cells, width)
    ]
    columns = [*zip(*rows, strict=True)] if width > 1 else []
    problem = None
    if (words is None or has_tags and tags is None) and columns:
        if all(cell.isdecimal() or _RANGE.fullmatch(cell) for cell in columns[0]):
            problem = "the first column counts the words"
    if has_tags and tags is None and width > 2 and columns and not problem:
        *others, last = map(_classes, columns)
        # CoNLL-2003 has chunks, of other classes, before its names.
        if any(x and not (last and last.isdisjoint(x)) for x in others):
            problem = "more than one column could be that of the tags"
    if problem:
        listed = "; ".join(f"{n}: {' '.join(c[:4])}" for n, c in enumerate(columns, 1))
        raise UserError(
            f"{name}: {problem} ({listed:.300}).\nName the columns in the task, "
            'counted from 1, such as "words": 2, "tags": 3, or remove the others.'
        )
    return Layout(in_words, None if in_tags == in_words else in_tags, width, has_header)


def _classes(column: Sequence[str]) -> set[str]:
    """The classes of a column of tags for spans; none of other columns."""
    spans = [as_bioes(tag) for tag in {*column} - {"O"}]
    return {tag[2:] for tag in spans} if all(spans) else set()


def sentence_of(
    where: str, row: Row, columns: Sequence[Sequence[Named]], identity: Columns
) -> Sentence:
    """The sentence of a row with a list of words and, perhaps, one of tags.

    Args:
      columns: possible names of the column of words, and of that of tags where these
        are read.
      identity: possible names of the column of the user's own ids.

    Raises `ValueError` for a row that cannot be used, `UserError` for one that has two
    columns of tags.
    """
    there = [[n for n in names if row.get(n) is not None] for names in columns]
    for names in there[1:]:
        if len(names) > 1:
            raise UserError(
                f"{where}: {' and '.join(map(str, names))} are both there.\nName the "
                'columns of the task by "words" and "tags".'
            )
    lists = [row[names[0]] for names in there if names]
    if not (there[0] and lists[0] and all(isinstance(x, list) for x in lists)):
        what = "words and tags are not two lists" if columns[1:] else "no list of words"
        raise ValueError(f"{what}; there are {', '.join(map(str, row)) or 'no fields'}")
    if any(isinstance(x, list | dict | None) for x in itertools.chain(*lists)):
        raise ValueError("a word or tag is null, a list or an object")
    own = inputs.identity_of(row, identity).get("id")
    return Sentence(where, *([*map(str, x)] for x in lists), id=own)


def words(
    source: Source, column: Named = None, identity: Columns = ("id",)
) -> Iterator[Input]:
    """Sentences as lists of words: lists in rows, or columns; running text is text.

    Args:
      column: where the words are.
    """
    if source.form == inputs.CONLL:
        lines = iter(source.lines)
        sample = list(itertools.islice(lines, _SAMPLE))
        layout = layout_of(source.name, sample, column, has_tags=False)
        lines = itertools.chain(sample, lines)
        for one in sentences_of(source.name, lines, layout, refuse):
            yield Input(one.where, {"words": one.words})
        return
    names = [name for name in (column, *WORDS) if name]
    for where, row in inputs.records(source):
        own = inputs.identity_of(row, identity)
        text = row.get("text")
        if isinstance(text, str) and all(row.get(name) is None for name in names):
            # Blank lines of a file are skipped.
            if text.strip() or source.form != inputs.LINES:
                yield Input(where, own | {"text": text})
            continue
        try:
            found = sentence_of(where, row, [names], identity)
        except ValueError as error:
            refuse(where, str(error))
        yield Input(where, own | {"words": found.words})


# Schemes of tags.

Span = tuple[int, int, str]  # first and last word, class

PLAIN = "plain"  # a tag per word, such as its part of speech; no spans
# Scheme -> its letters for B, I, E and S of BIOES, as far as it has them.
LETTERS = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}
LETTERS |= {"BMES": "BMES", "BMEWO": "BMEW"}
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
    seen: set[tuple[str, bool]] = set()  # letters, and whether a like class precedes
    others: set[str] = set()
    for tags in sentences:
        known = ["O", *(tag if as_bioes(tag) else "O" for tag in tags)]
        others |= {*tags} - {*known}
        pairs = itertools.pairwise(known)
        seen |= {(tag[0], before[2:] == tag[2:]) for before, tag in pairs}
    letters = {letter for letter, _ in seen} - {"O"}
    if others and not letters:
        raise UserError(
            f"no tag like B-PER, but {', '.join(sorted(others)[:5])}.\nRewrite the "
            "tags of spans so (IOB2: B-PER, I-PER, O), or list the names of numbers in "
            '"tag_names"; "scheme": "plain" has a tag for each word'
        )
    if letters <= {*"BI"}:
        # In IOB1, B- only parts spans of one class that touch.
        b_parts = ("B", True) in seen or ("B", False) not in seen
        return "IOB1" if ("I", False) in seen and b_parts else "IOB2"
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
    letters = dict(zip("BIES", LETTERS[scheme], strict=False))
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
