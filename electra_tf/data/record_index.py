# SPDX-License-Identifier: Apache-2.0
"""Random access to the records of many TFRecord shards.

The offsets of all records are kept in a hidden file beside the shards, from where they
are memory-mapped: opening a corpus of 64 million examples costs nothing. The builder
writes it; of other shards they are found once, by stepping over the record lengths.

From a bucket the records of a batch are read by their ranges, all at once, while the
shards are copied to the cache; those that are there are read from there.
"""

import collections
import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import google_crc32c
import numpy as np

from electra_tf.data import tfrecord
from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.storage import remote
from electra_tf.storage.files import atomic_write
from electra_tf.storage.manifest import MANIFEST, read_json
from electra_tf.text.vocabulary import TokenizerConfig, Vocabulary

_INDEX_MAGIC = 0x31584449_41525445  # "ETRAIDX1"
_HEADER_FIELDS = 4  # magic, number of files, records stepped over, CRC of the rest
_FILE_FIELDS = 3  # size, time of change, number of records
_MAX_OPEN_FILES = 256  # well below the usual limit of 1024 per process


class Location(NamedTuple):
    """Where a record lies: file, number within the file, first byte, end."""

    path: str
    record: int
    offset: int
    end: int


class RecordIndex:
    """The records of a list of shards, numbered through in the order of the list.

    Attributes:
        paths: the shards.
        counts: number of records of each shard, int64 [files].
        num_skipped: damaged records that were left out (`skip_damaged`).
        is_remote: whether records are read from a bucket, as they are needed.
    """

    def __init__(self, paths: Sequence[str], skip_damaged: bool = False):
        """Reads the index beside the first shard, or makes it.

        Args:
          skip_damaged: leave damaged records out; costs one reading of all data when
            the index is made.

        Raises UserError (exit code 65) for a damaged shard, unless `skip_damaged`.
        """
        self.paths = list(paths)
        sizes = remote.stats_of(self.paths)
        self._sizes = [size for size, _ in sizes]
        cache = index_path(self.paths, skip_damaged)
        table = _load(remote.fetch_once(cache), sizes)
        # Shards in a bucket whose index is not beside them are copied.
        self.is_remote = table is not None and all(map(remote.is_remote, self.paths))
        if not self.is_remote:
            self.paths = [remote.fetch(path) for path in self.paths]
        if table is None:
            table = _scan_all(self.paths, sizes, skip_damaged)
            with contextlib.suppress(UserError):  # where others may not write
                atomic_write(cache, table.tobytes())
        files = len(self.paths)
        self.num_skipped = int(table[2])
        body = table[_HEADER_FIELDS:]
        self.counts = np.array(body[2 : files * _FILE_FIELDS : _FILE_FIELDS])
        self._offsets = body[files * _FILE_FIELDS :]  # per file: offsets, then its size
        self._first = np.concatenate([[0], np.cumsum(self.counts)])
        self._open: collections.OrderedDict[int, BinaryIO] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._copied: set[int] = set()  # shards of a bucket that are here, too

    def __len__(self) -> int:
        return int(self._first[-1])

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets, and each file's first record: record i of file f is at [i + f]."""
        return np.array(self._offsets), self._first

    def locate(self, index: int) -> Location:
        """Where record `index` (0..len - 1) lies."""
        file = int(np.searchsorted(self._first, index, side="right")) - 1
        start, end = self._offsets[index + file : index + file + 2]
        record = int(index - self._first[file])
        return Location(self.paths[file], record, int(start), int(end))

    def read(self, indices: np.ndarray) -> list[bytes]:
        """Returns the data of the records `indices` [n], their checksums verified.

        Raises UserError (exit code 65) naming file, record and byte of a damaged one.
        """
        files = np.searchsorted(self._first, indices, side="right") - 1
        slots = indices + files
        starts, ends = self._offsets[slots], self._offsets[slots + 1]
        framed = self._framed(files.tolist(), starts.tolist(), ends.tolist())
        records = [record[tfrecord.HEADER_BYTES : -4] for record in framed]
        for i in np.flatnonzero(~tfrecord.are_sound(framed, records)).tolist():
            records[i] = self._sound_record(int(indices[i]), framed[i])
        return records

    def _framed(
        self, files: list[int], starts: list[int], ends: list[int]
    ) -> list[bytes]:
        if self.is_remote and not self._copied.issuperset(files):
            return remote.read_ranges([self.paths[i] for i in files], starts, ends)
        # Held here, no shard is closed before its records are read.
        shards = {file: self._shard(file) for file in set(files)}
        return [
            os.pread(shards[file].fileno(), end - start, start)
            for file, start, end in zip(files, starts, ends, strict=True)
        ]

    def copy_ahead(self) -> None:
        """Begins to copy the shards of a bucket, as far as there is room for them.

        A request for a record costs much more than its bytes; a copy is read for
        nothing, for as many epochs as there are.
        """
        if self.is_remote:
            room = remote.room_for_copies()
            threading.Thread(target=self._copy, args=(room,), daemon=True).start()

    def _copy(self, room: float) -> None:
        for file, size in enumerate(self._sizes):
            room -= size
            try:
                if room < 0 or not os.path.exists(remote.fetch(self.paths[file])):
                    return
            except UserError:
                return  # Reading a record of it raises the error again.
            self._copied.add(file)

    def _sound_record(self, index: int, framed: bytes) -> bytes:
        """Takes the record from bytes that hold more than it, or says what is wrong."""
        place = self.locate(index)
        problem = tfrecord.problem_at(framed, 0, place.end - place.offset)
        if problem:
            damage = tfrecord.Damage(place.record, place.offset, problem)
            raise tfrecord.damaged(place.path, damage)
        # What follows it, up to the next record, was found damaged and left out.
        length = int.from_bytes(framed[:8], "little")
        return framed[tfrecord.HEADER_BYTES : tfrecord.HEADER_BYTES + length]

    def _shard(self, file: int) -> BinaryIO:
        """The shard, opened; the one used longest ago is let go of.

        It is closed when the last thread that still reads from it drops it.
        """
        with self._lock:
            shard = self._open.pop(file, None)
            if shard is None:
                if len(self._open) >= _MAX_OPEN_FILES:
                    self._open.popitem(last=False)
                try:
                    shard = open(self.paths[file], "rb", buffering=0)
                except OSError as e:
                    raise UserError(
                        f"{self.paths[file]} cannot be opened any more: {e.strerror}.\n"
                        "Do not move or remove shards while a run reads them.",
                        EXIT_DAMAGED,
                    ) from None
            self._open[file] = shard
        return shard


def write(paths: Sequence[str]) -> str:
    """Writes the index of new shards beside the first of them; returns its path.

    It says nothing of times, so that it is the same for the same shards, and stays
    valid when they are copied. Raises UserError (73) if it cannot be written.
    """
    paths = [remote.fetch(path) for path in paths]
    place = index_path(paths)
    table = _scan_all(paths, [(os.path.getsize(path), 0) for path in paths], False)
    atomic_write(place, table.tobytes())
    return place


def index_path(paths: Sequence[str], skip_damaged: bool = False) -> str:
    """Where the index of shards is kept."""
    folder = os.path.dirname(os.path.abspath(paths[0]))
    # Relative, so that the index goes with the shards when they are copied.
    names = "\n".join(os.path.relpath(path, folder) for path in paths)
    key = hashlib.sha256(names.encode()).hexdigest()[:16]
    kind = "sound" if skip_damaged else "all"
    return os.path.join(folder, f".records-{kind}-{key}.index")


def _scan_all(
    paths: list[str], sizes: list[tuple[int, int]], skip_damaged: bool
) -> np.ndarray:
    """Makes the table of an index: header, a row per file, offsets file by file."""
    rows, offsets, skipped = [], [], 0
    for path, (size, changed) in zip(paths, sizes, strict=True):
        found, damages = tfrecord.scan(path, skip_damaged)
        rows += [size, changed, len(found) - 1]
        offsets.append(found)
        skipped += len(damages)
        for damage in damages[:1]:
            print(
                f"warning: {path}: {len(damages)} damaged records left out, the first "
                f"is record {damage.record} at byte {damage.offset}: {damage.reason}",
                flush=True,
            )
    body = np.concatenate([np.array(rows, np.int64), *offsets])
    header = np.array([_INDEX_MAGIC, len(paths), skipped, _crc(body)], np.int64)
    return np.concatenate([header, body])


def _load(cache: str, sizes: list[tuple[int, int]]) -> np.ndarray | None:
    """Maps a stored table; None if there is none, or it is of other or older files."""
    try:
        table = np.memmap(cache, np.int64, mode="r")
    except (OSError, ValueError):
        return None
    rows_end = _HEADER_FIELDS + _FILE_FIELDS * len(sizes)
    if len(table) < rows_end or tuple(table[:2]) != (_INDEX_MAGIC, len(sizes)):
        return None
    rows = table[_HEADER_FIELDS:rows_end].reshape(len(sizes), _FILE_FIELDS)
    now = np.array(sizes, np.int64)
    # 0: it was made with the shards, or they are in a bucket, which knows when they
    # were copied to it. Records that are read elsewhere fail their checksums.
    is_known = (rows[:, 1] > 0) & (now[:, 1] > 0)
    if (rows[:, 0] != now[:, 0]).any() or (rows[:, 1] != now[:, 1])[is_known].any():
        return None
    if len(table) != rows_end + rows[:, 2].sum() + len(sizes):
        return None
    if _crc(table[_HEADER_FIELDS:]) != table[3]:
        return None
    return table


def _crc(body: np.ndarray) -> int:
    """CRC-32C of an int64 array, without a second copy of it in memory."""
    crc = 0
    for start in range(0, len(body), 1 << 17):
        crc = google_crc32c.extend(crc, body[start : start + (1 << 17)].tobytes())
    return crc


def read_manifest(directory: str | os.PathLike) -> dict | None:
    """The manifest of a directory of shards, None where there is none."""
    path = Path(remote.fetch_once(os.path.join(directory, MANIFEST)))
    if not path.is_file():
        return None
    advice = "Restore it or build the data again; without it shards are read as found."
    manifest = read_json(path, advice)
    if not manifest.keys() >= {"files", "max_seq_length", "vocab"}:
        raise UserError(f"{path} describes no data set.\n{advice}", EXIT_DAMAGED)
    return manifest


def manifest_sha256(pattern: str) -> dict[str, str]:
    """The hash of the manifests beside shards, where there are any, as a setting."""
    names = (os.path.join(folder, MANIFEST) for folder in _folders_of(pattern))
    manifests = [Path(remote.fetch_once(name)) for name in names]
    found = b"".join(path.read_bytes() for path in manifests if path.is_file())
    return {"data_manifest_sha256": hashlib.sha256(found).hexdigest()} if found else {}


def describe(data: str | list | dict) -> list[str]:
    """What an hparam such as pretrain_tfrecords names, wherever it lies, as a setting.

    Of each data set how many files and bytes it has, and its weight.
    """
    found = []
    for pattern in [data] if isinstance(data, str) else data:
        sizes = [size for size, _ in remote.stats_of(remote.expand(pattern))]
        weight = f", weight {data[pattern]}" if isinstance(data, dict) else ""
        found.append(f"{len(sizes)} files, {sum(sizes)} bytes{weight}")
    return found


def check_tokenizer(pattern: str, ours: TokenizerConfig) -> None:
    """Raises `UserError` for data that were built with other tokenizer settings.

    Nothing is wrong with their ids; but whatever is done with the model would read text
    in another way than the data did.
    """
    for folder in _folders_of(pattern):
        told = (read_manifest(folder) or {}).get("tokenizer")
        theirs = TokenizerConfig(**told) if told else ours
        if theirs.equivalent(ours):
            continue
        fitting = f'Set "do_lower_case": {json.dumps(theirs.do_lower_case)}'
        if theirs.do_lower_case == ours.do_lower_case:
            fitting = "Give the vocabulary the settings of the data"
        raise UserError(
            f"the data in {folder} were built {theirs},\nbut vocabulary and hparams "
            f"ask for text that is {ours}.\n{fitting}, or build the data again."
        )


def _folders_of(pattern: str) -> list[str]:
    return sorted({os.path.dirname(path) for path in remote.expand(pattern)})


# How often each token is in the data.

TOKEN_COUNTS = "token_counts.txt"


def count_tokens(input_ids: np.ndarray, input_mask: np.ndarray, vocab: Vocabulary):
    """The counts of examples, int64 [V]."""
    counts = np.bincount(input_ids[input_mask > 0], minlength=len(vocab))
    counts[[vocab.pad_id, vocab.cls_id, vocab.sep_id, vocab.mask_id]] = 0
    return counts


def write_token_counts(path: str, counts: np.ndarray) -> None:
    """Writes counts, whole or not at all; `UserError` (73) if that fails."""
    atomic_write(path, "".join(f"{n}\n" for n in counts.tolist()))


def read_token_counts(path: str, vocab_size: int) -> np.ndarray:
    """The counts in a file, int64 [vocab_size]; `UserError` (65) for other content."""
    try:
        with open(path, encoding="ascii") as f:
            counts = np.array(f.read().split(), np.int64)
        if len(counts) != vocab_size:
            raise ValueError(f"{len(counts)} lines for {vocab_size} tokens")
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is not the counts of {vocab_size} tokens: {error}.\nBuild the "
            "data again with build_pretraining_dataset.py.",
            EXIT_DAMAGED,
        ) from None
    return counts


def token_count_files(pattern: str) -> list[str]:
    """The files of counts beside the shards that a comma-separated list of globs names.

    Raises `UserError`, saying how to get them, if one is missing.
    """
    folders = sorted({os.path.dirname(path) for path in remote.expand(pattern)})
    found = [os.path.join(folder, TOKEN_COUNTS) for folder in folders]
    for path in found:
        if not os.path.isfile(remote.fetch_once(path)):
            raise UserError(
                f"{path} not found: this run needs to know how often each token is in "
                "the data.\nBuild the data again: "
                "build_pretraining_dataset.py writes it beside manifest.json."
            )
    return found


def token_counts_of(pattern: str, vocab_size: int) -> np.ndarray:
    """The counts of all data that `pattern` names, int64 [vocab_size]."""
    return sum(
        read_token_counts(path, vocab_size) for path in token_count_files(pattern)
    )
