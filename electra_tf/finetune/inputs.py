# SPDX-License-Identifier: Apache-2.0
"""Reads the files of users: rows of tables, texts, words.

Both data sets of tasks and inputs of predictions. Inputs are streamed line by line
(but .json files, which are read as a whole).
"""

from __future__ import annotations

import csv
import functools
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.errors import JSON_ERRORS, UserError
from electra_tf.text import corpus
from electra_tf.text.corpus import COMPRESSED, TextReader, open_text
from electra_tf.text.records import BUFFER_BYTES, damage_named
from electra_tf.text.units import Unit

TABLES = ("tsv", "csv", "jsonl", "json", "parquet")
# Kind of input -> the formats that it is read from.
FORMS = {
    "texts": (*TABLES, "txt"),
    "words": ("txt", "conll", "jsonl", "json", "parquet"),
    "records": TABLES,
}
CONLL = "conll"  # lines of columns
# Endings of files of words that are read as conll.
_CONLL = (CONLL, "conllu", "iob", "bio", "bmes", "bioes", "tsv")
_BATCH = 256  # rows of Parquet at a time
_ROWS = "rows"  # of Python's objects
LINES = "lines"  # of text
# Characters of the data that a message shows.
_SHOWN = 200
csv.field_size_limit(sys.maxsize)
# NaN in JSON, where others write it for a missing value, is null.
_loads = functools.partial(json.loads, parse_constant=lambda constant: None)
# By column: its name, or its number from 1 in a table without a header. Under None is
# what is wrong with a row that has not as many cells as the table has columns.
Row = dict[Any, Any]
Columns = tuple[Any, ...]
Choices = Sequence[Columns]
Placed = Iterator[tuple[str, Row]]  # each row with its place in the file


class Source(NamedTuple):
    """Lines to read, and their format; a .json file is read as a whole, by its name.

    Attributes:
      name: of the file, for messages.
      header: the first line of a table, where it is one of those.
      delimiter: of a table in text; None: a tab in .tsv, a comma in .csv.
    """

    name: str
    form: str
    lines: Iterable[Any]
    header: str | None = None
    delimiter: str | None = None

    @classmethod
    def of(cls, path: Path) -> Source:
        """A file of a data set, opened when its lines are asked for."""
        return cls(str(path), form_of(path), _lines(path))

    @classmethod
    def of_objects(cls, objects: Iterable[Mapping[str, Any]]) -> Source:
        """Objects by column, as a line of .jsonl has them."""
        return cls("the inputs", _ROWS, objects)


class Input(NamedTuple):
    """An input: its place in the file, and the fields that a prediction repeats."""

    where: str
    fields: dict[str, Any]  # "id" if there is one; text, text_b, words, question ...


def form_of(path: str | Path) -> str:
    """The format of a file by the ending of its name, without that of a compression."""
    return corpus.ending_of(str(path)).removeprefix(".")


def parquet_name(split: str) -> str:
    """The file of a split in a data set of Hugging Face."""
    return f"{split.replace('dev', 'validation')}-00000-of-00001.parquet"


def open_source(path: str | None, form: str | None, kind: str) -> Source:
    """A file, or standard input (None), of inputs of a kind in FORMS.

    Args:
      form: of standard input, or of a file without a known suffix.

    Raises `UserError` as `input_form` does.
    """
    return Source(
        path or corpus.STANDARD_INPUT, input_form(path, form, kind), _lines(path)
    )


def input_form(path: str | None, form: str | None, kind: str) -> str:
    """The form of a source: the given one, else by its suffix.

    Raises `UserError` for a form that is not known, or not of this kind.
    """
    form = form or form_of(path or "")
    form = CONLL if kind == "words" and form in _CONLL else form
    forms = [x for x in FORMS[kind] if path or x != "parquet"]
    if form not in forms:
        raise UserError(
            f"{path or 'standard input'} is {form or 'of no known format'}; this task "
            f"reads {', '.join(forms)}.\n--input-format names the format."
        )
    return LINES if form == "txt" else form


def can_cut(path: str | Path, form: str) -> bool:
    """Whether each line of a file (but a header) is an input of its own."""
    is_packed = Path(path).suffix.lower() in COMPRESSED
    return form in ("tsv", "jsonl", LINES) and not is_packed


def open_part(part: Unit) -> Source:
    """The lines of a file that begin in some of its bytes; its kind is the form."""
    name, form = part.path, part.kind
    if not can_cut(name, form):
        return Source(name, form, _lines(name))  # such a file is one part
    lines, header = _lines(name, part.start, part.end), None
    if part.start:
        header = next(_lines(name), None) if form == "tsv" else None
        name = f"{name} from byte {part.start}"
    return Source(name, form, lines, header)


def _lines(
    path: str | Path | None, start: int = 0, end: int | None = None
) -> Iterator[str]:
    name = corpus.STANDARD_INPUT if path is None else str(path)
    # Parts are of files that are not compressed.
    opened = corpus.open_decompressed(path) if end is None else open_text(path)
    with opened as stream:
        for number, block in enumerate(TextReader(stream, name, start=start, end=end)):
            if not (start or number) and "\r" in "".join(block[:1]).rstrip("\r"):
                raise UserError(
                    f"{name} has a line end of \\r alone in its first line.\nConvert "
                    "it: tr '\\r' '\\n' < old > new"
                )
            yield from block


def records(source: Source, choices: Choices = ()) -> Placed:
    """(place, fields by column) of each row.

    Args:
      choices: the header must have all columns of one of these; a table in text has no
        header where the first is of numbers.

    Raises `UserError` for a file of another form, for such a header or for a line that
    cannot be read.
    """
    name, form, lines = source.name, source.form, iter(source.lines)
    if form == _ROWS:
        for number, row in enumerate(lines):
            # NaN is a missing value in a row of pandas.
            is_nan = {k: isinstance(v, float) and math.isnan(v) for k, v in row.items()}
            yield f"input {number}", {k: v for k, v in row.items() if not is_nan[k]}
    elif form == LINES:
        for number, line in enumerate(lines, start=1):
            yield f"{name}, line {number}", {"text": line}
    elif form == "jsonl":
        yield from _objects(name, lines)
    elif form == "json":
        yield from _array(name)
    elif form == "parquet":
        yield from _table_rows(name, choices)
    elif form in TABLES:
        yield from _cells(source, lines, choices)
    else:
        raise UserError(f"{name} is none of {', '.join('.' + x for x in TABLES)}.")


def _cells(source: Source, lines: Iterator[str], choices: Choices) -> Placed:
    """The rows of a table in text: .tsv without quotes, .csv as in RFC 4180."""
    name, is_csv = source.name, source.form == "csv"
    delimiter = source.delimiter or ("," if is_csv else "\t")
    rows = _split(name, lines, delimiter, is_csv)
    if source.header is None:
        first = [*itertools.islice(rows, 1)]
        header: list[Any] = [cell for _, cells in first for cell in cells]
    else:
        first, header = [], source.header.split(delimiter)
    if choices and isinstance(choices[0][0], int):
        rows, header = itertools.chain(first, rows), [*range(1, len(header) + 1)]
    _check_header(name, header, choices)
    for number, cells in rows:
        row: Row = dict(zip(header, cells, strict=False))
        if len(cells) != len(header):
            row[None] = (
                f"{len(cells)} cells in a table of {len(header)} columns, the last "
                f"{shown(cells[-1])}; a cell with separators or line ends is quoted "
                "in a .csv; R leaves out row names by row.names = FALSE"
            )
        yield f"{name}, line {number}", row


# A cell as programs write it that quote where they have to.
_QUOTED = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')


def _split(
    name: str, lines: Iterator[str], delimiter: str, is_csv: bool
) -> Iterator[tuple[int, list[str]]]:
    """(line where it begins, cells) of each row but blank lines."""
    quoting = csv.QUOTE_MINIMAL if is_csv else csv.QUOTE_NONE
    ended = (f"{line}\n" for line in lines)
    reader = csv.reader(ended, delimiter=delimiter, quoting=quoting, strict=True)
    first = 1
    try:
        for cells in reader:
            quoted = [*filter(_QUOTED.fullmatch, cells)]
            if len(cells) > 1 and all(re.fullmatch('".*"', cell) for cell in cells):
                quoted = cells
            if quoted and not is_csv:
                raise UserError(
                    f"{name}, line {first}: the cell {shown(quoted[0])} is "
                    "quoted, and a .tsv has no quotes.\nRename it to .csv, and set "
                    f'"delimiter": {json.dumps(delimiter)} in the task.'
                )
            if any(map(str.strip, cells)) or is_csv and cells:
                yield first, cells
            first = reader.line_num + 1
    except csv.Error as error:
        raise UserError(
            f"{name}, line {first}: {error}.\nA quoted cell of a .csv ends at its "
            'closing quote; inside write two for one: "a 5"" disk".'
        ) from None


def _table_rows(path: str, choices: Choices) -> Placed:
    """The rows of a Parquet file; numbers of classes by their names, if it has these.

    A number without a class, which marks the rows without a label, is left out, and
    a list with one.
    """
    table = Rows(path)
    _check_header(path, table.columns, choices)

    def named(value: Any, names: Sequence[str]) -> Any:
        if isinstance(value, list):
            inner = [named(one, names) for one in value]
            return None if None in inner else inner
        if not isinstance(value, int):
            return value
        return names[value] if 0 <= value < len(names) else None

    for number, row in enumerate(table):
        where = f"{path}, row {number}"
        row |= {c: named(row.get(c), names) for c, names in table.classes.items()}
        try:  # As JSON would have it: bytes are text, dates in ISO's form.
            text = json.dumps(row, default=_of_json)
        except UnicodeDecodeError as error:
            refuse(where, f"{shown(error.object)} is not UTF-8: {error.reason}")
        yield where, _loads(text)


class Rows:
    """The rows of a Parquet file, each with its cells by column.

    Attributes:
      columns: their names.
      classes: column -> names of the classes that its numbers stand for, if the file
        has metadata of Hugging Face.

    Raises UserError (65) for a damaged file, here or while it is read.
    """

    def __init__(self, path: str):
        self._path = path
        with damage_named(path):
            import pyarrow.parquet as pq

            self._file = pq.ParquetFile(path, buffer_size=BUFFER_BYTES)
        schema = self._file.schema_arrow
        self.columns: list[str] = schema.names
        self.classes = _classes((schema.metadata or {}).get(b"huggingface", b"{}"))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with damage_named(self._path):
            for batch in self._file.iter_batches(_BATCH, use_threads=False):
                yield from batch.to_pylist()


def _classes(metadata: bytes) -> dict[str, list[str]]:
    """Column -> names of classes, by Hugging Face's metadata; {} for other metadata."""
    try:
        features = json.loads(metadata)["info"]["features"]
        inner = {name: _element(feature) for name, feature in features.items()}
        classes = {k: x for k, x in inner.items() if x.get("_type") == "ClassLabel"}
        return {name: feature["names"] for name, feature in classes.items()}
    except JSON_ERRORS:
        return {}


def _element(feature: Any) -> dict[str, Any]:
    """The feature of a list's elements; lists are written in two forms."""
    while isinstance(feature, list) or "feature" in feature:
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    return feature


def _of_json(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _check_header(name: str, header: Sequence[Any], choices: Choices) -> None:
    if not choices or any(all(header.count(c) == 1 for c in x) for x in choices):
        return
    column = next(c for c in choices[0] if header.count(c) != 1)
    count = header.count(column)
    found = f"{count} columns {column!r}" if count else f"no column {column!r}"
    # Quoted names may have line ends, of which a message has few.
    listed = " ".join(", ".join(map(str, header)).split()) or "none"
    raise UserError(
        f"{name} has {found}.\nThe columns are named (in text by the first line): "
        f'{listed[:_SHOWN]}.\nThe task\'s "delimiter" is another separator; without a '
        "header, number the columns from 1."
    )


def _objects(name: str, lines: Iterator[str]) -> Placed:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where, problem = f"{name}, line {number}", "not an object {...}"
        try:
            value = _loads(line)
        except JSON_ERRORS as error:
            value, problem = None, str(error)
        if not isinstance(value, dict):
            raise UserError(
                f"{where}: {problem}.\nA line of .jsonl is an object; convert other "
                "JSON: jq -c . old.json > new.jsonl (an array: jq -c '.[]')"
            )
        yield where, _flat(value)


def _array(name: str) -> Placed:
    """The objects of a JSON array, perhaps under one key."""
    path = None if name == corpus.STANDARD_INPUT else name
    with corpus.open_decompressed(path) as stream:
        data = stream.read()
    try:
        content = _loads(data)
    except JSON_ERRORS as error:
        raise UserError(
            f"{name} is not in JSON: {error}.\nThe ending of JSON Lines is .jsonl."
        ) from None
    values = content.values() if isinstance(content, dict) else [content]
    lists = [value for value in values if isinstance(value, list)]
    if len(lists) != 1 or not all(isinstance(row, dict) for row in lists[0]):
        raise UserError(f"{name} is not an array of objects, [{{...}}, ...].")
    for number, row in enumerate(lists[0]):
        yield f"{name}, entry {number}", _flat(row)


def _flat(row: Row) -> Row:
    """With the fields of objects inside it under names such as data/text."""
    flat = dict(row)
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}/{key}": one for key, one in _flat(value).items()}
    return flat


def whole_rows(
    source: Source, choices: Choices, bad: Callable[[str, str], None], num_texts: int
) -> Iterator[tuple[str, Row, Columns]]:
    """Rows that have all columns of one of the choices, and which these are.

    Args:
      bad: called for the others: (where, what is wrong).
      num_texts: how many of the columns, the first, hold texts.
    """
    for where, row in records(source, choices):
        there = [name for name, value in row.items() if name and value is not None]
        columns = next((c for c in choices if {*there}.issuperset(c)), None)
        first = (columns or ())[:num_texts]
        lists = [name for name in first if isinstance(row[name], list | dict)]
        if None in row:
            bad(where, row[None])
        elif columns is None:
            missing = next(name for name in choices[0] if name not in there)
            what = f"value in column {missing!r} (null)"
            what = what if missing in row else f"column {missing!r}"
            bad(where, f"no {what}, only {', '.join(map(str, there)) or 'nothing'}")
        elif lists:
            bad(where, f"column {lists[0]!r} is {shown(row[lists[0]])}, not a text")
        else:
            yield where, row, columns


def texts(
    source: Source, choices: Choices, identity: Columns = ("id",)
) -> Iterator[Input]:
    """Texts, or pairs of them, in the first columns of `choices` that are there.

    Args:
      identity: possible names of the column of the user's own ids.
    """
    for where, row, columns in whole_rows(source, choices, refuse, 2):
        yield Input(where, text_fields(row, columns, identity))


def text_fields(row: Any, columns: Any, identity: Columns = ()) -> dict[str, Any]:
    """id, text and text_b of a row, as far as it has them."""
    pairs = zip(("text", "text_b"), columns, strict=False)
    return identity_of(row, identity) | {k: str(row[c]) for k, c in pairs}


def identity_of(row: Mapping[Any, Any], columns: Columns) -> dict[str, Any]:
    """The user's own id of a row, from the first of these columns that it has."""
    found = (row[column] for column in columns if row.get(column) is not None)
    return next(({"id": value} for value in found), {})


def refuse(where: str, what: str) -> None:
    """Raises a UserError for an input that cannot be used."""
    raise UserError(f"{where}: {what[:_SHOWN]}.")


def shown(label: Any) -> str:
    """A value of the data for a message, which may be as long as the file."""
    text = repr(label)
    return text if len(text) <= 60 else f"{text[:57]}..."
