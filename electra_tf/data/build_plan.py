# SPDX-License-Identifier: Apache-2.0
"""What a build of pre-training data will do, fixed before it starts.

Each unit of the corpus (`text.units`) has its own stream of random numbers. Units are
dealt to shards by size alone, so that neither the number of processes nor an
interruption has a say in what any shard holds.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple

from electra_tf.text.units import Unit

SCHEMA_VERSION = 1
SHARD_BYTES = 64e6


class Group(NamedTuple):
    """Units and the shards that their examples go to.

    One shard takes the examples in order; several take them in turn.
    """

    units: list[Unit]
    shards: list[int]


def portions(units: Sequence[Unit], num_bytes: int) -> list[list[Unit]]:
    """Cuts units into runs, each ending with the unit that reaches `num_bytes`."""
    parts: list[list[Unit]] = []
    weight = num_bytes
    for unit in units:
        if weight >= num_bytes:
            parts.append([])
            weight = 0
        parts[-1].append(unit)
        weight += unit.weight
    return parts


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
