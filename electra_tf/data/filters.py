# SPDX-License-Identifier: Apache-2.0
"""Which documents and lines of a corpus are used; by default all of them.

Some filters look at one document: its length, its share of letters, its language. The
others compare it with what came before in the corpus. For these every portion of the
corpus is read once and leaves numbers behind: a hash of each document and line, MinHash
bands of each document. They are compared in the order of the corpus, and each portion
gets a file of verdicts; so the result depends neither on the number of processes nor on
the seed.
"""

import bisect
import functools
import hashlib
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.storage.manifest import installed_versions
from electra_tf.text.corpus import missing_package
from electra_tf.text.units import Unit

# Longer documents are judged in pieces, which bounds memory.
MAX_DOCUMENT_CHARS = 1_000_000

# Near duplicates as FineWeb's: 5-grams of words, 14 bands of 8 minima. Two documents
# that share three quarters of their 5-grams are found 3 times in 4, half: 1 in 20.
_SHINGLE_WORDS = 5
NUM_BANDS, _BAND_ROWS = 14, 8
_MINHASH_SEED = 1
# Thai, Lao, Tibetan, Burmese, Khmer, kana and ideographs, which have no spaces between
# words: there each character is one.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_WORDS = re.compile(f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+")

# The beginning of a document tells its language.
_LANGUAGE_CHARS = 2000


# Numbers that are compared at a time: some 0.5 GB.
_MAX_COMPARED = 1 << 24

_REASONS = (None, "duplicate_documents", "near_duplicates")


class Filters(NamedTuple):
    """What a document or line must be like to be used; by default anything will do.

    Attributes:
        min_chars: of a document, white space at the ends of lines not counted.
        min_letters: share of letters among the characters other than white space.
        languages: codes of ISO 639 of which a document's must be one.
        duplicate_documents: of equal documents the first stays.
        near_duplicates: of documents that are nearly the same the first stays.
        duplicate_lines: of equal lines of all documents the first stays.
    """

    min_chars: int = 0
    min_letters: float = 0.0
    languages: tuple[str, ...] = ()
    duplicate_documents: bool = False
    near_duplicates: bool = False
    duplicate_lines: bool = False

    @classmethod
    def of_flags(cls, flags: Mapping[str, Any]) -> "Filters":
        """Those of `commands.shared_flags`."""
        given = {name: flag.value for name, flag in flags.items()}
        return cls(**given | {"languages": tuple(given["languages"])})

    @property
    def compare(self) -> bool:
        """Whether documents or lines are compared with others."""
        return self.duplicate_documents or self.near_duplicates or self.duplicate_lines

    def identity(self) -> dict[str, Any]:
        """What of it makes two builds the same, in JSON; {} if nothing is filtered."""
        default = Filters()._asdict()
        chosen = {k: v for k, v in self._asdict().items() if v != default[k]}
        packages = {"languages": "py3langid", "near_duplicates": "rensa"}
        used = [package for name, package in packages.items() if name in chosen]
        if "languages" in chosen:
            chosen["languages"] = list(self.languages)
        return chosen | installed_versions(*used)

    def check(self) -> None:
        """Raises UserError for unknown languages and for missing packages."""
        if self.languages:
            known = sorted(_language_identifier().labels)
            if unknown := sorted(set(self.languages) - set(known)):
                raise UserError(
                    f"--languages {','.join(unknown)}: not known; these are:\n"
                    f"{' '.join(known)}."
                )
        if self.near_duplicates:
            near_duplicate_bands(["text"])

    def problem_of(self, lines: Sequence[str], is_continued: bool) -> str | None:
        """Why a document is left out, as the manifest names it; None: it is used.

        `is_continued`: it is a later piece of a long document.
        """
        if self.min_chars and not is_continued:
            if sum(len(line.strip()) for line in lines) < self.min_chars:
                return "short_documents"
        if self.min_letters:
            letters = sum(map(_count_letters, lines))
            chars = sum(len("".join(line.split())) for line in lines)
            if letters < self.min_letters * chars:
                return "few_letters"
        if self.languages:
            beginning = "\n".join(line[:_LANGUAGE_CHARS] for line in lines)
            text = f"{beginning}\n"[:_LANGUAGE_CHARS]
            if _language_identifier().classify(text)[0] not in self.languages:
                return "other_languages"
        return None


def _count_letters(line: str) -> int:
    """With the marks that are written as characters of their own, such as vowels."""
    count = sum(map(str.isalpha, line))
    if not line.isascii():
        count += sum(unicodedata.category(c)[0] == "M" for c in line)
    return count


@functools.cache
def _language_identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError:
        raise missing_package("--languages", "py3langid") from None
    return LanguageIdentifier.from_model_file(MODEL_FILE)


def hash_of(text: str) -> int:
    """64 bits that are the same on every machine."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def near_duplicate_bands(lines: Sequence[str]) -> np.ndarray:
    """uint64 [NUM_BANDS]; documents that share one are taken for near duplicates."""
    try:
        from rensa import RMinHash  # ty: ignore[missing-module-member]
    except ImportError:
        raise missing_package("--drop-near-duplicates", "rensa") from None
    words = _WORDS.findall(" ".join(lines).lower())
    count = max(1, len(words) - _SHINGLE_WORDS + 1)
    shingles = [" ".join(words[i : i + _SHINGLE_WORDS]) for i in range(count)]
    minima = RMinHash(num_perm=NUM_BANDS * _BAND_ROWS, seed=_MINHASH_SEED)
    minima.update(shingles)
    rows = np.array(minima.digest(), "<u4").reshape(NUM_BANDS, _BAND_ROWS)
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), "<u8")


# Comparisons with earlier documents and lines.


def _file(kind: str, folder: str, portion: int) -> str:
    return os.path.join(folder, f".{kind}-{portion:05d}.npz")


def write_numbers(
    folder: str, portion: int, wanted: Filters, units: Iterable[Iterator[list[str]]]
) -> None:
    """Writes the numbers of a portion: by unit its documents as lists of lines."""
    unit_documents, document_lines = [], []
    documents, bands, lines = [], [], []
    for unit in units:
        before = len(documents)
        for document in unit:
            stripped = [line.strip() for line in document]
            documents.append(hash_of("\n".join(stripped)))
            document_lines.append(len(document))
            if wanted.near_duplicates:
                bands.append(near_duplicate_bands(document))
            if wanted.duplicate_lines:
                lines += map(hash_of, stripped)
        unit_documents.append(len(documents) - before)
    np.savez(
        _file("numbers", folder, portion),
        unit_documents=np.array(unit_documents, np.int64),
        document_lines=np.array(document_lines, np.int64),
        documents=np.array(documents, np.uint64),
        bands=np.array(bands, np.uint64).reshape(-1, NUM_BANDS),
        lines=np.array(lines, np.uint64),
    )


def compare(folder: str, count: int, wanted: Filters, output: str) -> None:
    """Writes the verdicts of `count` portions, from their numbers in `folder`."""

    def load(name: str, portion: int) -> np.ndarray:
        with np.load(_file("numbers", folder, portion)) as arrays:
            return arrays[name]

    lengths = [load("document_lines", portion) for portion in range(count)]
    documents = [np.zeros(len(length), np.uint8) for length in lengths]
    if wanted.duplicate_documents:
        _mark_repeated(lambda p: load("documents", p), documents, 1)
    if wanted.near_duplicates:
        for band in range(NUM_BANDS):
            _mark_repeated(lambda p, b=band: load("bands", p)[:, b], documents, 2)
    # Lines of documents that are left out are not the first of anything.
    lines = [
        np.repeat(verdict > 0, length).astype(np.uint8) * 2
        for verdict, length in zip(documents, lengths, strict=True)
    ]
    if wanted.duplicate_lines:
        _mark_repeated(lambda p: load("lines", p), lines, 1)
    for portion in range(count):
        units = load("unit_documents", portion)
        first_line = np.concatenate([[0], np.cumsum(lengths[portion])])
        starts = np.concatenate([[0], np.cumsum(units)])
        np.savez(
            _file("verdicts", output, portion),
            documents=documents[portion],
            lines=lines[portion] != 1,
            first_document=starts,
            first_line=first_line[starts],
        )


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


class UnitVerdicts(NamedTuple):
    """Why documents of a unit are left out, if they are, and which lines are new."""

    documents: Iterator[int]
    is_new: Iterator[bool]

    def next(self, num_lines: int) -> tuple[str | None, list[bool]]:
        """What is said of the next document."""
        code = next(self.documents, None)
        is_new = list(itertools.islice(self.is_new, num_lines))
        if code is None or len(is_new) < num_lines:
            raise UserError("the corpus was changed while it was read; build again.")
        return _REASONS[code], is_new


class Verdicts(NamedTuple):
    """The verdicts on a corpus, from the files that `compare` wrote in a folder.

    Attributes:
      identity: of the build: another one may have been in the folder before.
      firsts: by portion the index of its first unit.
    """

    folder: str
    identity: str
    firsts: tuple[int, ...]

    def of(self, unit: Unit) -> UnitVerdicts:
        """Those on a unit."""
        portion = bisect.bisect_right(self.firsts, unit.index) - 1
        documents, lines, first_document, first_line = _load(self, portion)
        index = unit.index - self.firsts[portion]
        start, end = first_document[index : index + 2]
        first, last = first_line[index : index + 2]
        return UnitVerdicts(iter(documents[start:end]), iter(lines[first:last]))


@functools.lru_cache(4)
def _load(verdicts: Verdicts, portion: int) -> tuple[np.ndarray, ...]:
    names = ("documents", "lines", "first_document", "first_line")
    with np.load(_file("verdicts", verdicts.folder, portion)) as arrays:
        return tuple(arrays[name] for name in names)
