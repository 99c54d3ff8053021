# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a machine."""

import os

from electra_tf import processes


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
