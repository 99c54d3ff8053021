# SPDX-License-Identifier: Apache-2.0
"""Filters for the documents and lines of a corpus; by default all are used.

Some filters check a single document: its length, its share of letters, its language.
The others compare it with earlier documents. For these, a first pass over each portion
of the corpus stores hashes of documents and lines, and MinHash bands of documents. They
are compared in the order of the corpus, and the verdicts are stored by portion, so the
result depends neither on the number of processes nor on the seed.
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

# Longer documents are filtered in pieces, which bounds memory.
MAX_DOCUMENT_CHARS = 1_000_000

# Near duplicates as FineWeb's: 5-grams of words, 14 bands of 8 minima. Two documents
# that share three quarters of their 5-grams are found 3 times in 4, half: 1 in 20.
_SHINGLE_WORDS = 5
_NUM_BANDS, _BAND_ROWS = 14, 8
_MINHASH_SEED = 1
# Thai, Lao, Tibetan, Burmese, Khmer, kana and ideographs, which have no spaces between
# words. Each character counts as a word.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_WORDS = re.compile(f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+")

# Characters from which a document's language is detected.
_LANGUAGE_CHARS = 2000

# Numbers to compare at once: some 0.5 GB.
_MAX_COMPARED = 1 << 24

_REASONS = (None, "duplicate_documents", "near_duplicates")


class Filters(NamedTuple):
    """The filters of a build; by default none.

    Attributes:
        min_chars: of a document, without white space at the ends of lines.
        min_letters: least share of letters, white space not counted.
        languages: accepted languages, as codes of ISO 639.
        duplicate_documents: drop all but the first of equal documents.
        near_duplicates: drop all but the first of nearly equal documents.
        duplicate_lines: drop all but the first of equal lines in all documents.
    """

    min_chars: int = 0
    min_letters: float = 0.0
    languages: tuple[str, ...] = ()
    duplicate_documents: bool = False
    near_duplicates: bool = False
    duplicate_lines: bool = False

    @classmethod
    def of_flags(cls, flags: Mapping[str, Any]) -> "Filters":
        """From the flags of `commands.shared_flags`."""
        values = {name: flag.value for name, flag in flags.items()}
        return cls(**values | {"languages": tuple(values["languages"])})

    @property
    def compare(self) -> bool:
        """Whether documents or lines are compared with others."""
        return self.duplicate_documents or self.near_duplicates or self.duplicate_lines

    def identity(self) -> dict[str, Any]:
        """The settings that affect the output, in JSON; {} if nothing is filtered."""
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
            _near_duplicate_bands(["text"])

    def problem_of(self, lines: Sequence[str], is_continued: bool) -> str | None:
        """Why a document is rejected, as in the manifest; None if it is used.

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
    """Includes combining marks, such as the vowel signs of Indic scripts."""
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


def _hash_of(text: str) -> int:
    """A 64-bit hash, the same on every machine."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _near_duplicate_bands(lines: Sequence[str]) -> np.ndarray:
    """uint64 [_NUM_BANDS]; documents with a common one count as near duplicates."""
    try:
        from rensa import RMinHash  # ty: ignore[missing-module-member]
    except ImportError:
        raise missing_package("--drop-near-duplicates", "rensa") from None
    words = _WORDS.findall(" ".join(lines).lower())
    count = max(1, len(words) - _SHINGLE_WORDS + 1)
    shingles = [" ".join(words[i : i + _SHINGLE_WORDS]) for i in range(count)]
    minima = RMinHash(num_perm=_NUM_BANDS * _BAND_ROWS, seed=_MINHASH_SEED)
    minima.update(shingles)
    rows = np.array(minima.digest(), "<u4").reshape(_NUM_BANDS, _BAND_ROWS)
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(b"".join(digests), "<u8")


# Comparisons with earlier documents and lines.


def _file(kind: str, folder: str, portion: int) -> str:
    return os.path.join(folder, f".{kind}-{portion:05d}.npz")


def write_numbers(
    folder: str, portion: int, wanted: Filters, units: Iterable[Iterator[list[str]]]
) -> None:
    """Writes the numbers of a portion, whose units are documents as lists of lines."""
    documents, bands, lines, lengths = [], [], [], []
    first_document, first_line = [0], [0]
    for unit in units:
        for document in unit:
            stripped = [line.strip() for line in document]
            documents.append(_hash_of("\n".join(stripped)))
            lengths.append(len(document))
            if wanted.near_duplicates:
                bands.append(_near_duplicate_bands(document))
            if wanted.duplicate_lines:
                lines += map(_hash_of, stripped)
        first_line.append(first_line[-1] + sum(lengths[first_document[-1] :]))
        first_document.append(len(documents))
    np.savez(
        _file("numbers", folder, portion),
        documents=np.array(documents, np.uint64),
        bands=np.array(bands, np.uint64).reshape(-1, _NUM_BANDS),
        lines=np.array(lines, np.uint64),
        lengths=np.array(lengths, np.int64),
        first_document=first_document,
        first_line=first_line,
    )


def compare(folder: str, count: int, wanted: Filters, output: str) -> None:
    """Writes the verdicts of `count` portions, from their numbers in `folder`."""

    def load(name: str, portion: int) -> np.ndarray:
        with np.load(_file("numbers", folder, portion)) as arrays:
            return arrays[name]

    lengths = [load("lengths", portion) for portion in range(count)]
    documents = [np.zeros(len(length), np.uint8) for length in lengths]
    if wanted.duplicate_documents:
        _mark_repeated(lambda p: load("documents", p), documents, 1)
    if wanted.near_duplicates:
        for band in range(_NUM_BANDS):
            _mark_repeated(lambda p, b=band: load("bands", p)[:, b], documents, 2)
    # Lines of rejected documents (2) do not count as earlier lines.
    lines = [
        np.repeat(verdict > 0, length).astype(np.uint8) * 2
        for verdict, length in zip(documents, lengths, strict=True)
    ]
    if wanted.duplicate_lines:
        _mark_repeated(lambda p: load("lines", p), lines, 1)
    for portion in range(count):
        path = _file("verdicts", output, portion)
        np.savez(path, documents=documents[portion], is_new=lines[portion] != 1)


def _mark_repeated(
    load: Callable[[int], np.ndarray], verdicts: list[np.ndarray], code: int
) -> None:
    """Sets `code` for all but the first of equal numbers with the verdict 0."""
    total = sum(map(len, verdicts))
    turns = np.uint64(max(1, -(-total // _MAX_COMPARED)))
    for turn in range(int(turns)):
        chosen, numbers = [], []
        for portion, verdict in enumerate(verdicts):
            found = load(portion)
            places = np.flatnonzero((verdict == 0) & (found % turns == np.uint64(turn)))
            chosen.append(places)
            numbers.append(found[places])
        whole = np.concatenate(numbers)
        is_repeated = np.ones(len(whole), bool)
        is_repeated[np.unique(whole, return_index=True)[1]] = False
        start = 0
        for verdict, places in zip(verdicts, chosen, strict=True):
            verdict[places[is_repeated[start : start + len(places)]]] = code
            start += len(places)


class Verdicts(NamedTuple):
    """The results of comparing the documents and lines of a unit, in their order."""

    documents: Iterator[int]
    is_new: Iterator[bool]

    def next(self, num_lines: int) -> tuple[str | None, list[bool]]:
        """Why the next document is rejected (None if it is not), and its new lines."""
        code = next(self.documents, None)
        is_new = list(itertools.islice(self.is_new, num_lines))
        if code is None or len(is_new) < num_lines:
            raise UserError("the corpus was changed while it was read; build again.")
        return _REASONS[code], is_new


def verdicts_of(
    folder: str, identity: str, firsts: tuple[int, ...], unit: Unit
) -> Verdicts:
    """Reads the verdicts on a unit, which `compare` wrote.

    Args:
      identity: of the build; another one may have used the folder before.
      firsts: by portion the index of its first unit.
    """
    portion = bisect.bisect_right(firsts, unit.index) - 1
    arrays = _load(folder, identity, portion)
    index = unit.index - firsts[portion]
    start, end = arrays["first_document"][index : index + 2]
    first, last = arrays["first_line"][index : index + 2]
    is_new = arrays["is_new"][first:last]
    return Verdicts(iter(arrays["documents"][start:end]), iter(is_new))


@functools.lru_cache(4)
def _load(folder: str, identity: str, portion: int) -> dict[str, np.ndarray]:
    with (
        np.load(_file("numbers", folder, portion)) as numbers,
        np.load(_file("verdicts", folder, portion)) as verdicts,
    ):
        starts = {name: numbers[name] for name in ("first_document", "first_line")}
        return starts | dict(verdicts)
