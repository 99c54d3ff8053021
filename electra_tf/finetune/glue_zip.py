# SPDX-License-Identifier: Apache-2.0
"""One archive of GLUE's eleven files, from the test predictions of several runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from electra_tf.finetune.classification import GLUE, zipped
from electra_tf.paths import escape
from electra_tf.storage.files import atomic_write
from electra_tf.storage.remote import expand, fetch

NAMES = tuple(name for task in GLUE.values() for name in task.submission.values())
# Nothing here learns WNLI, as in the original: the more frequent of its classes.
WNLI, _WNLI_ROWS, _WNLI_CLASS = "WNLI", 146, "0"


def write(results: Path, trial: int, log: Callable[[str], None]) -> Path | None:
    """Writes GLUE.zip of the predictions that the runs of a model have left.

    Args:
      results: the directory with the runs' `<tasks>_test_predictions`.
      trial: of each run; of a task in several runs the newest file counts.

    Returns: its path; None, saying what is missing, where a file is.
    """
    files = {}
    for name in NAMES:
        pattern = f"*_test_predictions/trial_{trial}/{name}.tsv"
        found = map(Path, map(fetch, expand(f"{escape(str(results))}/{pattern}")))
        newest = max(found, key=lambda path: path.stat().st_mtime, default=None)
        if newest:
            files[f"{name}.tsv"] = newest.read_bytes()
    missing = [name for name in NAMES if f"{name}.tsv" not in files]
    if missing:
        log(f"No GLUE.zip of trial {trial} yet: {', '.join(missing)} missing.")
        return None
    rows = "".join(f"{row}\t{_WNLI_CLASS}\n" for row in range(_WNLI_ROWS))
    files[f"{WNLI}.tsv"] = f"index\tprediction\n{rows}".encode()
    path = results / f"GLUE_trial_{trial}.zip"
    atomic_write(path, zipped(files))
    log(f"All files of GLUE (WNLI by its majority): {path}")
    return path
