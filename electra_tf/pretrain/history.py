# SPDX-License-Identifier: Apache-2.0
"""The finished part of a run, by its saved settings, and what may still change."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra_tf.config.hparams import show
from electra_tf.config.pretraining import (
    PHASE_INSTEAD,
    PHASE_SETTINGS,
    PretrainingConfig,
)
from electra_tf.errors import UserError
from electra_tf.storage.manifest import CheckpointManifest, read_json


def started_phases(hparams: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """The hparams of each phase of a run that started before a step.

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
      hparams: as `started_phases`.
    """
    if first := hparams.get("stage_one_steps"):
        return [first]
    steps = [phase["num_train_steps"] for phase in hparams.get("phases") or ()]
    return list(itertools.accumulate(steps))[:-1]


def check_passed(
    stored: Mapping[str, Any], config: PretrainingConfig, step: int
) -> None:
    """Raises a UserError if the config changes what the run has finished by `step`.

    Phases that ended before `step`, or end there now, are fixed, and so is the start
    of the current phase. The current phase and later ones may change.

    Args:
      stored: the settings in the checkpoint of `step`.
    """
    usual = {name: stored[name] for name in PHASE_SETTINGS if name in stored}
    before = stored.get("phases") or [usual]
    now = config.phases or [{name: getattr(config, name) for name in PHASE_SETTINGS}]
    end = 0
    for number, (old, new) in enumerate(zip(before, now, strict=False), start=1):
        ended = number < len(before) and end + old["num_train_steps"] < step
        here = end + new["num_train_steps"] - step if number < len(now) else 1
        # A phase may end sooner than planned, with the same settings up to there.
        steps, others = PHASE_SETTINGS[:1], PHASE_SETTINGS[1:]
        names = steps + others if ended else others if here == 0 else steps
        names += tuple(k for k in PHASE_INSTEAD if k in old or k in new)
        old, new = {**stored, **old}, {**vars(config), **new}
        differ = [k for k in names if k in old and old[k] != new[k]]
        if differ and (ended or here <= 0):
            raise UserError(
                f"phase {number} of this run, which is at step {step:,}, had "
                f"{differ[0]} {show(old[differ[0]])}, here it has "
                f"{show(new[differ[0]])}.\nFinished phases cannot be changed: restore "
                "the old value, or choose another --model-name."
            )
        if not ended:
            return
        end += old["num_train_steps"]


def last_step_of(saved: CheckpointManifest | None, config: PretrainingConfig) -> int:
    """The step, from 0, whose stage and phase a model is evaluated in.

    The model of another run counts as finished.
    """
    return max(0, saved.step - 1) if saved else config.num_train_steps - 1


def results_of(model_dir: Path) -> dict[str, Any]:
    """The stored evaluation of a run; empty if there is none.

    Raises `UserError` (65) for a file that is not JSON.
    """
    path = model_dir / "results" / "unsup_results.json"
    return read_json(path) if path.is_file() else {}


def data_of(results: dict[str, Any]) -> str:
    """Names the data of an evaluation, as training data give better metrics."""
    return {
        None: "the run's evaluation data",
        True: "its training data",
        False: "the data of eval_tfrecords",
    }[results.get("is_training_data")]
