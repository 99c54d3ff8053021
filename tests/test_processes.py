# SPDX-License-Identifier: Apache-2.0
"""GPUs and logs of processes."""

import os
import sys

import pytest

from electra_tf import processes
from electra_tf.console import Console


def test_visible_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert processes.gpus() == ["2", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert processes.gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(
        os, "listdir", lambda path: ["nvidia10", "nvidia2", "nvidiactl"]
    )
    # In a container with the host's third and eleventh, CUDA counts from 0.
    assert processes.gpus() == ["0", "1"]


def test_log_is_not_written_through_a_link(tmp_path):
    other, log = tmp_path / "other", tmp_path / "trial_1.log"
    other.write_text("precious")
    # The second appends to the log of the first.
    swap = "import os; os.remove({!r}); os.symlink({!r}, {!r})"
    swap = swap.format(str(log), str(other), str(log))
    commands = [sys.executable, "-c", swap], [sys.executable, "-c", "print(1)"]
    log.symlink_to(other)
    job = processes.Commands("trial 1", commands, log)
    with pytest.raises(OSError, match="symbolic links"):
        processes.run_commands([job], 1, Console(silent=True))
    assert other.read_text() == "precious"
