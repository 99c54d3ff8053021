# SPDX-License-Identifier: Apache-2.0
"""Which documents and lines of a corpus are used; by default all of them.

Some look at one document: its length, its share of letters, its language. The others
compare with what came before in the corpus: repeated documents and lines, and documents
that are nearly the same. Those are numbers here (hashes and MinHash bands) that
`data.deduplication` compares.
"""

import functools
import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import UserError
from electra_tf.storage.manifest import installed_versions
from electra_tf.text.corpus import missing_package

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


class Filters(NamedTuple):
    """What a document or line must be like to be used; by default anything will do.

    Attributes:
        min_chars: of a document, white space at the ends of lines not counted.
        min_letters: share of letters among the characters that are no white space.
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
        """Raises UserError for impossible settings and for missing packages."""
        if self.min_chars < 0:
            raise UserError(f"--min-document-chars {self.min_chars}: give 0 or more.")
        if not 0 <= self.min_letters <= 1:
            raise UserError(f"--min-letters {self.min_letters}: give a share, 0 to 1.")
        if self.languages:
            known = sorted(_language_identifier().labels)
            unknown = sorted(set(self.languages) - set(known))
            if unknown:
                raise UserError(
                    f"--languages {','.join(unknown)}: not known; these are:\n"
                    f"{' '.join(known)}."
                )
        if self.near_duplicates:
            near_duplicate_bands(["text"])

    def problem_of(self, lines: Sequence[str], is_continued: bool) -> str | None:
        """Why a document is not used, in the words of the manifest; None: it is.

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
            found = _language_identifier().classify(_beginning(lines))[0]
            if found not in self.languages:
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


def _beginning(lines: Sequence[str]) -> str:
    text = ""
    for line in lines:
        text += f"{line[:_LANGUAGE_CHARS]}\n"
        if len(text) >= _LANGUAGE_CHARS:
            break
    return text[:_LANGUAGE_CHARS]


def hash_of(text: str) -> int:
    """64 bits that are the same on every machine."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def hashes_of_lines(lines: Sequence[str]) -> np.ndarray:
    """uint64 [number of lines]; white space at the ends of a line does not count."""
    return np.array([hash_of(line.strip()) for line in lines], np.uint64)


def near_duplicate_bands(lines: Sequence[str]) -> np.ndarray:
    """uint64 [NUM_BANDS]; documents that share one are taken for near duplicates."""
    try:
        from rensa import RMinHash
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
