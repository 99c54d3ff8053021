# SPDX-License-Identifier: Apache-2.0
"""The hparam `phases`: what a phase may have of its own, and how it is completed.

A run without it has one phase, with the objective two_stage two that differ only in
what is learned (`PretrainingConfig.run_phases`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from electra_tf.config.hparams import check, show
from electra_tf.errors import UserError

# What each phase has, the run's being that of the last; what a phase may have instead
# of the run's; where its files lie.
SETTINGS = (
    *("num_train_steps", "max_seq_length", "train_batch_size"),
    *("gradient_accumulation_steps", "learning_rate", "num_warmup_steps"),
    *("schedule", "lr_decay_power", "decay_proportion"),
)
INSTEAD = (
    *("mask_prob", "temperature", "temperature_start", "unigram_share"),
    "sampling_alpha",
)
PLACES = ("pretrain_tfrecords", "eval_tfrecords")


def checked(cls: type, phases: list[Any], source: str) -> list[dict[str, Any]]:
    """The phases, each hparam of them checked by itself.

    Args:
      cls: of the hparams.
      phases: as a user gives them.
      source: where they come from, for the message.
    """
    result = []
    for number, phase in enumerate(phases, start=1):
        place = f"phase {number} of {source}"
        if not isinstance(phase, dict):
            raise UserError(f"{place} is {show(phase)}; it must be an object {{...}}")
        result.append(check(cls, phase, place))
        if "num_train_steps" not in phase:
            raise UserError(f"{place} does not say its num_train_steps")
        for name in phase:
            if name not in SETTINGS + INSTEAD + PLACES:
                raise UserError(
                    f"{name} in {place}: it is one for the whole run.\nA phase has "
                    f"{', '.join(SETTINGS + INSTEAD + PLACES)}."
                )
    return result


def without_idle(hparams: Mapping[str, Any] | None) -> dict[str, Any]:
    """Hparams without what their phases say themselves, as a saved config has it.

    As settings of the run they would be those of other phases that are given instead.
    """
    hparams = hparams or {}
    given = hparams.get("phases")
    if not given:
        return dict(hparams)
    steps = sum(phase["num_train_steps"] for phase in given)
    last = {**given[-1], "num_train_steps": steps}
    return {
        name: value
        for name, value in hparams.items()
        if name not in SETTINGS
        or value != last.get(name)
        or not all(name in phase for phase in given)
    }


def resolve(explicit: dict[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The hparams of a run with phases: each phase complete, the run's as its last.

    Args:
      explicit: what a user has set.
      usual: the values of what is not set.

    Raises a UserError for a setting of the whole run that no phase would look at.
    """
    base, given = {**usual, **explicit}, explicit["phases"]
    phases = [{**{name: base[name] for name in SETTINGS}, **one} for one in given]
    steps = sum(phase["num_train_steps"] for phase in phases)
    last = {name: phases[-1][name] for name in SETTINGS} | {"num_train_steps": steps}
    for name in SETTINGS:
        idle = name in explicit and all(name in phase for phase in given)
        if idle and explicit[name] != last[name]:
            raise UserError(
                f"{name} {show(explicit[name])} would have no effect, since each phase "
                f"has its own{' (the run their sum)' if name == SETTINGS[0] else ''}: "
                f"leave it out, or set it in phases"
            )
    return {**explicit, **last, "phases": phases}


def folder_of(phase: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]) -> str:
    """Where a phase's data are in a data directory, unless that is set."""
    several = len({phase["max_seq_length"] for phase in phases}) > 1
    return "pretrain_tfrecords" + (f"_{phase['max_seq_length']}" if several else "")


def without_places(phases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The phases as they are stored with checkpoints."""
    return [{k: v for k, v in one.items() if k not in PLACES} for one in phases]
