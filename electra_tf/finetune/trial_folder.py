# SPDX-License-Identifier: Apache-2.0
"""The folder of a trial: its hparams; what may be written there, what must be there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.errors import UserError
from electra_tf.storage.files import PARTIAL
from electra_tf.storage.manifest import read_json
from electra_tf.storage.remote import fetch_once, names_in
from electra_tf.storage.remote_run import bring_model

CONFIG = "config.json"


def hparams_in(folder: Path) -> dict[str, Any]:
    """The hparams of a trial; {} for a folder that is none.

    Raises `UserError`: 65 for a file that cannot be read, 2 naming unknown hparams.
    """
    path = Path(fetch_once(str(folder / CONFIG)))
    content = read_json(path) if path.is_file() else {}
    if not content.get("task_names"):
        return {}
    FinetuningConfig.checked(content, str(path))
    return content


def check_is_free(folder: str) -> None:
    """Raises a `UserError` where a trial is to go into a folder of something else.

    A trial's folder is written into, and removed as a whole where it is not to stay.
    """
    left = ("run.lock", PARTIAL)  # by one that did not come as far as its hparams
    others = [n for n in names_in(folder) if not any(sign in n for sign in left)]
    if others and not hparams_in(Path(folder)):
        raise UserError(
            f"{folder} is to be the folder of a trial, but holds {others[0]!r} and no "
            f"{CONFIG} of a trial.\n"
            'Set "model_dir" to another place, or move the folder away.'
        )


def check_is_kept(folder: str, trial: int, purpose: str, hparam: str) -> None:
    """Raises a `UserError` where the model of a trial is not there.

    Args:
      purpose: what it cannot do then.
      hparam: what limits the trials that do this.
    """
    bring_model(folder)
    if not os.path.isdir(folder):
        advice = "Train it first."
        if trial > 1:
            advice = (
                "Train it, with keep_all_models true, or set "
                f"{hparam} to 1: the first trial's model always stays."
            )
        raise UserError(
            f"the model of trial {trial}, {folder}, is not there, so it cannot "
            f"{purpose}.\n{advice}"
        )
