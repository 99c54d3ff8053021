# SPDX-License-Identifier: Apache-2.0
"""What Beam needs on the other side: a job server and a pool of workers."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time

from tests.helpers.ports import free_port
from tests.helpers.process_tree import children_of, command_of
from tests.helpers.runs import ROOT

TWO_PROCESSES = "--direct_num_workers=2 --direct_running_mode=multi_processing"


@contextlib.contextmanager
def job_server(folder):
    """Options for a portable job server whose workers are processes of another one."""
    ports = free_port(), free_port()
    commands = (
        [
            "apache_beam.runners.portability.local_job_service_main",
            f"--port={ports[0]}",
        ],
        ["apache_beam.runners.worker.worker_pool_main", f"--service_port={ports[1]}"],
    )
    # The pool starts its workers as "python".
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    started = []
    with contextlib.ExitStack() as stack:
        for port, command in zip(ports, commands, strict=True):
            log = stack.enter_context(open(folder / f"{port}.log", "wb"))
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(process)
        for port in ports:
            wait_for_port(port)
        yield (
            f"--runner=PortableRunner --job_endpoint=localhost:{ports[0]} "
            f"--environment_type=EXTERNAL --environment_config=localhost:{ports[1]}"
        )


def wait_for_port(port):
    deadline = time.monotonic() + 120
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("localhost", port)),
        ):
            return
        assert time.monotonic() < deadline, f"no server on port {port}"
        time.sleep(0.2)


def workers_below(pid):
    """Processes that work for Beam among the descendants of a process."""
    found = []
    for child in children_of(pid):
        program, *arguments = command_of(child) or [""]
        is_python = re.search(r"python[\d.]*$", program)
        if is_python and any("sdk_worker" in argument for argument in arguments):
            found.append(child)
        found += workers_below(child)
    return found
