# SPDX-License-Identifier: Apache-2.0
"""Tiny trained models that all tests of a run share; tests/conftest.py has fixtures."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from electra_tf.storage.files import flock
from tests.helpers import forked_runs, runs, tiny_finetuning

# The hparams of each kind of pre-trained model, beside runs.TINY.
KINDS = {
    "electra": {},
    "electric": {"electric_objective": True},
    "mlm": {"electra_objective": False},
}
OWN = {
    "task_names": [*tiny_finetuning.OWN_TASKS, "sts"],
    "tasks": tiny_finetuning.OWN_TASKS,
    "num_train_epochs": 2.0,
    "max_query_length": 4,
    "beam_size": 5,
}


def make_once(tmp_path_factory, name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder that the first test process to need it fills, for all of them.

    Tests copy what they change.
    """
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / "shared" / name
    done = folder.with_name(f"{name}.done")
    folder.parent.mkdir(exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        flock(lock, waits=True)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            done.touch()
    return folder


def pretrain(data: Path, kind: str) -> None:
    """Fills a data directory; the model of `kind` is models/<kind>, 12 steps."""
    runs.write_tiny_data(data)
    ended = runs.pretrain(data, kind, runs.tiny(**KINDS[kind]))
    assert ended.returncode == 0, ended.stderr


def finetune(data: Path) -> None:
    """Fills a data directory; models/tiny is fine-tuned on cola, sts and chunk.

    What the run has printed is in stdout.txt.
    """
    tiny_finetuning.write_data(data)
    hparams = {"task_names": ["cola", "sts", "chunk"], "log_examples": True}
    ended = tiny_finetuning.finetune(data, "tiny", hparams)
    assert ended.returncode == 0, ended.stderr
    (data / "stdout.txt").write_text(ended.stdout)


def finetune_own(data: Path) -> None:
    """Fills a data directory; models/own is fine-tuned on OWN_TASKS and sts.

    stdout.txt is what the training has printed, test_stdout.txt what a second run has,
    which wrote the predictions of the test sets.
    """
    tiny_finetuning.write_data(data)
    tiny_finetuning.write_own_data(data / "own")
    for name, has_outputs in (("stdout.txt", False), ("test_stdout.txt", True)):
        hparams = OWN | {"write_test_outputs": has_outputs}
        before = forked_runs.eagerly if has_outputs else None
        ended = tiny_finetuning.fork(data, "own", hparams, before=before)
        assert ended.returncode == 0, ended.stderr
        (data / name).write_text(ended.stdout)
