# SPDX-License-Identifier: Apache-2.0
"""A corpus as units of work: files, pieces of long ones, ranges of documents.

How a corpus is divided depends on its files alone, and every unit is read from its
beginning to its end, by whichever process: so nobody can tell from what is made of a
corpus how many shared the work.

A file's kind is told by its name. Text files have lines, and blank ones between
documents. In JSON Lines, Parquet, Arrow and tensorflow_datasets each record is a
document: its line ends separate lines, its blank lines paragraphs.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.text import archives, corpus, json_lines, tables, tfds_documents
from electra_tf.text.corpus import TextReader

# Longer files are cut, so that several processes can share them.
PIECE_BYTES = 32 << 20
_TFDS_BYTES = 4 << 20

_ARCHIVES = (".tar", ".tgz", ".txz", ".tzst", ".tbz2")
_JSON_LINES = (".jsonl", ".ndjson", ".json")
_TABLES = {".parquet": "parquet", ".arrow": "arrow"}
_KEYED = ("json", "compressed json", *_TABLES.values())
_MAY_BE_KEYED = ("archive", "compressed text")  # which may be an archive after all
_DOCUMENTS = (*_KEYED, "tfds")


class Reading(NamedTuple):
    """How texts are read.

    Attributes:
        encoding_errors: "strict" or "replace".
        text_key: of the text in JSON Lines, Parquet and Arrow; "a/b" is b inside a.
        tfds_data_dir: where tensorflow_datasets keeps its data.
    """

    encoding_errors: str = "strict"
    text_key: str = "text"
    tfds_data_dir: str | None = None


class Unit(NamedTuple):
    """A stretch of text that one builder reads from beginning to end.

    Attributes:
        kind: "text", "json", "compressed text" (or a compressed archive), "compressed
          json", "archive", "parquet", "arrow" or "tfds".
        path: of the file; of tensorflow_datasets, NAME:FIELD.
        name: of the file within the corpus.
        start, end: bytes; row groups of Parquet, batches of Arrow, documents of
          tensorflow_datasets.
        weight: bytes of input.
        index: of the unit in its corpus.
    """

    kind: str
    path: str
    name: str
    start: int
    end: int
    weight: int
    index: int = 0

    @property
    def stream(self) -> str:
        """Names the unit's stream of random numbers."""
        return f"{self.name}@{self.start}" if self.start else self.name

    @property
    def is_compressed(self) -> bool:
        return self.kind == "archive" or self.kind.startswith("compressed")

    @property
    def blanks_separate_docs(self) -> bool | None:
        """Whether a blank line ends a document where nothing else was asked for.

        None: that is up to its texts, see `TextReader.is_record`.
        """
        return None if self.kind == "archive" else self.kind not in _DOCUMENTS


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

    @property
    def kind(self) -> str:
        """The kinds of its units."""
        return ", ".join(sorted({unit.kind for unit in self.units}))

    def identity_of_key(self, text_key: str) -> dict[str, Any]:
        """What of the texts' key makes two readings the same, in JSON.

        Archives show only while they are read whether they hold JSON Lines.
        """
        kinds = (*_KEYED, *_MAY_BE_KEYED)
        is_keyed = any(unit.kind in kinds for unit in self.units)
        return {"text_key": text_key} if is_keyed else {}

    def facts(self) -> dict[str, Any]:
        """What makes two corpora the same, in JSON."""
        facts = {"kind": self.kind, "files": self.num_files, "bytes": self.num_bytes}
        return facts | {"sha256": self.sha256}

    def blanks_separate_docs(self) -> bool | None:
        """What holds for all units unless something is asked for; None: it differs."""
        found = {unit.blanks_separate_docs for unit in self.units}
        return found.pop() if len(found) == 1 else None


def file_corpus(
    corpus_dir: str, text_key: str = "text", piece_bytes: int | None = None
) -> Corpus:
    """The files below a directory, each by the kind that its name tells.

    Args:
      piece_bytes: longer files are cut; None: PIECE_BYTES.
    """
    piece_bytes = piece_bytes or PIECE_BYTES

    def pieces(kind: str, path: str, size: int) -> Iterator[tuple[int, int, int]]:
        if kind in _TABLES.values():
            sizes = tables.open_table(path, text_key).part_sizes()
            return _joined(sizes, piece_bytes)
        return cut(size, piece_bytes if kind in ("text", "json") else size)

    return of_files(corpus_dir, _kind_of, pieces)


def archive_corpus(directory: str) -> Corpus:
    """The tar archives of text files in a directory, whatever their names."""
    return of_files(
        directory, lambda name: "archive", lambda k, p, size: cut(size, size)
    )


def of_files(
    root: str,
    kind_of: Callable[[str], str],
    pieces: Callable[[str, str, int], Iterable[tuple[int, int, int]]],
) -> Corpus:
    """The files below a directory, or a single one.

    Args:
      kind_of: of a file's name.
      pieces: kind, path and size of a file -> start, end and weight of its units.
    """
    paths = corpus.list_files(root)
    units = []
    listing = hashlib.sha256()
    total = 0
    for path in paths:
        name = os.path.relpath(path, root) if path != root else os.path.basename(path)
        size = os.path.getsize(path)
        listing.update(f"{name}\t{size}\n".encode("utf-8", "surrogateescape"))
        total += size
        kind = kind_of(name)
        for start, end, weight in pieces(kind, path, size):
            units.append(Unit(kind, path, name, start, end, weight, len(units)))
    if not units:
        raise UserError(
            f"the {len(paths)} files in {root} are empty: there is no text."
        )
    return Corpus(units, len(paths), total, listing.hexdigest())


def _kind_of(name: str) -> str:
    stem, ending = os.path.splitext(name.lower())
    compressed = ending in archives.COMPRESSED
    if compressed:
        ending = os.path.splitext(stem)[1]
    if ending in _ARCHIVES:
        return "archive"
    if ending in _TABLES and not compressed:
        return _TABLES[ending]
    kind = "json" if ending in _JSON_LINES else "text"
    return f"compressed {kind}" if compressed else kind


def holds_records(path: str) -> bool:
    """Whether a file has records rather than lines, as the end of its name tells."""
    return _kind_of(path) in _KEYED


def cut(size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """Start, end and weight of the pieces of a file."""
    for start in range(0, size, max(step, 1)):
        end = min(start + step, size)
        yield start, end, end - start


def _joined(sizes: Sequence[int], piece_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Joins consecutive parts of a table until they have the size of a piece."""
    start = weight = 0
    for index, size in enumerate(sizes, 1):
        weight += size
        if weight >= piece_bytes or index == len(sizes):
            yield start, index, weight
            start, weight = index, 0


def tfds_corpus(spec: str, data_dir: str | None) -> Corpus:
    """The documents of a prepared data set of tensorflow_datasets."""
    source = tfds_documents.open_tfds(spec, data_dir)
    count = source.num_examples
    if not count:
        raise UserError(f"--tfds {spec}: the split train has no documents.")
    size = max(source.num_bytes, count)
    step = max(1, count * _TFDS_BYTES // size)
    units = []
    for start in range(0, count, step):
        end = min(start + step, count)
        weight = (end - start) * size // count
        units.append(Unit("tfds", spec, spec, start, end, weight, len(units)))
    listing = f"{source.name}\t{source.field}\t{count}\t{source.num_bytes}"
    return Corpus(units, count, size, hashlib.sha256(listing.encode()).hexdigest())


def read_unit(unit: Unit, reading: Reading) -> Iterator[TextReader]:
    """Yields a reader for each text of a unit, to be read before the next one.

    Raises UserError, naming the file and the place in it, for what is damaged.
    """
    errors = reading.encoding_errors
    if unit.kind == "tfds":
        documents = tfds_documents.read_tfds_documents(
            unit.path, reading.tfds_data_dir, unit.start, unit.end, errors
        )
        yield from _records(documents)
    elif unit.kind in _TABLES.values():
        table = tables.open_table(unit.path, reading.text_key)
        yield from _records(table.read(unit.start, unit.end, errors))
    else:
        for reader in _read_files(unit, errors):
            if unit.kind.endswith("json") or _kind_in_archive(unit, reader) == "json":
                texts = json_lines.read_json_lines(
                    reader, reading.text_key, errors, unit.start
                )
                yield from _records(texts)
            else:
                yield reader


def _records(readers: Iterable[TextReader]) -> Iterator[TextReader]:
    for reader in readers:
        reader.is_record = True
        yield reader


def _kind_in_archive(unit: Unit, reader: TextReader) -> str:
    """The kind of a member, by the end of its name; outside of an archive "text"."""
    if reader.name == unit.path:
        return "text"
    kind = _kind_of(reader.name)
    if kind not in ("text", "json"):
        raise UserError(
            f"{reader.name} is by its name {kind}, which cannot be read inside of an "
            "archive.\nUnpack the archive into the corpus.",
            EXIT_DAMAGED,
        )
    return kind


def _read_files(unit: Unit, errors: str) -> Iterator[TextReader]:
    if unit.kind == "archive":
        yield from archives.read_archive(unit.path, errors)
        return
    if unit.is_compressed:
        yield from archives.read_compressed(unit.path, errors)
        return
    with corpus.open_text(unit.path) as stream:
        yield TextReader(stream, unit.path, errors, unit.start, unit.end)
