# SPDX-License-Identifier: Apache-2.0
"""What a build of pre-training data will do, fixed before it starts.

Each unit of the corpus (`text.units`) has its own stream of random numbers. Units are
dealt to shards by size alone, so that neither the number of processes nor an
interruption has a say in what any shard holds.
"""

import json
import os
import random
from collections.abc import Sequence
from typing import NamedTuple

from electra_tf.errors import UserError
from electra_tf.text.units import Unit

SCHEMA_VERSION = 1
STATE_FILE = "build.json"  # while the build is unfinished
MANIFEST_FILE = "manifest.json"

SHARD_BYTES = 64e6
# Work is handed out in parts of about this much text.
PART_BYTES = 4 << 20


class Group(NamedTuple):
    """Units and the shards that their examples go to.

    One shard takes the examples in order; several take them in turn.
    """

    units: list[Unit]
    shards: list[int]

    def parts(self) -> list[list[Unit]]:
        """The units in portions of work, in order."""
        return portions(self.units, PART_BYTES)


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
