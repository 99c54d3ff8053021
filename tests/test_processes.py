# SPDX-License-Identifier: Apache-2.0
"""Worker processes end when the process that started them does."""

import functools
import os
import signal
import subprocess
import sys
import time
import weakref

import numpy as np
import pytest

from electra_tf import processes
from electra_tf.errors import UserError
from tests.helpers.process_tree import is_alive
from tests.helpers.runs import ROOT

SCRIPT = """
import os, time
from electra_tf import processes
if __name__ == "__main__":
    with processes.pool(2) as pool:
        print(*{pool.submit(os.getpid).result() for _ in range(20)}, flush=True)
        pool.submit(time.sleep, 1000).result()
"""


def start(folder, script):
    """A script in a process group of its own, as a terminal starts it."""
    (folder / "script.py").write_text(script)
    return subprocess.Popen(
        [sys.executable, folder / "script.py"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A shell makes processes in the background ignore it.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def test_workers_of_a_killed_process_end(tmp_path):
    process = start(tmp_path, SCRIPT)
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert workers and all(map(is_alive, workers))
    process.kill()
    process.wait()
    deadline = time.monotonic() + 30
    while any(map(is_alive, workers)):
        assert time.monotonic() < deadline, "workers outlive their parent"
        time.sleep(0.05)


def test_killed_worker_is_an_error():
    with pytest.raises(UserError, match="fewer --num-processes"):  # noqa: SIM117
        with processes.pool(1) as pool:
            pid = pool.submit(os.getpid).result()
            os.kill(pid, signal.SIGKILL)
            pool.submit(os.getpid).result()


def test_results_are_not_accumulated():
    """Each may be as long as a vocabulary, and there are thousands."""
    seen = []
    for number, found in processes.results(2, np.full, [(9, i) for i in range(20)]):
        assert found.tolist() == [number] * 9
        assert sum(ref() is not None for ref in seen) <= 1
        seen.append(weakref.ref(found))
        del found
    assert len(seen) == 20


INTERRUPTED = """
import os, time
from electra_tf import cli, processes
def work(number):
    print(os.getpid(), flush=True)
    time.sleep(1000)
def main(argv):
    for _ in processes.results(2, work, [(i,) for i in range(9)]):
        pass
if __name__ == "__main__":
    cli.run(main)
"""


def test_ctrl_c_ends_running_and_waiting_work(tmp_path):
    process = start(tmp_path, INTERRUPTED)
    try:
        workers = [int(process.stdout.readline()) for _ in range(2)]
        # A terminal sends it to all of the group, in any order.
        for pid in workers:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.5)
        assert all(map(is_alive, workers)) and process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, error) == (130, "error: interrupted\n")
    assert not any(map(is_alive, workers))


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
