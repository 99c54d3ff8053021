# SPDX-License-Identifier: Apache-2.0
"""A corpus as units of work: files, pieces of long ones, ranges of documents.

Units depend on the files alone, and one process reads a whole unit, so the output does
not depend on the number of processes.

A file's kind is recognised by its suffix or its first bytes. In text files blank lines
separate documents. In JSON Lines, Parquet, Arrow and tensorflow_datasets each record is
a document: its line ends separate lines, its blank lines paragraphs.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from electra_tf.console import printable
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.paths import shown
from electra_tf.text import corpus, records
from electra_tf.text.corpus import TextReader

# Longer files are cut, so that several processes can share them.
PIECE_BYTES = 4 << 20

_JSON_LINES = (".jsonl", ".ndjson", ".json")
_TABLES = {".parquet": "parquet", ".arrow": "arrow"}
_JSON_LINE = re.compile(rb'(\xef\xbb\xbf)?\s*\{[ \t]*"[^"\n]*"[ \t]*:')
_MARKUP = "Tags are read as text: extract the text first (WikiExtractor: --json)."
_TABLE = "Convert it to JSON Lines or Parquet; --text-key names the text."
# Pattern of a first line, its format, and the remedy.
_NOT_PROSE = (
    ("<", "markup", _MARKUP),
    (r"\{\\rtf", "RTF", "Convert it to plain text in UTF-8."),
    (r'"?[\w.-]+"?([,;\t]"?[\w.-]+"?)+\s*$', "a table", _TABLE),
)
_RECORDS = ("json", *_TABLES.values())


class Reading(NamedTuple):
    """How texts are read.

    Attributes:
        encoding_errors: "strict" or "replace".
        text_key: of the text in JSON Lines, Parquet and Arrow.
        tfds_data_dir: the data directory of tensorflow_datasets.
    """

    encoding_errors: str = "strict"
    text_key: str = "text"
    tfds_data_dir: str | None = None


class Unit(NamedTuple):
    """A part of a corpus that one process reads as a whole.

    Attributes:
        kind: "text", "json", "compressed" (either of them, or an archive by its
          content), "archive", "parquet", "arrow" or "tfds".
        path: of the file; for tensorflow_datasets, NAME:FIELD.
        name: of the file within the corpus.
        start, end: bytes; row groups of Parquet, batches of Arrow, documents of
          tensorflow_datasets.
        weight: bytes of input.
    """

    kind: str
    path: str
    name: str
    start: int
    end: int
    weight: int

    @property
    def stream(self) -> str:
        """Names the unit's stream of random numbers."""
        return f"{self.name}@{self.start}" if self.start else self.name

    @property
    def is_compressed(self) -> bool:
        return self.kind in ("archive", "compressed")


class Corpus(NamedTuple):
    """All text of a build.

    Attributes:
        units: in the order of their names.
        num_files: files, or documents of tensorflow_datasets.
        num_bytes: their size.
        sha256: of all names and sizes.
    """

    units: list[Unit]
    num_files: int
    num_bytes: int
    sha256: str

    def facts(self) -> dict[str, Any]:
        """What identifies a corpus, in JSON."""
        kinds = ", ".join(sorted({unit.kind for unit in self.units}))
        facts = {"kind": kinds, "files": self.num_files, "bytes": self.num_bytes}
        return facts | {"sha256": self.sha256}


def read_unit(unit: Unit, reading: Reading) -> Iterator[TextReader]:
    """Yields a reader for each text of a unit, to be read before the next one.

    Raises UserError, naming the file and the place in it, for damaged files.
    """
    if unit.kind in _TABLES.values():
        return records.read_table(unit, reading)
    if unit.kind == "tfds":
        return records.read_tfds_documents(unit, reading)
    return (_read_packed if unit.is_compressed else _read_lines)(unit, reading)


def file_corpus(
    corpus_dir: str, text_key: str = "text", piece_bytes: int | None = None
) -> Corpus:
    """The files below a directory, their kinds recognised by name or else content.

    Prints a warning if a text file begins like markup or a table.

    Args:
      piece_bytes: longer files are cut; None: PIECE_BYTES.
    """
    step = piece_bytes or PIECE_BYTES
    odd: list[str] = []

    def kind_of(path: str) -> str:
        kind = _kind_by_name(path)
        if kind in (None, "json"):
            with corpus.open_decompressed(path) as content:
                head, is_compressed = content.head, content.is_compressed
            is_compressed |= path.lower().endswith(corpus.COMPRESSED)
            kind = kind or _kind_by_content(head)
            if kind == "text" and (problem := _not_prose(path, head)):
                odd.append(problem)
            if is_compressed and kind in ("text", "json"):
                kind = "compressed"
        return kind

    def pieces(kind: str, path: str, size: int) -> Iterable[tuple[int, int, int]]:
        if kind in _TABLES.values():
            return _joined(records.part_sizes(kind, path, text_key), step)
        return cut(size, step if kind in ("text", "json") else size)

    found = of_files(corpus_dir, kind_of, pieces)
    if odd:
        more = f" ({len(odd) - 1:,} more files are like it)" if odd[1:] else ""
        print(shown(f"warning: {odd[0]}{more}"), flush=True)
    return found


def archive_corpus(directory: str) -> Corpus:
    """The tar archives of text files in a directory, whatever their names."""
    return of_files(
        directory, lambda path: "archive", lambda k, p, size: cut(size, size)
    )


def of_files(
    root: str,
    kind_of: Callable[[str], str],
    pieces: Callable[[str, str, int], Iterable[tuple[int, int, int]]],
) -> Corpus:
    """The files below a directory, or a single one.

    Args:
      kind_of: of a file's path.
      pieces: kind, path and size of a file -> start, end and weight of its units.
    """
    paths = corpus.list_files(root)
    base = root if os.path.isdir(root) else os.path.dirname(root)
    units = []
    listing = hashlib.sha256()
    total = 0
    for path in paths:
        name = os.path.relpath(path, base)
        size = os.path.getsize(path)
        listing.update(f"{name}\t{size}\n".encode("utf-8", "surrogateescape"))
        total += size
        kind = kind_of(path)
        units += [Unit(kind, path, name, *part) for part in pieces(kind, path, size)]
    if not units:
        raise UserError(f"the {len(paths)} files in {root} are empty.")
    return Corpus(units, len(paths), total, listing.hexdigest())


def _kind_by_name(name: str) -> str | None:
    """The kind of a file, compressed or not; None if its name does not show it."""
    if corpus.is_named(name):
        return "archive"
    kind = _TABLES.get(os.path.splitext(name.lower())[1])
    return kind or ("json" if corpus.ending_of(name) in _JSON_LINES else None)


def _kind_by_content(head: bytes) -> str:
    """The kind of a file, compressed or not, by the first bytes of its content."""
    if corpus.is_archive(head):
        return "archive"
    return "json" if _JSON_LINE.match(head) else "text"


def _not_prose(path: str, head: bytes) -> str | None:
    """A warning if a text file seems to be something else."""
    line = head.decode("utf-8", "ignore").lstrip("\ufeff \t\r\n").partition("\n")[0]
    for pattern, what, remedy in _NOT_PROSE:
        if re.match(pattern, line):
            return (
                f"{path} is read as text, but looks like {what}. Its first line:\n"
                f"{printable(line.strip()):.80}\n{remedy}"
            )
    return None


def holds_records(path: str) -> bool:
    """Whether a file has records rather than lines, by its name."""
    return _kind_by_name(path) in _RECORDS


def cut(size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Start, end and weight of the pieces of a file."""
    for start in range(0, size, max(step, 1)):
        end = min(start + step, size)
        yield start, end, end - start


def _joined(sizes: Sequence[int], piece_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Joins consecutive parts until they have the size of a piece."""
    start = weight = 0
    for index, size in enumerate(sizes, 1):
        weight += size
        if weight >= piece_bytes or index == len(sizes):
            yield start, index, weight
            start, weight = index, 0


def tfds_corpus(spec: str, data_dir: str | None) -> Corpus:
    """The documents of a prepared data set of tensorflow_datasets."""
    name, count, num_bytes = records.open_tfds(spec, data_dir)
    if not count:
        raise UserError(f"--tfds {spec}: the split train has no documents.")
    size = max(num_bytes, count)
    step = max(1, count * PIECE_BYTES // size)
    units = [
        Unit("tfds", spec, spec, start, end, length * size // count)
        for start, end, length in cut(count, step)
    ]
    listing = f"{name}\t{spec.rpartition(':')[2]}\t{count}\t{num_bytes}"
    return Corpus(units, count, size, hashlib.sha256(listing.encode()).hexdigest())


def portions(units: Sequence[Unit], num_bytes: int | None = None) -> list[list[Unit]]:
    """Cuts units into runs, each ending with the unit that reaches `num_bytes`.

    None: a 64th of all, at least a piece and at most 64 MB.
    """
    if num_bytes is None:
        total = sum(unit.weight for unit in units)
        num_bytes = min(64 << 20, max(PIECE_BYTES, total // 64))
    joined = _joined([unit.weight for unit in units], num_bytes)
    return [list(units[start:end]) for start, end, _ in joined]


def _read_lines(unit: Unit, reading: Reading) -> Iterator[TextReader]:
    with corpus.open_text(unit.path) as stream:
        piece = reading.encoding_errors, unit.start, unit.end
        reader = TextReader(stream, unit.path, *piece)
        yield from _documents(reader, unit.kind, reading.text_key)


def _documents(reader: TextReader, kind: str, key: str) -> Iterator[TextReader]:
    return records.read_json_lines(reader, key) if kind == "json" else iter([reader])


def _read_packed(unit: Unit, reading: Reading) -> Iterator[TextReader]:
    is_archive = unit.kind == "archive"
    for reader in corpus.read_packed(unit.path, reading.encoding_errors, is_archive):
        kind = _kind_by_name(reader.name) or _kind_by_content(reader.head)
        if kind in _TABLES.values():
            raise UserError(
                f"{reader.name} is {kind}, which cannot be read inside an archive.\n"
                "Unpack the archive.",
                EXIT_DAMAGED,
            )
        yield from _documents(reader, kind, reading.text_key)
