# SPDX-License-Identifier: Apache-2.0
"""A build of data on the workers of Apache Beam: whole groups, by the same plan."""

import functools
import json
from collections.abc import Sequence

from electra_tf import beam
from electra_tf.data import shard_writing
from electra_tf.data.build_plan import Group
from electra_tf.data.shard_writing import Plan
from electra_tf.errors import UserError
from electra_tf.text.units import Unit


def make_shards(plan: Plan, groups: Sequence[Group], beam_args: str) -> None:
    """Makes the shards that are not there yet; UserError if some are still missing."""

    def is_missing(index: int) -> bool:
        return shard_writing.read_group(plan, index) is None

    left = list(filter(is_missing, range(len(groups))))
    if left:
        print(f"{len(left)} of {len(groups)} groups of shards with Beam", flush=True)
        tasks = [json.dumps([i, groups[i].shards, groups[i].units]) for i in left]
        beam.for_each(
            beam.step_of(functools.partial(_make_group, plan)),
            tasks,
            plan.folder,
            beam_args,
        )
    missing = list(filter(is_missing, left))
    if missing:
        raise UserError(
            f"Beam says that all is done, but {len(missing)} of {len(groups)} groups "
            f"of shards are not in {plan.folder}.\nDo the workers write to the same "
            "file system? Run the command again to go on."
        )


def _make_group(plan: Plan, task: str) -> None:
    index, shards, units = json.loads(task)
    group = Group([Unit(*unit) for unit in units], shards)
    shard_writing.make_group(plan, index, group)


def number_portions(
    plan: Plan, portions: Sequence[Sequence[Unit]], beam_args: str
) -> None:
    """Writes the numbers by which `deduplication` compares."""
    tasks = [json.dumps(task) for task in enumerate(portions)]
    beam.for_each(
        beam.step_of(functools.partial(_number_portion, plan)),
        tasks,
        plan.folder,
        beam_args,
    )


def _number_portion(plan: Plan, task: str) -> None:
    portion, units = json.loads(task)
    shard_writing.number_portion(plan, portion, [Unit(*unit) for unit in units])
