# SPDX-License-Identifier: Apache-2.0
"""Random access to the records of many TFRecord shards.

The offsets of all records are stored in a hidden file beside the shards and are
memory-mapped, so opening 64 million examples takes no time. The builder writes it; for
other shards it is made at the first opening, by stepping over the record lengths.

Shards in a bucket are copied to the cache.
"""

import contextlib
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from electra_tf.data import tfrecord
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.storage import remote
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import MANIFEST, read_json
from electra_tf.storage.remote import expand
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

_INDEX_MAGIC = 0x31584449_41525445  # "ETRAIDX1"
_HEADER_FIELDS = 4  # magic, number of files, two unused
_FILE_FIELDS = 3  # size, unused, number of records

# Files that stay open; beyond these, each thread may read another one. The usual limit
# of a process is 1024.
_MAX_OPEN = 48


class Location(NamedTuple):
    """The place of a record: file, number within the file, first byte."""

    path: str
    record: int
    offset: int


class RecordIndex:
    """The records of a list of shards, numbered in the order of the list.

    Attributes:
        paths: the shards.
        counts: number of records of each shard, int64 [files].
    """

    def __init__(self, paths: Sequence[str]):
        """Loads the index beside the first shard, or makes it.

        Raises `UserError` (65) for a damaged shard.
        """
        self.paths = remote.fetch_all(paths)
        there = file_beside(*os.path.split(index_path(self.paths)))
        if (table := _load(there, self.paths) if there else None) is None:
            table = _scan_all(self.paths)
            with contextlib.suppress(UserError):  # a read-only folder
                atomic_write(index_path(self.paths), table.tobytes())
        files = len(self.paths)
        body = table[_HEADER_FIELDS:]
        self.counts = np.array(body[2 : files * _FILE_FIELDS : _FILE_FIELDS])
        self._offsets = body[files * _FILE_FIELDS :]  # per file: offsets, then its size
        self._first = np.concatenate([[0], np.cumsum(self.counts)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def locate(self, index: int) -> Location:
        """The place of record `index` (0..len - 1)."""
        file = int(np.searchsorted(self._first, index, side="right")) - 1
        record, offset = index - self._first[file], self._offsets[index + file]
        return Location(self.paths[file], int(record), int(offset))

    def read(self, indices: np.ndarray) -> list[bytes]:
        """Returns the data of the records `indices` [n], with verified checksums.

        Raises `UserError` (65) naming file, record and byte of a damaged one, or a file
        that is gone.
        """
        files = np.searchsorted(self._first, indices, side="right") - 1
        starts = self._offsets[indices + files]
        sizes = (self._offsets[indices + files + 1] - starts).tolist()
        found = self._ranges(files.tolist(), starts.tolist(), sizes)
        for index, framed, size in zip(indices, found, sizes, strict=True):
            if problem := tfrecord.problem_of(framed, size):
                raise tfrecord.damaged(*self.locate(int(index)), problem)
        return [framed[tfrecord.HEADER_BYTES : -4] for framed in found]

    def _ranges(
        self, files: list[int], starts: list[int], sizes: list[int]
    ) -> list[bytes]:
        """Bytes of files, by their numbers."""
        result = [b""] * len(files)
        by_file = sorted(range(len(files)), key=files.__getitem__)
        for file, places in itertools.groupby(by_file, files.__getitem__):
            # Evicted from the cache, it is closed when its last reference is gone.
            shard = _shard(self, file)
            for i in places:
                result[i] = os.pread(shard.fileno(), sizes[i], starts[i])
        return result


@functools.lru_cache(_MAX_OPEN)
def _shard(index: RecordIndex, number: int) -> BinaryIO:
    path = index.paths[number]
    try:
        return open(path, "rb", buffering=0)
    except OSError as e:
        raise UserError(
            f"{path} cannot be opened any more: {e.strerror}.\nDo not move or remove "
            "shards while a run reads them.",
            EXIT_DAMAGED,
        ) from None


def write(paths: Sequence[str]) -> str:
    """Writes the index of new shards beside the first of them; returns its path.

    It contains no times, so it is reproducible and stays valid for copies. Raises
    `UserError` (73) on a failed write.
    """
    place = index_path(paths)
    atomic_write(place, _scan_all(paths).tobytes())
    return place


def index_path(paths: Sequence[str]) -> str:
    """The path of the index of shards."""
    folder = os.path.dirname(os.path.abspath(paths[0]))
    # Relative paths, which copied shards keep.
    names = "\n".join(os.path.relpath(path, folder) for path in paths)
    key = hashlib.sha256(names.encode()).hexdigest()[:16]
    return os.path.join(folder, f".records-all-{key}.index")


def _scan_all(paths: Sequence[str]) -> np.ndarray:
    """Makes the table of an index: header, a row per file, the offsets of each file."""
    offsets = [tfrecord.scan(path) for path in paths]
    rows = [[found[-1], 0, len(found) - 1] for found in offsets]
    header = np.array([_INDEX_MAGIC, len(paths), 0, 0], np.int64)
    return np.concatenate([header, np.ravel(rows), *offsets])


def _load(cache: Path, paths: list[str]) -> np.ndarray | None:
    """Maps a stored table; None if it is of other shards.

    It knows them by their sizes: wrong offsets lead to wrong checksums of records.
    """
    try:
        table = np.memmap(cache, np.int64, mode="r")
    except (OSError, ValueError):
        return None
    rows_end = _HEADER_FIELDS + _FILE_FIELDS * len(paths)
    if len(table) < rows_end or tuple(table[:2]) != (_INDEX_MAGIC, len(paths)):
        return None
    rows = table[_HEADER_FIELDS:rows_end].reshape(len(paths), _FILE_FIELDS)
    is_same = rows[:, 0].tolist() == [*map(os.path.getsize, paths)]
    is_whole = len(table) == rows_end + rows[:, 2].sum() + len(paths)
    return table if is_same and is_whole else None


def file_beside(directory: str | os.PathLike, name: str) -> Path | None:
    """A file in a directory of shards, if it is there."""
    path = Path(remote.fetch(os.path.join(directory, name)))
    return path if path.is_file() else None


def read_manifest(directory: str | os.PathLike) -> dict | None:
    """The manifest of a directory of shards; None if there is none."""
    if not (path := file_beside(directory, MANIFEST)):
        return None
    advice = "Restore it or build the data again; without it shards are read as found."
    manifest = read_json(path, advice)
    if not manifest.keys() >= {"files", "max_seq_length", "vocab"}:
        raise UserError(f"{path} is not of a data set.\n{advice}", EXIT_DAMAGED)
    return manifest


def manifest_sha256(pattern: str) -> dict[str, str]:
    """The hash of the manifests beside shards, as a setting; {} if there are none."""
    manifests = (file_beside(folder, MANIFEST) for folder in folders_of(pattern))
    found = b"".join(path.read_bytes() for path in manifests if path)
    return {"data_manifest_sha256": hashlib.sha256(found).hexdigest()} if found else {}


def describe(data: str | list | dict) -> list[str]:
    """Describes data (files, bytes and weight of each set), independent of its place.

    Args:
      data: the value of an hparam such as pretrain_tfrecords.
    """
    found = []
    for pattern in [data] if isinstance(data, str) else data:
        sizes = remote.sizes_of(expand(pattern))
        weight = f", weight {data[pattern]}" if isinstance(data, dict) else ""
        found.append(f"{len(sizes)} files, {sum(sizes)} bytes{weight}")
    return found


def check_tokenizer(pattern: str, expected: TokenizerConfig) -> None:
    """Raises `UserError` for data that were built with other tokenizer settings.

    The model would later read text in another way than its training data.
    """
    for folder in folders_of(pattern):
        stored = (read_manifest(folder) or {}).get("tokenizer")
        config = TokenizerConfig(**stored) if stored else expected
        if config.equivalent(expected):
            continue
        advice = f'Set "do_lower_case": {json.dumps(config.do_lower_case)}'
        if config.do_lower_case == expected.do_lower_case:
            advice = "Give the vocabulary the settings of the data"
        raise UserError(
            f"the data in {folder} were built {config},\nbut vocabulary and hparams "
            f"require text that is {expected}.\n{advice}, or build the data again."
        )


def folders_of(pattern: str) -> list[str]:
    """The directories of the shards of a list of globs."""
    return sorted({os.path.dirname(path) for path in expand(pattern)})


# Token counts.

TOKEN_COUNTS = "token_counts.txt"


def count_tokens(input_ids: np.ndarray, input_mask: np.ndarray, vocab: Vocabulary):
    """Counts the tokens of examples other than special ones: int64 [V]."""
    counts = np.bincount(input_ids[input_mask > 0], minlength=len(vocab))
    counts[[vocab.pad_id, vocab.cls_id, vocab.sep_id, vocab.mask_id]] = 0
    return counts


def token_count_files(pattern: str) -> list[str]:
    """The files of token counts beside the shards; `UserError` if one is missing."""
    folders = folders_of(pattern)
    for folder in folders:
        if not file_beside(folder, TOKEN_COUNTS):
            raise UserError(
                f"{os.path.join(folder, TOKEN_COUNTS)} not found: this run needs the "
                "count of each token in the data.\nBuild the data again with "
                "build_pretraining_dataset.py."
            )
    return [os.path.join(folder, TOKEN_COUNTS) for folder in folders]


def token_counts_of(pattern: str, vocab_size: int) -> np.ndarray:
    """The sum of the token counts of all data that `pattern` matches: int64 [V].

    Raises `UserError` (65) for a damaged file.
    """
    total = np.zeros(vocab_size, np.int64)
    for path in token_count_files(pattern):
        try:
            with open(path, encoding="ascii") as f:
                counts = np.array(f.read().split(), np.int64)
            if len(counts) != vocab_size:
                raise ValueError(f"{len(counts)} lines for {vocab_size} tokens")
        except ValueError as error:
            raise UserError(
                f"{path} is not the counts of {vocab_size} tokens: {error}.\nBuild the "
                "data again with build_pretraining_dataset.py.",
                EXIT_DAMAGED,
            ) from None
        total += counts
    return total
