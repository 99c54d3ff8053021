# SPDX-License-Identifier: Apache-2.0
"""Who the workers are by TF_CONFIG, and how they meet."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time

import pytest

from electra_tf.errors import UserError
from electra_tf.train.cluster import Cluster
from tests.helpers.runs import ROOT
from tests.helpers.workers import tf_configs


def cluster(text, monkeypatch, *timeout):
    monkeypatch.setenv("TF_CONFIG", text)
    return Cluster.from_environment(*timeout)


def test_without_tf_config_there_are_no_others(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    alone = Cluster.from_environment()
    assert alone.is_chief and not alone.has_peers
    alone.meet({"a": 1})


@pytest.mark.parametrize(
    ("job", "task", "index"), [("chief", 0, 0), ("worker", 0, 1), ("worker", "1", 2)]
)
def test_the_chief_comes_first(monkeypatch, job, task, index):
    jobs = {"worker": ["b:1", "c:1"], "chief": ["a:1"]}
    text = json.dumps({"cluster": jobs, "task": {"type": job, "index": task}})
    found = cluster(text, monkeypatch)
    assert found.places == ("a:1", "b:1", "c:1")
    assert found.index == index and found.is_chief == (index == 0)
    assert found.index_of("worker", 1) == 2
    assert found.name(1) == "worker 1 (b:1)"


WORKER = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        json.dumps(WORKER | {"task": {"type": "worker", "index": 1}}),
        json.dumps(WORKER | {"task": {"type": "worker", "index": -1}}),
        json.dumps(WORKER | {"task": {"type": "worker", "index": "x"}}),
        json.dumps(WORKER | {"task": {"type": "chief", "index": 0}}),
        json.dumps(WORKER | {"cluster": {"worker": ["a"]}}),
        json.dumps(WORKER | {"cluster": {"worker": ["a:1", "a:x"]}}),
        json.dumps(WORKER | {"cluster": {"worker": ["a:1", "a:1"]}}),
        json.dumps(WORKER | {"cluster": {"worker": ["a:1", "b:99999"]}}),
        *(
            json.dumps(
                {
                    "cluster": {"chief": ["a:1"], "worker": ["b:1"], "evaluator": []},
                    "task": {"type": job, "index": index},
                }
            )
            for job, index in [
                ("evaluator", 0),
                ("ps", 0),
                ("worker", -1),
                ("chief", 1),
            ]
        ),
    ],
)
def test_what_is_no_tf_config(monkeypatch, text):
    with pytest.raises(UserError, match="which names no worker") as e:
        cluster(text, monkeypatch)
    assert e.value.exit_code == 2


def meet(facts, monkeypatch, timeout=20.0, delays=()):
    """What each of the workers that have facts raises, None for nothing."""
    texts = tf_configs(max(facts) + 1)
    raised = {}

    def come(index, one):
        time.sleep(dict(delays).get(index, 0.0))
        try:
            one.meet(facts[index])
        except UserError as error:
            raised[index] = error
        else:
            raised[index] = None

    all_of_them = [
        threading.Thread(target=come, args=(i, cluster(texts[i], monkeypatch, timeout)))
        for i in facts
        if facts[i] is not None
    ]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join(60)
    return [raised[i] for i in sorted(raised)]


@pytest.mark.parametrize("late", [0, 1, 2])
def test_workers_wait_for_the_late_one(monkeypatch, late):
    facts = dict.fromkeys(range(3), {"a": 1, "b": [1.5, None]})
    assert meet(facts, monkeypatch, delays={late: 1.0}) == [None] * 3


def test_workers_that_differ(monkeypatch):
    facts = {0: {"a": 1, "b": 2}, 1: {"a": 1, "b": 2}, 2: {"a": 1, "b": 3, "c": 4}}
    errors = meet(facts, monkeypatch)
    for error in errors:
        assert error.exit_code == 2
        assert "worker 2 (127.0.0.1:" in str(error)
        assert "has b 3, worker 0 (127.0.0.1:" in str(error)
        assert "has 2 (2 differ)." in str(error)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_worker_that_does_not_come_is_named_by_all(monkeypatch, missing):
    facts = dict.fromkeys(range(3), {}) | {missing: None}
    errors = meet(facts, monkeypatch, timeout=5.0)
    assert len(errors) == 2
    for error in errors:
        assert error.exit_code == 69
        assert f"waited 5 s for worker {missing} (127.0.0.1:" in str(error)


def test_a_worker_that_came_and_was_killed_has_not_come(monkeypatch):
    text, _ = tf_configs(2)
    chief = cluster(text, monkeypatch, 3.0)
    host, port = chief.places[0].split(":")

    def come_and_go():
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                with socket.create_connection((host, int(port))) as connection:
                    return connection.sendall(b'{"index": 1, "facts": {}}\n')

    # The third one is waited for, so that the second has time to go.
    waits = chief._replace(places=(*chief.places, "127.0.0.1:1"))
    thread = threading.Thread(target=come_and_go)
    thread.start()
    with pytest.raises(UserError, match="worker 1 .*worker 2 ") as e:
        waits.meet({})
    thread.join()
    assert e.value.exit_code == 69


def test_a_port_that_is_taken(monkeypatch):
    text, _ = tf_configs(2)
    one = cluster(text, monkeypatch)
    host, port = one.places[0].split(":")
    with socket.create_server((host, int(port))):
        with pytest.raises(UserError, match="cannot use its port") as e:
            one.meet({})
    assert e.value.exit_code == 2


def launched(shell, folder, tools=(), **environment):
    """What a text of docs/distributed.md prints; Python prints its TF_CONFIG."""
    tools = {
        "scontrol": "printf 'node1\nnode2\n'",
        "srun": 'SLURM_PROCID=1 exec "$@"',
        "python3": 'echo "$TF_CONFIG"',
    } | dict(tools)
    for name, body in tools.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    paths = f"{folder}:{os.environ['PATH']}"
    run = subprocess.run(
        ["bash", "-c", shell],
        env={**os.environ, **environment, "PATH": paths},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


WAITS = """
import time
from electra_tf.train.cluster import Cluster

with Cluster(({here!r}, {there!r}), timeout=0.2).patience():
    time.sleep(20)
"""


@pytest.mark.parametrize("is_there", [True, False])
def test_whoever_waits_too_long_says_what_it_knows(is_there):
    here, there = json.loads(tf_configs(2)[0])["cluster"]["worker"]
    program = WAITS.format(here=here, there=there)
    with contextlib.ExitStack() as stack:
        if is_there:
            host, _, port = there.rpartition(":")
            stack.enter_context(socket.create_server((host, int(port))))
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
        )
    assert done.returncode == 69
    message = "error: no exchange was reached within 0.2 s; "
    message += "all can be reached" if is_there else f"worker 1 ({there}) cannot be"
    assert message in done.stderr and "peer_timeout" in done.stderr


def slurm_script():
    text = (ROOT / "docs" / "distributed.md").read_text()
    return re.search(r"```bash\n(.*?)```", text, re.S)[1]


SLURM = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7"}


def test_the_slurm_script_of_the_docs(monkeypatch, tmp_path):
    found = cluster(launched(slurm_script(), tmp_path, **SLURM), monkeypatch)
    assert found.places == ("node1:23456", "node2:23456") and found.index == 1


@pytest.mark.parametrize(
    ("codes", "goes_on"),
    [((0, 0), False), ((42, 42), True), ((137, 69), True), ((142, 142), True)]
    + [((143, 69), True), ((129, 69), True), ((2, 142), False)]
    + [((code, 69), False) for code in (1, 2, 65, 73)],
)
def test_the_slurm_job_goes_on_only_where_that_helps(codes, goes_on, tmp_path):
    tools = {
        "scontrol": "[[ $1 == requeue ]] && echo again; true",
        "srun": 'SLURM_PROCID=0 "$@"; a=$?; SLURM_PROCID=1 "$@"; b=$?\n'
        "exit $((a > b ? a : b))",  # as srun does
        "python3": f"codes=({codes[0]} {codes[1]}); exit ${{codes[$SLURM_PROCID]}}",
    }
    # What a run before has left does not count.
    (tmp_path / "failed.7").touch()
    printed = launched(slurm_script(), tmp_path, tools, **SLURM)
    assert ("again" in printed) == goes_on


def test_the_slurm_job_waits_for_what_is_saved(tmp_path):
    """SLURM signals the shell as well as Python."""
    saves = "trap 'sleep 0.5; exit 42' TERM; kill $PPID $$; sleep 5"
    tools = {
        "scontrol": "[[ $1 == requeue ]] && echo again; true",
        "python3": saves,
    }
    assert "again" in launched(slurm_script(), tmp_path, tools, **SLURM)


def test_the_kubernetes_job_of_the_docs(monkeypatch, tmp_path):
    text = (ROOT / "docs" / "distributed.md").read_text()
    script = re.search(r"- \|\n(.*?)\n +resources", text, re.S)[1]
    printed = launched(script, tmp_path, JOB_COMPLETION_INDEX="1")
    found = cluster(printed, monkeypatch)
    assert found.places == ("electra-0.electra:23456", "electra-1.electra:23456")
    assert found.index == 1
