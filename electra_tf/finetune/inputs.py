# SPDX-License-Identifier: Apache-2.0
"""What is in a user's file, line by line: rows of a table, texts, words.

Tasks read their data sets with it, and predictions their inputs: of these nothing is
held in memory but the line at hand (of a SQuAD file in .json, the file).
"""

from __future__ import annotations

import ast
import csv
import difflib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from electra_tf.errors import JSON_ERRORS, UserError
from electra_tf.text import archives, tables
from electra_tf.text.archives import COMPRESSED
from electra_tf.text.corpus import open_text
from electra_tf.text.units import Unit

TABLES = ("tsv", "csv", "jsonl", "parquet")
# Kind of input -> the formats that it is read from.
FORMS = {
    "texts": (*TABLES, "txt"),
    "words": ("txt", "jsonl", "parquet"),
    "questions": ("json", *TABLES),
}
_CONLL = (
    "conll",
    "conllu",
    "iob",
    "bio",
    "bmes",
    "bioes",
)  # endings of files that are read as txt
_ROWS = "rows"  # of Python's objects
LINES = "lines"  # of text
# Characters of the data that a message shows.
_SHOWN = 200
Row = dict[str | None, Any]  # by column; cells beyond the header's are under None
Columns = tuple[str, ...]


class Source(NamedTuple):
    """Lines to read, and what they are."""

    name: str  # of the file, for messages
    form: str
    lines: Iterable[Any]
    skipped: int = 0  # lines of the file that are left out before (of a table, below
    # its header)

    @classmethod
    def of(cls, path: Path) -> Source:
        """A file of a data set, opened when its lines are asked for."""
        return cls(str(path), form_of(path), _of_file(path))

    @classmethod
    def of_objects(cls, objects: Iterable[Mapping[str, Any]]) -> Source:
        """Objects by column, as a line of .jsonl has them."""
        return cls("the inputs", _ROWS, objects)


class Asked(NamedTuple):
    """One input: where it stands, and what a prediction repeats of it."""

    where: str
    given: dict[str, Any]  # "id", where there is one; text, text_b, words, question ...


def form_of(path: str | Path) -> str:
    """What a file is by the ending of its name, whatever it is compressed with."""
    path = Path(str(path).lower())
    path = path.with_suffix("") if path.suffix in COMPRESSED else path
    return path.suffix.removeprefix(".")


def parquet_name(folder: Path, split: str) -> str:
    """The file of a split in a data set of Hugging Face.

    Raises `UserError` where the split is in several files.
    """
    name = split.replace("dev", "validation")
    whole = f"{name}-00000-of-00001.parquet"
    parts = sorted(path.name for path in folder.glob(f"{name}-00000-of-*.parquet"))
    if parts and whole not in parts:
        raise UserError(
            f"{folder / parts[0]} is one of several files; a split is read from one."
            f"\nJoin them, for instance with Dataset.to_parquet, as {whole}."
        )
    return whole


def open_source(path: str | None, form: str | None, kind: str) -> Source:
    """A file, or standard input (None), of inputs of a kind in FORMS.

    Args:
      form: of standard input, or of a file whose name does not say it.

    Raises `UserError` for a form that is not known, or not of this kind.
    """
    if path is None and form is None:
        raise UserError(
            f"give --input-format with standard input: {', '.join(FORMS[kind])}."
        )
    found = input_form(path, form, kind)
    if path is None and found == "parquet":
        raise UserError("parquet cannot be read from standard input; name the file.")
    if path is None:
        return Source(archives.STANDARD_INPUT, found, _of_file(None))
    return Source(path, found, _of_file(Path(path)))


def input_form(path: str | None, form: str | None, kind: str) -> str:
    """The form of a source, as its name says unless it is given; see `open_source`."""
    found = form or form_of(path)
    found = "txt" if found in _CONLL else found
    if found not in FORMS[kind]:
        raise UserError(
            f"{path or 'standard input'} is {found or 'of no known format'}; this task "
            f"reads {', '.join(FORMS[kind])}.\n--input-format says what a file is, "
            "whatever its name."
        )
    return LINES if found == "txt" else found


def can_cut(path: str | Path, form: str, kind: str) -> bool:
    """Whether each line of a file (but a header) is an input of its own."""
    if Path(path).suffix.lower() in COMPRESSED:
        return False
    return form in ("jsonl", "tsv") or (form == LINES and kind == "texts")


def open_part(part: Unit, skipped: int) -> Source:
    """The lines of a file that begin in some of its bytes, and its header.

    Args:
      part: its kind is the form.
      skipped: the lines before, for messages.
    """
    path = Path(part.path)
    if path.suffix.lower() in COMPRESSED:  # such a file is one part
        return Source(part.path, part.kind, _of_file(path))
    if not part.start:
        return Source(part.path, part.kind, _of_file(path, 0, part.end), 0)
    lines = _of_file(path, part.start, part.end, skipped)
    if part.kind != "tsv":
        return Source(part.path, part.kind, lines, skipped)
    header = itertools.islice(_of_file(path), 1)
    return Source(part.path, part.kind, itertools.chain(header, lines), skipped - 1)


def _of_file(
    path: Path | None, start: int = 0, end: int | None = None, skipped: int = 0
) -> Iterator[str]:
    name = archives.STANDARD_INPUT if path is None else str(path)
    # Parts are of files that are not compressed.
    opened = archives.open_decompressed(path) if end is None else open_text(path)
    with opened as stream:
        lines = stream if end is None else _lines_from(stream, start, end)
        yield from text_lines(lines, name, max(2, skipped + 1) if start else 1)


def _lines_from(stream: BinaryIO, start: int, end: int) -> Iterator[bytes]:
    """The lines that begin in some bytes of a file."""
    if start:
        stream.seek(start - 1)
        start += len(stream.readline()) - 1
    while start < end and (line := stream.readline()):
        start += len(line)
        yield line


def text_lines(stream: Iterable[bytes], name: str, first: int = 1) -> Iterator[str]:
    """The lines of a stream in UTF-8, without their ends and a byte order mark.

    Args:
      first: number of the first line in its file.

    Raises `UserError` naming the first line that is something else.
    """
    for number, line in enumerate(stream, start=first):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{name}, line {number}: not UTF-8 (byte 0x{line[error.start]:02x}).\n"
                "Convert the file, for instance with iconv -t UTF-8."
            ) from None
        if number == 1 and not text.endswith("\n"):
            yield from text.split("\r")  # Where lines end in \r alone, all do.
        else:
            yield text.removesuffix("\n").removesuffix("\r")


def read_text(path: Path) -> str:
    """The text of a file, as `text_lines` has it; lines end in \\n."""
    return "".join(f"{line}\n" for line in _of_file(path))


def records(
    source: Source, choices: Sequence[Columns] = ()
) -> Iterator[tuple[str, Row]]:
    """(where it stands, fields by column) of each row.

    Args:
      choices: the header must have all columns of one of these.

    Raises `UserError` for a file of another form, for such a header or for a line that
    cannot be read.
    """
    name, lines = source.name, iter(source.lines)
    if source.form == _ROWS:
        for number, row in enumerate(lines):
            yield f"input {number}", {k: v for k, v in row.items() if v is not None}
        return
    if source.form == LINES:
        for number, line in enumerate(lines, start=1):
            yield f"{name}, line {number + source.skipped}", {"text": line}
        return
    if source.form not in TABLES:
        raise UserError(f"{name} is none of {', '.join('.' + x for x in TABLES)}.")
    if source.form == "jsonl":
        yield from _objects(name, lines, source.skipped)
        return
    if source.form == "parquet":
        yield from _table_rows(name, choices)
        return
    # A .tsv as GLUE's files: no quoting, a tab always ends a column.
    rows = _csv_rows(name, lines) if source.form == "csv" else _tsv_rows(lines)
    _, header = next(rows, (1, []))
    _check_header(name, header, choices)
    for number, cells in rows:
        row: Row = dict(zip(header, cells, strict=False))
        if any(cell.strip() for cell in cells[len(header) :]):
            row[None] = cells[len(header) :]
        yield f"{name}, line {number + source.skipped}", row


def _table_rows(path: str, choices: Sequence[Columns]) -> Iterator[tuple[str, Row]]:
    """The rows of a Parquet file; numbers of classes by their names, if it has these.

    A number that is no class's, which marks the rows without a label, is left out, and
    a list with one.
    """
    table = tables.Rows(path)
    _check_header(path, table.columns, choices, "It has the columns")

    def named(value: Any, names: Sequence[str]) -> Any:
        if isinstance(value, list):
            found = [named(one, names) for one in value]
            return None if None in found else found
        if not isinstance(value, int):
            return value
        return names[value] if 0 <= value < len(names) else None

    for number, row in enumerate(table):
        where = f"{path}, row {number}"
        row |= {c: named(row.get(c), names) for c, names in table.classes.items()}
        found = {name: _of_json(value, where) for name, value in row.items()}
        yield where, {name: value for name, value in found.items() if value is not None}


def _of_json(value: Any, where: str) -> Any:
    """A value of a table as JSON would have it: bytes are text, dates in ISO's form."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            refuse(where, f"{shown(value)} is not UTF-8: {error.reason}")
    if isinstance(value, list):
        return [_of_json(one, where) for one in value]
    if isinstance(value, dict):
        return {name: _of_json(one, where) for name, one in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    return str(value)


def _tsv_rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, start=1):
        if number == 1 or line.strip():
            yield number, line.split("\t")


def _csv_rows(name: str, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """(line where it begins, cells) of each row."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    first = 1
    try:
        for cells in reader:
            if cells:
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{name}, line {first}: a quote is opened there and not closed where its "
            f"column ends ({error}).\nInside a quoted text write two for one, as in "
            '"a 5"" disk".'
        ) from None


def _check_header(
    name: str,
    header: Sequence[str],
    choices: Sequence[Columns],
    named_by: str = "Its first line names",
) -> None:
    if any(all(header.count(c) == 1 for c in columns) for columns in choices):
        return
    for column in choices[0] if choices else ():
        if header.count(column) == 1:
            continue
        close = difflib.get_close_matches(column, header, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "."
        found = f"no column {column!r}{hint}"
        if column in header:
            found = f"{header.count(column)} columns {column!r}."
        # Quoted names may have line ends, of which a message has few.
        names = " ".join(", ".join(header).split()) or "none"
        names = names if len(names) <= _SHOWN else f"{names[:_SHOWN]}..."
        raise UserError(f"{name} has {found}\n{named_by} {names}.")


def _objects(
    name: str, lines: Iterator[str], skipped: int
) -> Iterator[tuple[str, Row]]:
    is_first = True
    for number, line in enumerate(lines, start=1 + skipped):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        if is_first and line.lstrip().startswith("["):
            raise UserError(
                f"{where}: a JSON array; .jsonl has one object {{...}} on each line."
                f"\nConvert it: jq -c '.[]' {Path(name).name}"
            )
        is_first = False
        try:
            # NaN, which is no JSON, is what others write for what is missing.
            found = json.loads(line, parse_constant=lambda _: None)
        except JSON_ERRORS as error:
            raise UserError(f"{where}: {error}") from None
        if not isinstance(found, dict):
            raise UserError(f"{where}: not an object {{...}}.")
        yield where, {key: value for key, value in found.items() if value is not None}


def whole_rows(
    source: Source, choices: Sequence[Columns], bad: Callable[[str, str], None]
) -> Iterator[tuple[str, Row, Columns]]:
    """Rows that have all columns of one of the choices, and which these are.

    They are the same for all rows (the second text may be missing), but for Python's
    objects, which are no file.

    Args:
      bad: told of the others: (where, what is wrong).
    """
    chosen: Columns | None = None
    for where, row in records(source, choices):
        columns = next((c for c in choices if all(name in row for name in c)), None)
        if None in row:
            bad(where, more_columns(row))
        elif columns is None:
            missing = next(name for name in choices[0] if name not in row)
            there = ", ".join(map(str, row)) or "nothing"
            what = "value in column" if source.form == "parquet" else "column"
            bad(where, f"no {what} {missing!r}, only {there}")
        elif chosen and columns[: len(chosen)] != chosen[: len(columns)]:
            here, before = (", ".join(names) for names in (columns, chosen))
            bad(where, f"the text is in {here}, but in {before} on the lines before")
        else:
            chosen = None if source.form == _ROWS else columns
            yield where, row, columns


def more_columns(row: Row) -> str:
    """What is wrong with a row that is longer than its header."""
    more = f"more columns than the first line: {shown(row[None][0])}"
    return f"{more} comes after the last; quote the text"


def texts(
    source: Source,
    choices: Sequence[Columns],
    identity: Columns = ("id",),
    bad: Callable[[str, str], None] | None = None,
) -> Iterator[Asked]:
    """Texts, or pairs of them, in the first columns of `choices` that are there.

    Args:
      identity: what the column of the user's own ids may be called.
    """
    bad = bad or refuse
    for where, row, columns in whole_rows(source, choices, bad):
        if wrong := no_text(row, columns):
            bad(where, wrong)
        else:
            yield Asked(where, given_of(row, columns, identity))


def no_text(row: Row, columns: Columns) -> str | None:
    """What is wrong with the texts of a row."""
    for name in columns:
        if isinstance(row[name], (list, dict)):
            return f"column {name!r} is {shown(row[name])}, not a text"
    return None


def given_of(row: Row, columns: Columns, identity: Columns) -> dict[str, Any]:
    """id, text and text_b of a row, as far as it has them."""
    texts_of = zip(("text", "text_b"), columns, strict=False)
    given = identity_of(row, identity)
    return given | {name: str(row[column]) for name, column in texts_of}


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
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        inner = text.strip()
        is_list = inner[:1] == "[" and inner[-1:] == "]" and len(parts) == 1
        return [x.strip() for x in inner[1:-1].split(",")] if is_list else None


def identity_of(row: Mapping[str | None, Any], columns: Columns) -> dict[str, Any]:
    """The user's own id of a row, from the first of these columns that it has."""
    return next(({"id": row[column]} for column in columns if column in row), {})


def refuse(where: str, what: str) -> None:
    """Raises a UserError for an input that cannot be used."""
    raise UserError(f"{where}: {what[:_SHOWN]}.")


def shown(label: Any) -> str:
    """A value of the data for a message, which may be as long as the file."""
    text = repr(label)
    return text if len(text) <= 60 else f"{text[:57]}..."
