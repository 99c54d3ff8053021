# SPDX-License-Identifier: Apache-2.0
"""The workers of a run by TF_CONFIG, and how they meet."""

import json
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from electra_tf.errors import UserError
from electra_tf.train.supervisor import Cluster
from tests.helpers.runs import ROOT
from tests.helpers.workers import tf_configs


def cluster(text, monkeypatch, *timeout):
    monkeypatch.setenv("TF_CONFIG", text)
    return Cluster.from_environment(*timeout)


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


@pytest.mark.parametrize("job", ["ps", "evaluator"])
@pytest.mark.parametrize("own", ["worker", "other"])
def test_other_jobs_are_refused(monkeypatch, job, own):
    """TensorFlow would wait for them."""
    task = {"type": job if own == "other" else own, "index": 0}
    text = json.dumps({"cluster": {job: ["a:1"], "worker": ["b:1"]}, "task": task})
    with pytest.raises(UserError, match=f"TF_CONFIG lists the job {job}: only .chief"):
        cluster(text, monkeypatch)


def meet(facts, monkeypatch, timeout=20.0, delays=()):
    """What each of the workers that have facts raises, None for nothing."""
    texts = tf_configs(max(facts) + 1)
    raised = {}

    def come(index, one):
        time.sleep(dict(delays).get(index, 0.0))
        raised[index] = None
        try:
            one.meet(facts[index])
        except UserError as error:
            raised[index] = error

    threads = [
        threading.Thread(target=come, args=(i, cluster(texts[i], monkeypatch, timeout)))
        for i in facts
        if facts[i] is not None
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [raised[i] for i in sorted(raised)]


@pytest.mark.parametrize("late", [0, 2])
def test_workers_wait_for_a_late_one(monkeypatch, late):
    facts = dict.fromkeys(range(3), {"a": 1, "b": [1.5, None]})
    assert meet(facts, monkeypatch, delays={late: 0.3}) == [None] * 3


def test_all_workers_are_refused_if_one_differs(monkeypatch):
    facts = {0: {"a": 1, "b": 2}, 1: {"a": 1, "b": 2}, 2: {"a": 1, "b": 3, "c": 4}}
    for error in meet(facts, monkeypatch):
        assert error.exit_code == 2
        assert "worker 2 (127.0.0.1:" in str(error)
        assert "has b 3, worker 0 (127.0.0.1:" in str(error)
        assert "has 2 (2 differ)." in str(error)


@pytest.mark.thorough
@pytest.mark.parametrize("missing", [0, 1])
def test_an_absent_worker_is_named_by_all(monkeypatch, missing):
    facts = dict.fromkeys(range(3), {}) | {missing: None}
    errors = meet(facts, monkeypatch, timeout=5.0)
    assert len(errors) == 2
    for error in errors:
        assert error.exit_code == 69
        assert f"waited 5 s for worker {missing} (127.0.0.1:" in str(error)


WAITS = """
import time
from electra_tf.train.supervisor import Cluster

with Cluster(({here!r}, {there!r}), timeout=0.2).patience():
    time.sleep(20)
"""


def test_waiting_for_an_exchange_ends():
    here, there = json.loads(tf_configs(2)[0])["cluster"]["worker"]
    command = [sys.executable, "-c", WAITS.format(here=here, there=there)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 69
    assert "peer_timeout" in done.stderr


def launched(shell, folder, tools=(), **environment):
    """What a launcher prints; Python prints its TF_CONFIG."""
    tools = {
        "scontrol": "printf 'node1\nnode2\n'",
        "srun": 'SLURM_PROCID=1 exec "$@"',
        "python3": 'echo "$TF_CONFIG"',
    } | dict(tools)
    for name, body in tools.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    paths = f"{folder}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", shell],
        env={**os.environ, **environment, "PATH": paths},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


LAUNCHERS = ROOT / "examples" / "cluster"
SLURM = {"SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("name", "pattern", "environment", "places"),
    [
        ("slurm.sh", "(.*)", SLURM, "node1 node2"),
        (
            "job.yaml",
            r"- \|\n(.*?)\n +resources",
            {"JOB_COMPLETION_INDEX": "1"},
            "electra-0.electra electra-1.electra",
        ),
    ],
    ids=["slurm", "kubernetes"],
)
def test_example_launchers(monkeypatch, tmp_path, name, pattern, environment, places):
    script = re.search(pattern, (LAUNCHERS / name).read_text(), re.S)[1]
    found = cluster(launched(script, tmp_path, **environment), monkeypatch)
    assert found.places == tuple(f"{place}:23456" for place in places.split())
    assert found.index == 1


@pytest.mark.parametrize(
    ("codes", "is_requeued"),
    [((0, 0), False), ((42, 42), True), ((137, 69), True), ((143, 69), True)]
    + [((2, 142), False), ((2, 69), False), ((65, 69), False)],
)
def test_the_slurm_job_is_requeued_only_where_that_helps(codes, is_requeued, tmp_path):
    tools = {
        "scontrol": "[[ $1 == requeue ]] && echo again; true",
        "srun": 'SLURM_PROCID=0 "$@"; a=$?; SLURM_PROCID=1 "$@"; b=$?\n'
        "exit $((a > b ? a : b))",  # as srun does
        "python3": f"codes=({codes[0]} {codes[1]}); exit ${{codes[$SLURM_PROCID]}}",
    }
    (tmp_path / "failed.7").touch()  # of an earlier run of the job
    script = (LAUNCHERS / "slurm.sh").read_text()
    assert ("again" in launched(script, tmp_path, tools, **SLURM)) == is_requeued
