# SPDX-License-Identifier: Apache-2.0
"""The phases of a run: steps in a row that have data, batches and schedule in common.

A run without the hparam `phases` has one, with `two_stage` two that differ only in what
is learned. Each phase is told by a PretrainingConfig of its own, that of an ordinary
run; the model, the optimizer's state and the step counter are those of the whole run.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from electra_tf.config.hparams import check, show
from electra_tf.errors import UserError
from electra_tf.paths import escape

if TYPE_CHECKING:
    from electra_tf.config.pretraining import PretrainingConfig

# What a phase may have of its own, and where its files lie.
SETTINGS = (
    *("num_train_steps", "max_seq_length", "train_batch_size"),
    *("gradient_accumulation_steps", "learning_rate", "num_warmup_steps"),
    *("schedule", "lr_decay_power", "decay_proportion"),
)
PLACES = ("pretrain_tfrecords", "eval_tfrecords")


class Phase(NamedTuple):
    """Some steps of a run.

    Attributes:
      number: of the phase, from 1.
      first, end: its steps are first ... end - 1, counted from 0.
      config: the settings of these steps, without other phases and stages.
      stage: of two_stage, 1 or 2; None where all learn at one time.
    """

    number: int
    first: int
    end: int
    config: PretrainingConfig
    stage: int | None = None

    def __str__(self) -> str:
        c = self.config
        return (
            f"Phase {self.number}: steps {self.first:,} to {self.end:,}, "
            f"{c.train_batch_size} x {c.max_seq_length} tokens, learning rate "
            f"{c.learning_rate:g} ({c.schedule}, {c.num_warmup_steps:,} warm-up steps)"
        )


def of(config: PretrainingConfig) -> list[Phase]:
    """The phases of a run, in order."""
    configs, stages = [config], [None]
    if config.phases:
        configs = [_config_of(config, phase) for phase in config.phases]
        stages = [None] * len(configs)
    elif (first := config.stage_one_steps) is not None:
        whole = dataclasses.replace(config, stage_one_steps=None)
        parts = (first, config.num_train_steps - first)
        configs = [dataclasses.replace(whole, num_train_steps=n) for n in parts]
        stages = [1, 2]
    ends = list(itertools.accumulate(c.num_train_steps for c in configs))
    rows = zip([0, *ends], ends, configs, stages, strict=False)
    return [Phase(i, *row) for i, row in enumerate(rows, start=1)]


def ahead(config: PretrainingConfig, step: int) -> list[Phase]:
    """The phases that are not over at a step; the last of a run never is."""
    parts = of(config)
    return [phase for phase in parts if phase.end > step or phase is parts[-1]]


def notes(config: PretrainingConfig) -> list[str]:
    """What a user should be told of the phases of a run; not errors."""
    found, parts = [], of(config)
    for phase in parts:
        part = phase.config
        where = f" in phase {phase.number}" if len(parts) > 1 else ""
        if part.num_warmup_steps > part.num_train_steps and not config.debug:
            found.append(
                f"num_warmup_steps ({part.num_warmup_steps}) exceeds "
                f"num_train_steps ({part.num_train_steps}){where}: the learning "
                "rate never reaches its peak"
            )
    chunk = config.model_config().attention_chunk_size
    longest = max(phase.config.max_seq_length for phase in parts)
    if chunk >= longest:
        found.append(
            f"attention_chunk_size ({chunk}) has no effect: no sequence is longer, "
            f"max_seq_length being {longest}"
        )
    return found


def _config_of(config: PretrainingConfig, phase: Mapping[str, Any]):
    usual = config.usual_locations()
    given = config.pretrain_tfrecords
    if given == usual["pretrain_tfrecords"]:
        given = None
    records = records_of(phase, config.phases, given, config.data_dir)
    evaluated = config.eval_tfrecords
    if evaluated == usual["eval_tfrecords"]:
        evaluated = records
    own = {"pretrain_tfrecords": records, "eval_tfrecords": evaluated} | phase
    if not isinstance(records, list):  # It is for those phases that have several.
        own["sampling_alpha"] = type(config).sampling_alpha
    return dataclasses.replace(config, **own, phases=[])


def records_of(
    phase: Mapping[str, Any],
    phases: Sequence[Mapping[str, Any]],
    given: str | list | dict | None,
    data_dir: str | os.PathLike,
) -> str | list | dict:
    """The pattern, or patterns, of a phase's data.

    Args:
      phase, phases: one of a run's, all of them.
      given: the run's own pattern, where it has one.
    """
    found = phase.get("pretrain_tfrecords") or given
    folder = os.path.join(escape(str(data_dir)), folder_of(phase, phases))
    return found or os.path.join(folder, "pretrain_data.tfrecord*")


def folder_of(phase: Mapping[str, Any], phases: Sequence[Mapping[str, Any]]) -> str:
    """Where a phase's data are in a data directory, unless that is set."""
    several = len({phase["max_seq_length"] for phase in phases}) > 1
    return "pretrain_tfrecords" + (f"_{phase['max_seq_length']}" if several else "")


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
            if name not in SETTINGS + PLACES:
                raise UserError(
                    f"{name} in {place}: it is one for the whole run.\nA phase has "
                    f"{', '.join(SETTINGS + PLACES)}."
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


def without_places(phases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The phases as they are stored with checkpoints."""
    return [{k: v for k, v in one.items() if k not in PLACES} for one in phases]


def begun(hparams: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """What a run had done at a step: the hparams of each phase that had begun.

    Args:
      hparams: the saved config of the run.
    """
    found, end = [], 0
    for phase in hparams.get("phases") or [{}]:
        if not found or end < step:
            found.append({**hparams, **phase})
        end += phase.get("num_train_steps", 0)
    return found


def switches(hparams: Mapping[str, Any]) -> list[int]:
    """The steps at which a run goes from one phase to the next.

    Args:
      hparams: as `begun`.
    """
    if first := hparams.get("stage_one_steps"):
        return [first]
    steps = [phase["num_train_steps"] for phase in hparams.get("phases") or ()]
    return list(itertools.accumulate(steps))[:-1]


def check_passed(
    stored: Mapping[str, Any], config: PretrainingConfig, step: int
) -> None:
    """Raises a UserError if a run would not have come to `step` as it did.

    What lies behind cannot be changed: phases that ended before `step`, or end there
    now, and where the phase of that step began. It and later ones may have other
    settings and ends.

    Args:
      stored: the settings in the checkpoint of `step`.
    """
    before = stored.get("phases") or [{k: stored[k] for k in SETTINGS if k in stored}]
    now = config.phases or [{name: getattr(config, name) for name in SETTINGS}]
    end = 0
    for number, (old, new) in enumerate(zip(before, now, strict=False), start=1):
        ended = number < len(before) and end + old["num_train_steps"] < step
        here = end + new["num_train_steps"] - step if number < len(now) else 1
        # A phase may end sooner than it was to, but not be another one up to there.
        names = SETTINGS if ended else SETTINGS[1:] if here == 0 else SETTINGS[:1]
        differ = [k for k in names if k in old and old[k] != new[k]]
        if differ and (ended or here <= 0):
            raise UserError(
                f"phase {number} of this run, which is at step {step:,}, had "
                f"{differ[0]} {show(old[differ[0]])}, here it has "
                f"{show(new[differ[0]])}.\nWhat is behind a run cannot be changed: set "
                "it back, or choose another --model-name. Later phases may be changed."
            )
        if not ended:
            return
        end += old["num_train_steps"]


def batch_size_note(
    stored: Mapping[str, Any], config: PretrainingConfig, step: int
) -> str | None:
    """What another `train_batch_size` in a phase that has begun does to its reading.

    None where it is what it was. Batch k is a function of the settings and k, so the
    data are read as if the phase had always had it.

    Args:
      stored: the settings in the checkpoint of `step`.
    """
    name, steps = "train_batch_size", "num_train_steps"
    before = stored.get("phases") or [
        {steps: step, name: stored.get(name, config.train_batch_size)}
    ]
    now = config.phases or [{steps: step, name: config.train_batch_size}]
    first = here = there = 0
    for old, new in zip(before, now, strict=False):
        if step <= first + old[steps]:
            here, there = ((step - first) * part[name] for part in (new, old))
            break
        first += old[steps]
    if here == there:
        return None
    what = "are left out" if here > there else "are read again"
    return (
        f"Note: {name} was {old[name]} up to here. Data are read as if it had been "
        f"{new[name]} from the beginning: examples {min(here, there):,} to "
        f"{max(here, there):,} {what}. A new phase goes on where this one stops "
        "(docs/phases.md)."
    )


def other_data_note(
    stored: Mapping[str, Any],
    settings: Mapping[str, Any],
    config: PretrainingConfig,
    step: int,
) -> str | None:
    """What other data, or other shares of them, do to the reading of a begun phase.

    None where they are what they were. Data of phases that are over are not read any
    more, those of later ones were not yet.

    Args:
      stored, settings: in the checkpoint of `step`, and of this start; their "data"
        tell of the data of each phase.
    """
    began = [phase.number - 1 for phase in ahead(config, step) if phase.first < step]
    alpha, data = "sampling_alpha", stored.get("data", settings["data"])
    same = all(data[i] == settings["data"][i] for i in began if i < len(data))
    if not step or same and stored.get(alpha, settings[alpha]) == settings[alpha]:
        return None
    return (
        "Note: the data were others up to here. Epochs, and the examples that come "
        "next, are counted as if they had been these from the beginning."
    )
