# SPDX-License-Identifier: Apache-2.0
"""What a build of pre-training data will do, fixed before it starts.

The corpus is divided into units (a file, a piece of a very long file, an archive, a
range of documents), each with its own stream of random numbers. Units are dealt to
shards by size alone, so that neither the number of processes nor an interruption has
a say in what any shard holds.
"""

import hashlib
import json
import os
import random
from collections.abc import Sequence
from typing import NamedTuple

from electra_tf.errors import UserError
from electra_tf.text import corpus

SCHEMA_VERSION = 1
STATE_FILE = "build.json"  # while the build is unfinished
MANIFEST_FILE = "manifest.json"

SHARD_BYTES = 64e6
# Longer files are cut, so that several processes can share them.
PIECE_BYTES = 32 << 20
# Work is handed out in parts of about this much text.
PART_BYTES = 4 << 20


class Unit(NamedTuple):
    """A stretch of text that one builder reads from beginning to end.

    Attributes:
        kind: "text", "archive" or "tfds".
        path: of the file; of tensorflow_datasets, NAME:FIELD.
        name: of the file within the corpus.
        start, end: bytes; of tensorflow_datasets, documents.
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


class Group(NamedTuple):
    """Units and the shards that their examples go to.

    One shard takes the examples in order; several take them in turn.
    """

    units: list[Unit]
    shards: list[int]

    def parts(self) -> list[list[Unit]]:
        """The units in portions of work, in order."""
        parts: list[list[Unit]] = []
        weight = PART_BYTES
        for unit in self.units:
            if weight >= PART_BYTES:
                parts.append([])
                weight = 0
            parts[-1].append(unit)
            weight += unit.weight
        return parts


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


def text_corpus(corpus_dir: str) -> Corpus:
    """The text files below a directory."""
    return _file_corpus("text", corpus_dir, corpus.list_files(corpus_dir))


def archive_corpus(directory: str) -> Corpus:
    """The tar archives of text files in a directory."""
    return _file_corpus("archive", directory, corpus.list_files(directory))


def _file_corpus(kind: str, root: str, paths: Sequence[str]) -> Corpus:
    units = []
    listing = hashlib.sha256()
    total = 0
    for path in paths:
        name = os.path.relpath(path, root) if path != root else os.path.basename(path)
        size = os.path.getsize(path)
        listing.update(f"{name}\t{size}\n".encode("utf-8", "surrogateescape"))
        total += size
        step = PIECE_BYTES if kind == "text" else max(size, 1)
        for start in range(0, size, step):
            end = min(start + step, size)
            units.append(Unit(kind, path, name, start, end, end - start))
    if not units:
        raise UserError(
            f"the {len(paths)} files in {root} are empty: there is no text to learn "
            "from."
        )
    return Corpus(units, len(paths), total, listing.hexdigest())


def tfds_corpus(spec: str, data_dir: str | None) -> Corpus:
    """The documents of a prepared data set of tensorflow_datasets."""
    source = corpus.open_tfds(spec, data_dir)
    count = source.num_examples
    if not count:
        raise UserError(f"--tfds {spec}: the split train has no documents.")
    size = max(source.num_bytes, count)
    step = max(1, count * PART_BYTES // size)
    units = []
    for start in range(0, count, step):
        end = min(start + step, count)
        weight = (end - start) * size // count
        units.append(Unit("tfds", spec, spec, start, end, weight))
    listing = f"{source.name}\t{source.field}\t{count}\t{source.num_bytes}"
    return Corpus(units, count, size, hashlib.sha256(listing.encode()).hexdigest())


def rng_of(unit: Unit, seed: int, is_only_unit: bool) -> random.Random:
    """The random numbers of a unit.

    A corpus of a single file has those of `random.seed(seed)`, which makes it equal to
    what the original program builds from that file after that call.
    """
    if is_only_unit:
        return random.Random(seed)
    # Bytes seed as text does, and names of files need not be UTF-8.
    return random.Random(f"{seed}/{unit.stream}".encode("utf-8", "surrogateescape"))


def deal(units: Sequence[Unit], num_shards: int, seed: int) -> list[Group]:
    """Deals units to shards of about equal size, in a random order fixed by the seed.

    The order puts parts of the whole corpus into every shard. Where there are more
    shards than units, a unit has several.
    """
    units = list(units)
    random.Random(f"{seed}/order").shuffle(units)
    total = sum(unit.weight for unit in units)
    groups: dict[int, list[Unit]] = {}
    before = 0
    for unit in units:
        middle = before + unit.weight / 2
        shard = min(int(middle * num_shards / total), num_shards - 1) if total else 0
        groups.setdefault(shard, []).append(unit)
        before += unit.weight
    starts = sorted(groups)
    ends = [*starts[1:], num_shards]
    first = [0, *starts[1:]]  # the shards before the first unit's are its own too
    return [
        Group(groups[start], list(range(begin, end)))
        for start, begin, end in zip(starts, first, ends, strict=True)
    ]


def shard_name(shard: int, num_shards: int) -> str:
    """The original's names: pretrain_data.tfrecord-3-of-17, padded to five digits."""
    return f"pretrain_data.tfrecord-{shard:05d}-of-{num_shards:05d}"


# The state of an output directory.


def load_state(
    output_dir: str, settings: dict, there: dict[str, int] | None = None
) -> dict | None:
    """The state of an unfinished build of these settings, None for a fresh start.

    Args:
      there: the sizes of the files in a bucket, whose shards need not be here.

    Raises UserError if the directory holds anything else: nothing is ever wiped.
    """
    try:
        found = sorted(there or os.listdir(output_dir))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise UserError(f"cannot use {output_dir}: {e.strerror}.") from None
    if not found:
        return None
    for name in (MANIFEST_FILE, STATE_FILE):
        if name in found:
            state = _read_json(os.path.join(output_dir, name))
            _check_same(output_dir, state.get("settings", {}), settings)
            if name == MANIFEST_FILE:
                _check_complete(output_dir, state, there or {})
            return state
    raise UserError(
        f"{output_dir} already holds something ({found[0]}"
        f"{', ...' if len(found) > 1 else ''}), and not a build of this data.\n"
        "Nothing is overwritten: name another --output-dir, or remove it yourself."
    )


def _read_json(path: str) -> dict:
    try:
        with open(path, encoding="utf-8") as f:
            return json.load(f)
    except (OSError, ValueError) as e:
        raise UserError(
            f"{path} cannot be read ({e}).\nName another --output-dir, or remove "
            "this one yourself."
        ) from None


def _check_same(output_dir: str, theirs: dict, ours: dict) -> None:
    different = [
        f"{name} {_brief(theirs.get(name))}, now {_brief(ours.get(name))}"
        for name in sorted(theirs.keys() | ours.keys())
        if theirs.get(name) != ours.get(name)
    ]
    if different:
        raise UserError(
            f"{output_dir} holds data built with {'; '.join(different)}.\nNothing is "
            "overwritten: name another --output-dir, or give the settings of before."
        )


def _brief(value) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_complete(output_dir: str, manifest: dict, there: dict[str, int]) -> None:
    for file in manifest["files"]:
        path = os.path.join(output_dir, file["name"])
        size = there.get(file["name"])
        if size is None and os.path.exists(path):
            size = os.path.getsize(path)
        if size != file["bytes"]:
            has = "is missing" if size is None else f"has {size} bytes"
            raise UserError(
                f"{path} {has}, but the manifest of this finished build lists it with "
                f"{file['bytes']}.\nRestore it, or build into another --output-dir."
            )
