# SPDX-License-Identifier: Apache-2.0
"""Sentences as lists of words: CoNLL's lines of columns, lists in JSON, running text.

A line is a word with its columns, a blank line or -DOCSTART- ends a sentence. Cells
are separated by tabs; in a line without tabs, by blanks.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from electra_tf.errors import UserError
from electra_tf.finetune import inputs
from electra_tf.finetune.inputs import Columns, Input, Source, refuse, shown
from electra_tf.finetune.tag_schemes import OUTSIDE

Lines = tuple[int, list[list[str]]]  # number of its first line, cells of each line
Named = str | int | None  # a column, by name or number from 1; None: unknown
# Names of lists of words in JSON, and of tags.
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags")
_SAMPLE = 20_000  # lines that the layout is read from
_CONLL_U = "id form lemma upos xpos feats head deprel deps misc".split()
_BLANK = " \t\r"
_NUMBERED = "the first column counts the words, which stand in column 2"
_KEYED = re.compile(r"# ?[\w.:-]+ = |#+ ?(newdoc|newpar|begin document|end document)\b")
_RANGE = re.compile(r"\d+[-.]\d+")  # CoNLL-U: several words in one, an empty word
_SPAN = re.compile(r"[BIESLUMW][-_](.+)|(.+)[-_][BIESLUMW]", re.DOTALL)


class Sentence(NamedTuple):
    """A sentence of a file."""

    where: str
    words: list[str]
    tags: list[str] | None = None  # None without any
    id: Any = None  # the user's own


class Layout(NamedTuple):
    """The columns of a file.

    Attributes:
      words, tags: columns, from 0; tags None: there are none.
      width: columns of a line.
      is_numbered: the first column counts the words.
      has_header: the first line names the columns.
      is_running: each line is a sentence.
      notes: what was recognised.
    """

    words: int = 0
    tags: int | None = None
    width: int = 1
    is_numbered: bool = False
    has_header: bool = False
    is_tabbed: bool = False
    is_running: bool = False
    notes: tuple[str, ...] = ()


def cells_of(line: str) -> list[str]:
    """The cells of a line, none of a blank one."""
    line = line.rstrip(_BLANK)
    if "\t" in line:
        return [cell.strip(" ") or cell for cell in line.split("\t")]
    return re.split(" +", line.lstrip(" ")) if line else []


def sentences(
    lines: Iterator[str], layout: Layout, skipped: list[str] | None = None
) -> Iterator[Lines]:
    """The cells of the sentences in a file's lines.

    Args:
      skipped: takes the comments that are left out.
    """
    sentence: list[list[str]] = []
    start = 1
    for number, line in enumerate(itertools.chain(lines, [""]), start=1):
        cells = [] if number == 1 and layout.has_header else cells_of(line)
        if not cells or cells[0] == "-DOCSTART-":
            if sentence:
                yield start, sentence
            sentence = []
        elif _is_comment(line, cells, layout, not sentence):
            if skipped is not None:
                skipped.append(line)
        elif not (layout.is_numbered and _RANGE.fullmatch(cells[0])):
            start = start if sentence else number
            sentence.append(cells)


def sentences_of(
    name: str,
    lines: Iterator[str],
    layout: Layout,
    bad: Callable[[str, str], None],
    skipped: list[str] | None = None,
) -> Iterator[Sentence]:
    """The words and tags in a file's lines.

    Args:
      bad: takes (where, what is wrong) of sentences that cannot be used.
    """
    if layout.is_running:
        for number, line in enumerate(lines, start=1):
            if line.split():
                yield Sentence(f"{name}, line {number}", line.split(), None)
        return
    for first, rows in sentences(lines, layout, skipped):
        right = [len(r) == layout.width and bool(r[layout.words]) for r in rows]
        place = 0 if all(right) else right.index(False)
        where = f"{name}, line {first + place}"
        if all(right):
            tags = None if layout.tags is None else [row[layout.tags] for row in rows]
            yield Sentence(where, [row[layout.words] for row in rows], tags)
        elif len(rows[place]) == layout.width:
            bad(where, "an empty word")
        else:
            line = shown(" ".join(rows[place]))
            bad(where, f"{line} has not {layout.width} columns as others have")


def _is_comment(line: str, cells: list[str], layout: Layout, begins: bool) -> bool:
    """Whether a line is about its sentence; a word may be or begin with # as well."""
    if not line.startswith("#") or layout.is_running:
        return False
    if _KEYED.match(line) or re.match("#+ ", cells[0]):
        return True
    return len(cells) != layout.width and (begins or line[1:2] in _BLANK)


def layout_of(lines: Sequence[str]) -> Layout:
    """The layout of a file by some of its lines, without tags."""
    rows = [cells_of(line) for line in lines if not line.startswith("#")]
    rows = [cells for cells in rows if cells and cells[0] != "-DOCSTART-"]
    counts = collections.Counter(map(len, rows))
    width = counts.most_common(1)[0][0] if rows else 0
    tabs = sum("\t" in line.rstrip(_BLANK) for line in lines)
    found = Layout(width=width, is_tabbed=tabs * 2 > len(rows))
    numbered = [_is_counted(rows) for _, rows in sentences(iter(lines), found)]
    several = [x for x in numbered if x is not None]
    if several and sum(several) >= 0.9 * len(several) and width > 1:
        return found._replace(words=1, is_numbered=True, notes=(_NUMBERED,))
    return found


def _is_counted(rows: list[list[str]]) -> bool | None:
    """Whether the first cells count the words; None (unknown) for a single word."""
    firsts = [cells[0] for cells in rows if not _RANGE.fullmatch(cells[0])]
    if len(firsts) < 2:
        return None
    if not all(first.isdecimal() for first in firsts):
        return False
    numbers = [*map(int, firsts)]
    return numbers == [*range(numbers[0], numbers[0] + len(numbers))]


def tagged_layout(
    name: str, lines: Sequence[str], words: Named, tags: Named, is_plain: bool
) -> Layout:
    """The layout of a file with tags.

    Args:
      name: of the file.
      words, tags: columns that the task names.
      is_plain: tags may be any text.

    Raises `UserError` where no column, or more than one, can be that of the tags.
    """
    found, [words, tags] = _named(name, lines, layout_of(lines), [words, tags])
    if words is not None:
        found = found._replace(words=words, notes=())
    others = [*range(found.words + 1, found.width)]
    if tags is not None or not others:
        return found._replace(tags=tags)
    rows = [row for _, rows in sentences(iter(lines), found) for row in rows]
    columns = [*zip(*(row for row in rows if len(row) == found.width), strict=True)]
    classes = {c: _classes(columns[c]) for c in others}
    tags = others[-1]
    like = [c for c in others if classes[c] is not None]
    rivals = [c for c in like if c != tags and classes[c]]
    unclear = bool(rivals) and tags in like
    if unclear and not found.is_numbered:  # CoNLL-2003 has chunks before its names.
        of_last = classes[tags]
        unclear = not of_last or any(of_last & classes[c] for c in rivals)
    if found.is_numbered and len(others) > 1 and not unclear:
        unclear = is_plain or len(like) != 1
        tags = like[0] if len(like) == 1 else tags
    if unclear:
        listed = "; ".join(f"{c + 1}: {' '.join(columns[c][:4])}" for c in others)
        raise UserError(
            f"{name}: more than one column could be that of the tags: {listed:.300}.\n"
            f'Name it in the task, counted from 1, such as "words": {found.words + 1}, '
            f'"tags": {(rivals or others)[0] + 1}.'
        )
    notes = tuple(f"{note}; tags in column {tags + 1}" for note in found.notes)
    return found._replace(tags=tags, notes=notes)


def _classes(column: Sequence[str]) -> set[str] | None:
    """The classes of a column of tags for spans; None for other columns."""
    tags = set(column) - {*OUTSIDE}
    if not tags and "O" not in column:
        return None
    found = [_SPAN.fullmatch(tag) for tag in tags]
    return {m[1] or m[2] for m in found} if all(found) else None


def _named(
    name: str, lines: Sequence[str], layout: Layout, wanted: Sequence[Named]
) -> tuple[Layout, list[int | None]]:
    """The layout, and the columns that a task names, from 0."""
    first = next((cells_of(x) for x in lines if not x.startswith("#")), [])
    globally = next((x for x in lines[:5] if x.startswith("# global.columns")), "")
    names = globally.partition("=")[2].lower().split()
    if any(isinstance(column, str) and column in first for column in wanted):
        names, layout = first, layout_of(lines[1:])._replace(has_header=True)
    elif not names and layout.width == len(_CONLL_U):
        names = _CONLL_U
    found: list[int | None] = []
    for column in wanted:
        place = column
        if isinstance(column, str):
            key = column if column in names else column.lower()
            place = names.index(key) + 1 if key in names else 0
        if place is not None and not 0 < place <= layout.width:
            raise UserError(
                f"{name} has {layout.width} columns and no column {column!r}; its "
                f"first line is {shown(' '.join(first))}.\nName columns by number, "
                "counted from 1."
            )
        found.append(place and place - 1)
    return layout, found


def sentence_rows(
    source: Source, columns: Sequence[Sequence[Named]], identity: str
) -> Iterator[tuple[str, dict[Any, Any]]]:
    """The rows of `records`, with lists of words and tags also where a table is text.

    Its cells are printed lists, or separated by blanks; or each row has one word, and
    rows with the same id, or with none below the first, are a sentence.

    Args:
      columns: possible names of the column of words, then of that of tags.

    Raises `UserError` for a word in each row without a column of ids.
    """
    if source.form != "csv":
        yield from inputs.records(source)
        return
    names = [[str(name) for name in usual if name] for usual in columns]
    rows = list(inputs.records(source, [*itertools.product(*names)]))
    header = rows[0][1] if rows else {}
    found = [next((n for n in usual if n in header), "") for usual in names]

    def listed(cell: str) -> list[Any]:
        value = inputs.printed(cell) if cell[:1] in ("[", "(") else None
        return value if isinstance(value, list) else cell.split()

    lists = [{c: listed(row.get(c, "")) for c in found} for _, row in rows]
    if len(rows) < 2 or any(len(row[found[-1]]) > 1 for row in lists):
        yield from ((w, row | own) for (w, row), own in zip(rows, lists, strict=True))
        return
    if identity not in header:
        raise UserError(
            f"{source.name} has one word in each row, and no column {identity!r} of "
            'sentences.\nName it by "id" in the task.'
        )
    own = (row[identity] for _, row in rows)
    filled = itertools.accumulate(own, lambda before, here: here or before)
    pairs = zip(filled, rows, strict=True)
    for _, group in itertools.groupby(pairs, key=lambda pair: pair[0]):
        places, cells = zip(*(row for _, row in group), strict=True)
        words = {c: [row.get(c, "") for row in cells] for c in found}
        yield places[0], cells[0] | words


def sentences_in_rows(
    source: Source,
    words: Sequence[Named],
    tags: Sequence[Named],
    identity: Columns,
    bad: Callable[[str, str], None],
    num_lists: int = 1,
) -> Iterator[Sentence]:
    """Sentences from rows with lists of words and, perhaps, of tags.

    Args:
      words, tags: possible names of their columns; tags (): they are not read.
      identity: possible names of the column of the user's own ids.
      bad: takes (where, what is wrong) of rows that cannot be used.
      num_lists: that each row must have; 2 with tags.
    """
    columns = [words, tags] if tags else [words]
    for where, row in sentence_rows(source, columns, identity[0]):
        there = [[n for n in names if row.get(n) is not None] for names in columns]
        for names in there:
            if tags and len(names) > 1:
                raise UserError(
                    f"{where}: {' and '.join(map(str, names))} are both there.\nName "
                    'the columns of the task by "words" and "tags".'
                )
        lists = [row[names[0]] for names in there if names]
        is_whole = there[0] and lists[0] and len(lists) >= num_lists
        if not is_whole or not all(isinstance(x, list) for x in lists):
            what = "words and tags are not two lists" if tags else "no list of words"
            bad(where, f"{what}; there are {', '.join(map(str, row)) or 'no fields'}")
        elif any(isinstance(x, list | dict | None) for x in itertools.chain(*lists)):
            bad(where, "a word or tag is null, a list or an object")
        else:
            own = inputs.identity_of(row, identity).get("id")
            yield Sentence(where, *([*map(str, x)] for x in lists), id=own)


def words(
    source: Source, column: Named = None, identity: Columns = ("id",)
) -> Iterator[Input]:
    """Sentences as lists of words: lists in JSON lines, columns, or a sentence a line.

    Args:
      column: where the words are.
    """
    if source.form == inputs.LINES:
        lines = iter(source.lines)
        sample = list(itertools.islice(lines, _SAMPLE))
        layout = untagged_layout(source.name, sample, column)
        for note in layout.notes:
            source.say(f"{source.name}: {note}")
        lines = itertools.chain(sample, lines)
        found = sentences_of(source.name, lines, layout, refuse)
    else:
        names = [name for name in (column, *WORDS) if name]
        found = sentences_in_rows(source, names, (), identity, refuse)
    for one in found:
        own = {} if one.id is None else {"id": one.id}
        yield Input(one.where, own | {"words": one.words})


def untagged_layout(name: str, lines: Sequence[str], column: Named = None) -> Layout:
    """The layout of a file whose tags, if any, are not read.

    Raises `UserError` where its lines are neither columns nor running text.
    """
    found = layout_of(lines)
    rows = [cells_of(line) for line in lines]
    whole = [row for row in rows if row and not row[0].startswith(("#", "-DOCSTART-"))]
    widths, ends = {len(row) for row in whole}, {row[-1] for row in whole}
    is_parted = any(not a and b for a, b in itertools.pairwise([[""], *rows]))
    is_tagged = len(widths) == 1 and bool(_classes([*ends])) or "O" in ends
    is_tabbed = any("\t" in line.rstrip(_BLANK) for line in lines)
    if found.width > 1 and not (
        is_tabbed or is_tagged or len(widths) == 1 and is_parted
    ):
        note = "no columns: each line is a sentence of words between blanks"
        return found._replace(is_running=True, notes=(note,))
    is_number = isinstance(column, int) and 1 <= column <= found.width
    if is_number or column in (rows or [[]])[0]:
        found, [place] = _named(name, lines, found, [column])
        return found._replace(words=place, notes=())
    if not (found.notes or is_tabbed or is_tagged):
        if found.width > 1:
            note = f"words are in the first of {found.width} columns"
            return found._replace(notes=(note,))
        if len(whole) > 1 and not is_parted:
            return found._replace(notes=("all lines are words of one sentence",))
    return found
