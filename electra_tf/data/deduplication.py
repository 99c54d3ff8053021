# SPDX-License-Identifier: Apache-2.0
"""Which documents and lines of a corpus repeat earlier ones.

Every portion of the corpus is read once and leaves numbers behind: a hash of each
document and line, MinHash bands of each document. They are compared here, in the order
of the corpus, and each portion gets a file of verdicts. What is equal to something
earlier, or nearly so, is left out; so the result depends neither on the number of
processes nor on the seed.
"""

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.text import filters
from electra_tf.text.filters import Filters
from electra_tf.text.units import Unit

_FIRSTS_FILE = ".verdicts.json"

# Numbers that are compared at a time: some 0.5 GB.
_MAX_COMPARED = 1 << 24

_REASONS = (None, "duplicate_documents", "near_duplicates")


def _numbers_file(folder: str, portion: int) -> str:
    return os.path.join(folder, f".numbers-{portion:05d}.npz")


def _verdicts_file(folder: str, portion: int) -> str:
    return os.path.join(folder, f".verdicts-{portion:05d}.npz")


def write_numbers(
    folder: str,
    portion: int,
    wanted: Filters,
    units: Iterable[Iterator[list[str]]],
) -> None:
    """Writes the numbers of a portion: by unit its documents as lists of lines."""
    unit_documents, document_lines = [], []
    documents, bands, lines = [], [], []
    for unit in units:
        before = len(documents)
        for document in unit:
            stripped = [line.strip() for line in document]
            documents.append(filters.hash_of("\n".join(stripped)))
            document_lines.append(len(document))
            if wanted.near_duplicates:
                bands.append(filters.near_duplicate_bands(document))
            if wanted.duplicate_lines:
                lines.append(filters.hashes_of_lines(stripped))
        unit_documents.append(len(documents) - before)
    no_bands = np.zeros((0, filters.NUM_BANDS), np.uint64)
    np.savez(
        _numbers_file(folder, portion),
        unit_documents=np.array(unit_documents, np.int64),
        document_lines=np.array(document_lines, np.int64),
        documents=np.array(documents, np.uint64),
        bands=np.stack(bands) if bands else no_bands,
        lines=np.concatenate(lines) if lines else np.zeros(0, np.uint64),
    )


def compare(folder: str, firsts: Sequence[int], wanted: Filters, output: str) -> None:
    """Writes the verdicts of all portions, from their numbers in `folder`.

    Args:
      firsts: by portion the index of its first unit.
    """
    count = len(firsts)

    def load(name: str) -> Callable[[int], np.ndarray]:
        def of(portion: int) -> np.ndarray:
            with np.load(_numbers_file(folder, portion)) as arrays:
                return arrays[name]

        return of

    lengths = [load("document_lines")(portion) for portion in range(count)]
    documents = [np.zeros(len(length), np.uint8) for length in lengths]
    if wanted.duplicate_documents:
        _mark_repeated(load("documents"), documents, 1)
    if wanted.near_duplicates:
        for band in range(filters.NUM_BANDS):
            _mark_repeated(lambda p, b=band: load("bands")(p)[:, b], documents, 2)
    # Lines of documents that are left out are not the first of anything.
    lines = [
        np.repeat(verdict > 0, length).astype(np.uint8) * 2
        for verdict, length in zip(documents, lengths, strict=True)
    ]
    if wanted.duplicate_lines:
        _mark_repeated(load("lines"), lines, 1)
    for portion in range(count):
        units = load("unit_documents")(portion)
        first_line = np.concatenate([[0], np.cumsum(lengths[portion])])
        starts = np.concatenate([[0], np.cumsum(units)])
        np.savez(
            _verdicts_file(output, portion),
            documents=documents[portion],
            lines=np.packbits(lines[portion] != 1),
            first_document=starts,
            first_line=first_line[starts],
        )
    with open(os.path.join(output, _FIRSTS_FILE), "w", encoding="utf-8") as f:
        json.dump(firsts, f)


def _mark_repeated(
    load: Callable[[int], np.ndarray], verdicts: list[np.ndarray], code: int
) -> None:
    """Gives `code` to all but the first of equal numbers whose verdict is 0 so far."""
    total = sum(map(len, verdicts))
    turns = np.uint64(max(1, -(-total // _MAX_COMPARED)))
    for turn in range(int(turns)):
        chosen, numbers = [], []
        for portion, verdict in enumerate(verdicts):
            found = load(portion)
            mine = np.flatnonzero((verdict == 0) & (found % turns == np.uint64(turn)))
            chosen.append(mine)
            numbers.append(found[mine])
        whole = np.concatenate(numbers)
        is_repeated = np.ones(len(whole), bool)
        is_repeated[np.unique(whole, return_index=True)[1]] = False
        start = 0
        for verdict, mine in zip(verdicts, chosen, strict=True):
            verdict[mine[is_repeated[start : start + len(mine)]]] = code
            start += len(mine)


class UnitVerdicts:
    """The verdicts on the documents of a unit, one after the other."""

    def __init__(self, documents: np.ndarray, lines: np.ndarray):
        self._documents, self._lines = documents, lines
        self._document = self._line = 0

    def next(self, num_lines: int) -> tuple[str | None, list[bool]]:
        """Why the next document is left out, if it is; which of its lines are new."""
        end = self._line + num_lines
        if self._document == len(self._documents) or end > len(self._lines):
            raise UserError("the corpus was changed while it was read; build again.")
        reason = _REASONS[self._documents[self._document]]
        is_new = self._lines[self._line : end]
        self._document += 1
        self._line = end
        return reason, is_new.tolist()


class Verdicts(NamedTuple):
    """The verdicts on a corpus, from the files that `compare` wrote in a folder.

    `identity` is that of the build: another one may have been in the folder before.
    """

    folder: str
    identity: str

    def of(self, unit: Unit) -> UnitVerdicts:
        """Those on a unit."""
        firsts = _first_units(self)
        portion = int(np.searchsorted(firsts, unit.index, side="right")) - 1
        documents, lines, first_document, first_line = _load(self, portion)
        index = unit.index - int(firsts[portion])
        start, end = first_line[index], first_line[index + 1]
        bits = np.unpackbits(lines[start // 8 : -(-end // 8)])
        return UnitVerdicts(
            documents[first_document[index] : first_document[index + 1]],
            bits[start % 8 : start % 8 + end - start].astype(bool),
        )


@functools.lru_cache(1)
def _first_units(verdicts: Verdicts) -> np.ndarray:
    with open(os.path.join(verdicts.folder, _FIRSTS_FILE), encoding="utf-8") as f:
        return np.array(json.load(f), np.int64)


@functools.lru_cache(4)
def _load(verdicts: Verdicts, portion: int) -> tuple[np.ndarray, ...]:
    names = ("documents", "lines", "first_document", "first_line")
    with np.load(_verdicts_file(verdicts.folder, portion)) as arrays:
        return tuple(arrays[name] for name in names)
