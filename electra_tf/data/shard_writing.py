# SPDX-License-Identifier: Apache-2.0
"""The tasks of a build of data; what they write depends on plan and text alone."""

import functools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from electra_tf.data import build_plan, deduplication, token_counts
from electra_tf.data.record_making import BuildSettings, Counts, RecordMaker, scan
from electra_tf.jobs.folder import OWN
from electra_tf.text.units import Unit

_HELD_BYTES = 64 << 20  # of records, before they are written to their shards


class Plan(NamedTuple):
    """What every process of a build needs.

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
        folder = os.path.join(plan.folder, OWN)
        verdicts = deduplication.Verdicts(folder, plan.identity)
    maker = RecordMaker(plan.settings, plan.is_only_unit, verdicts)
    advice = "Every machine needs the same file there."
    maker.vocab.check_same(plan.vocab_sha256, "the build was begun", advice)
    return maker


def number(plan: Plan, task: tuple[int, list], folder: str) -> dict[str, Any]:
    """Writes the numbers by which the documents of a portion are compared."""
    portion, units = task
    settings = plan.settings
    documents = (scan(Unit(*unit), settings) for unit in units)
    deduplication.write_numbers(folder, portion, settings.filters, documents)
    return {}


def compare(plan: Plan, firsts: list[int], folder: str) -> dict[str, Any]:
    """Writes the verdicts on all documents; see `deduplication.compare`."""
    numbers = os.path.join(plan.folder, OWN)
    deduplication.compare(numbers, firsts, plan.settings.filters, folder)
    return {}


def token_counts_file(first_shard: int) -> str:
    """The name of the token counts of a group."""
    return f".token_counts-{first_shard:05d}"


def write_shards(
    plan: Plan, task: tuple[list, list[int]], folder: str
) -> dict[str, Any]:
    """Writes the shards of a `Group` and its token counts.

    Records are dealt to several shards in turn, as the original does.
    """
    units, shards = task
    maker, total = _maker(plan), Counts()
    maker.token_counts[:] = 0
    names = [build_plan.shard_name(shard, plan.num_shards) for shard in shards]
    paths = [os.path.join(folder, name) for name in names]
    for path in paths:
        open(path, "wb").close()
    examples = [0] * len(paths)
    buffers: list[list[bytes]] = [[] for _ in paths]
    held = 0
    for unit in units:
        for records, counts in maker.records(Unit(*unit)):
            for place, buffer in enumerate(buffers):
                first = (place - total.examples) % len(paths)
                own = records[first :: len(paths)]
                buffer += own
                examples[place] += len(own)
            total = total.plus(counts)
            held += sum(map(len, records))
            if held >= _HELD_BYTES or len(paths) == 1:
                _append(buffers, paths)
                held = 0
    _append(buffers, paths)
    counts_path = os.path.join(folder, token_counts_file(shards[0]))
    token_counts.write(counts_path, maker.token_counts)
    return {"counts": total.in_json(), "examples": examples}


def _append(buffers: Sequence[list[bytes]], paths: Sequence[str]) -> None:
    """Empties buffers into their files, of which a thousand are too many to be open."""
    for path, buffer in zip(paths, buffers, strict=True):
        if buffer:
            with open(path, "ab") as f:
                f.writelines(buffer)
            buffer.clear()
