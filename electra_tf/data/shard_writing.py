# SPDX-License-Identifier: Apache-2.0
"""The work of one process in a build of data: parts of a group, and its shards.

What is written depends on the plan and the text alone, under a name of its own until it
is whole. So a group may be made twice, by processes that know nothing of each other.
"""

import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from electra_tf.data import build_plan, deduplication, tfrecord, token_counts
from electra_tf.data.build_plan import Group
from electra_tf.data.record_making import BuildSettings, Counts, RecordMaker, scan
from electra_tf.storage import remote
from electra_tf.storage.files import atomic_write, cannot_write, sync_directory
from electra_tf.storage.planned_folder import hidden, unique
from electra_tf.text.units import Unit

_HELD_BYTES = 64 << 20  # of records, before they are written to their shards


class Plan(NamedTuple):
    """What every process of a build knows.

    Attributes:
        folder: where the shards go.
        settings: what they are made by.
        num_shards: how many there are.
        is_only_unit: the corpus is a single unit.
        vocab_sha256: of the vocabulary that the file must have, on every machine.
        identity: a hash of all that makes two builds the same.
    """

    folder: str
    settings: BuildSettings
    num_shards: int
    is_only_unit: bool
    vocab_sha256: str
    identity: str


@functools.lru_cache(1)
def _maker(plan: Plan) -> RecordMaker:
    verdicts = None
    if plan.settings.filters.compare:
        verdicts = deduplication.Verdicts(plan.folder, plan.identity)
    maker = RecordMaker(plan.settings, plan.is_only_unit, verdicts)
    advice = "Every machine needs the same file there."
    maker.vocab.check_same(plan.vocab_sha256, "the build was begun", advice)
    return maker


def number_portion(plan: Plan, portion: int, units: Sequence[Unit]) -> None:
    """Writes the numbers by which `deduplication` compares, if they are not there."""
    if not deduplication.is_numbered(plan.folder, portion):
        settings = plan.settings
        documents = (scan(unit, settings) for unit in units)
        try:
            deduplication.write_numbers(
                plan.folder, portion, settings.filters, documents
            )
        except OSError as e:
            raise cannot_write(plan.folder, e) from None


def make_part(
    plan: Plan, path: str, units: Sequence[Unit]
) -> tuple[Counts, np.ndarray]:
    """Writes the records of some units to a file; returns their counts and tokens'."""
    maker = _maker(plan)
    total = Counts()
    maker.token_counts[:] = 0
    try:
        with open(path, "wb") as f:
            for unit in units:
                for records, counts in maker.records(unit):
                    f.write(records)
                    total = total.plus(counts)
    except OSError as e:
        raise cannot_write(path, e) from None
    return total, maker.token_counts.copy()


def make_group(plan: Plan, index: int, group: Group) -> None:
    """Makes the shards of a group, if they are not there."""
    if read_group(plan, index) is None:
        path = part_path(plan, index, 0)
        counts, tokens = make_part(plan, path, group.units)
        try:
            finish_group(plan, index, group, [path], counts, tokens)
        except OSError as e:
            raise cannot_write(plan.folder, e) from None


def part_path(plan: Plan, group: int, part: int) -> str:
    """A name for a part that no other process gives."""
    name = f".part-{group:05d}-{part:05d}-{unique()}"
    return os.path.join(plan.folder, name)


def _group_path(plan: Plan, index: int) -> str:
    return os.path.join(plan.folder, f".group-{index:05d}.json")


def _counts_path(plan: Plan, index: int) -> str:
    return os.path.join(plan.folder, f".token_counts-{index:05d}")


def _shard_path(plan: Plan, shard: int) -> str:
    return os.path.join(plan.folder, build_plan.shard_name(shard, plan.num_shards))


def finish_group(
    plan: Plan,
    index: int,
    group: Group,
    parts: Sequence[str],
    counts: Counts,
    tokens: np.ndarray,
) -> None:
    """Joins the parts of a group, which it removes, to its shards and records them."""
    paths = [_shard_path(plan, shard) for shard in group.shards]
    letters = unique()
    temporary = [hidden(path, letters) for path in paths]
    if len(group.shards) == 1:
        files = [_join(parts, temporary[0], counts.examples)]
    else:
        files = _deal(parts, temporary)
    for file, path in zip(files, paths, strict=True):
        file["name"] = os.path.basename(path)
    entry = {"counts": counts.in_json(), "files": files}
    token_counts.write(_counts_path(plan, index), tokens)
    atomic_write(_group_path(plan, index), json.dumps(entry) + "\n")
    # Recorded before the shards have their names: a shard with its name is whole.
    for source, path in zip(temporary, paths, strict=True):
        os.replace(source, path)
    sync_directory(plan.folder)
    for path in [*paths, *state_files(plan, index)]:
        remote.put(path)
    for path in parts:
        os.unlink(path)


def state_files(plan: Plan, index: int) -> tuple[str, str]:
    """What a group leaves beside its shards until the build is finished."""
    return _counts_path(plan, index), _group_path(plan, index)


def read_entry(plan: Plan, index: int) -> dict[str, Any] | None:
    """The counts and files of a group that was made, else None."""
    try:
        with open(_group_path(plan, index), encoding="utf-8") as f:
            return json.load(f)
    except (FileNotFoundError, ValueError):
        return None


def read_group(
    plan: Plan, index: int, there: Mapping[str, int] | None = None
) -> dict[str, Any] | None:
    """The counts and files of a group whose shards are all there, else None.

    `there`: the sizes of the files in a bucket, for an output directory in one.
    """
    entry = read_entry(plan, index)
    if entry is None or not os.path.exists(_counts_path(plan, index)):
        return None
    for file in entry["files"]:
        path = os.path.join(plan.folder, file["name"])
        if remote.is_remote(path):
            size = (there or {}).get(file["name"])
        else:
            size = os.path.getsize(path) if os.path.exists(path) else None
        if size != file["bytes"]:
            return None
    return entry


def read_token_counts(plan: Plan, index: int, vocab_size: int) -> np.ndarray:
    """How often each token is in the shards of a group, int64 [vocab_size]."""
    return token_counts.read(_counts_path(plan, index), vocab_size)


def _join(parts: list[str], path: str, num_examples: int) -> dict:
    """Writes files one after the other to `path`."""
    digest = hashlib.sha256()
    with open(path, "wb") as f:
        for part in parts:
            with open(part, "rb") as source:
                while block := source.read(4 << 20):
                    digest.update(block)
                    f.write(block)
        return _closed(f, num_examples, digest)


def _deal(parts: list[str], paths: list[str]) -> list[dict]:
    """Deals the records of files to several files in turn, as the original does."""
    counts = [0] * len(paths)
    turn = held = 0
    buffers: list[list[bytes]] = [[] for _ in paths]
    for path in paths:
        open(path, "wb").close()
    for part in parts:
        for record in tfrecord.read_records(part):
            framed = tfrecord.frame(record)
            buffers[turn].append(framed)
            counts[turn] += 1
            turn = (turn + 1) % len(paths)
            held += len(framed)
            if held >= _HELD_BYTES:
                _append(buffers, paths)
                held = 0
    _append(buffers, paths)
    files = []
    for path, count in zip(paths, counts, strict=True):
        with open(path, "r+b") as f:
            files.append(_closed(f, count, hashlib.file_digest(f, "sha256")))
    return files


def _append(buffers: list[list[bytes]], paths: list[str]) -> None:
    """Empties buffers into their files, of which a thousand are too many to be open."""
    for path, buffer in zip(paths, buffers, strict=True):
        if buffer:
            with open(path, "ab") as f:
                f.writelines(buffer)
            buffer.clear()


def _closed(f: BinaryIO, num_examples: int, digest) -> dict:
    """Makes a shard durable; returns its entry in the manifest, without its name."""
    f.flush()
    os.fsync(f.fileno())
    return {
        "name": "",
        "examples": num_examples,
        "bytes": os.fstat(f.fileno()).st_size,
        "sha256": digest.hexdigest(),
    }
