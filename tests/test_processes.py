# SPDX-License-Identifier: Apache-2.0
"""Worker processes end when the process that started them does."""

import os
import signal
import subprocess
import sys
import time

import pytest

from electra_tf import processes
from electra_tf.errors import UserError
from tests.helpers.runs import ROOT

SCRIPT = """
import os, time
from electra_tf import processes
if __name__ == "__main__":
    with processes.pool(2) as pool:
        print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
        pool.submit(time.sleep, 1000).result()
"""


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_workers_of_a_killed_process_end(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert workers and all(map(is_alive, workers))
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


def test_a_killed_worker_is_told():
    with pytest.raises(UserError, match="fewer --num-processes"):  # noqa: SIM117
        with processes.pool(1) as pool:
            pid = pool.submit(os.getpid).result()
            os.kill(pid, signal.SIGKILL)
            pool.submit(os.getpid).result()


def test_each_has_a_gpu_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert processes.visible_gpus() == ["2", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert processes.visible_gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(
        os, "listdir", lambda path: ["nvidia10", "nvidia2", "nvidiactl"]
    )
    assert processes.visible_gpus() == ["2", "10"]
