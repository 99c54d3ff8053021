# SPDX-License-Identifier: Apache-2.0
"""The workers of a run by TF_CONFIG, and how they meet; runs that must end early."""

import functools
import json
import os
import signal
import threading
import time
import types

import pytest

from electra_tf.errors import UserError
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.train.supervisor import Cluster, StopRequest, parse_duration
from tests.helpers.forked_runs import before_steps, metrics_of, pretrain
from tests.helpers.runs import TINY, python, refused, tiny
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


@pytest.mark.parametrize("own", ["worker", "ps"])
def test_other_jobs_are_refused(monkeypatch, own):
    task = {"type": own, "index": 0}
    text = json.dumps({"cluster": {"ps": ["a:1"], "worker": ["b:1"]}, "task": task})
    refused(lambda: cluster(text, monkeypatch), "parameter servers are not supported")


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
    done = python("-c", WAITS.format(here=here, there=there))
    assert done.returncode == 69
    assert "peer_timeout" in done.stderr


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("5400", 5400), ("90s", 90), ("1h30m", 5400), ("1H30", 3630)),
        *(("1d1h1m1s", 90061), ("0", 0)),
        *((wrong, None) for wrong in ("", "-5", "1.5h", "1h30x", "30m1h")),
    ],
)
def test_durations(text, seconds):
    if seconds is not None:
        assert parse_duration(text, "--flag") == seconds
        return
    with pytest.raises(UserError, match="--flag .* is not a duration") as caught:
        parse_duration(text, "--flag")
    assert caught.value.exit_code == 2


ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def default_signals():
    """Also if the tests run under nohup, or in the background of a script."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", ALL)
def test_the_first_signal_is_noted_the_second_acts(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.reason() is None
        os.kill(os.getpid(), number)
        assert stop.reason() == number.name
        assert {signal.getsignal(n) for n in ALL} == {signal.SIG_DFL}
    assert signal.getsignal(number) == before


def test_a_run_stops_if_the_next_round_and_save_take_too_long():
    stop = StopRequest(100, since=time.monotonic() - 60)
    assert stop.reason() is None and stop.reason(20) is None
    assert stop.reason(41) == "max_wall_time"
    assert StopRequest(100, since=time.monotonic() - 101).reason() == "max_wall_time"
    assert StopRequest().reason(1e9) is None


BLOCK = """
import os, signal, time
from electra_tf.train.supervisor import leave_at_once, plain_signals

signal.signal(signal.SIGHUP, signal.{at_start})
with leave_at_once(), plain_signals({seconds}):
    os.kill(os.getpid(), {number})
    time.sleep({seconds} and 0.6)
print("ended")
"""


@pytest.mark.parametrize(
    ("number", "at_start", "seconds", "code"),
    [
        (int(signal.SIGTERM), "SIG_DFL", 9, -signal.SIGTERM),
        (int(signal.SIGHUP), "SIG_IGN", 9, 0),  # by nohup
        (0, "SIG_IGN", 0.2, -signal.SIGALRM),
    ],
)
def test_a_block_that_signals_end(number, at_start, seconds, code):
    text = BLOCK.format(number=number, at_start=at_start, seconds=seconds)
    done = python("-c", text)
    assert done.returncode == code, done.stderr
    assert ("ended" in done.stdout) == (code == 0)


AFTER_A_SIGNAL = """
import os, signal
from electra_tf.train.supervisor import StopRequest

with StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    print("recorded", flush=True)
    with stop.leave_at_once():
        print("ended")
"""


def test_a_block_that_an_earlier_signal_ends():
    done = python("-c", AFTER_A_SIGNAL)
    assert done.returncode == 42, done.stderr
    assert "recorded\nSIGTERM: nothing to save." in done.stdout
    assert "ended" not in done.stdout


def interrupt_the_import():
    from electra_tf import startup

    startup.import_tensorflow = lambda: os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_before_training(tiny_data):
    run = pretrain(tiny_data, "early", TINY, before=interrupt_the_import).wait()
    assert run.returncode == 42, run.stderr
    assert "SIGTERM: nothing to save" in run.stdout
    assert Checkpoints(tiny_data / "models" / "early").newest_intact() is None


def end_time():
    from electra_tf.train import supervisor

    later = types.SimpleNamespace(monotonic=lambda: time.monotonic() + 1e9)
    supervisor.time = later


@pytest.mark.thorough
def test_max_wall_time(tiny_data):
    hparams = tiny(num_train_steps=10**6, save_checkpoints_steps=10**6)
    before = functools.partial(before_steps, 20, end_time)
    flag = "--max-wall-time=5h"
    run = pretrain(tiny_data, "timed", hparams, flag, before=before).wait()
    assert run.returncode == 42, run.stderr
    directory = tiny_data / "models" / "timed"
    step = Checkpoints(directory).steps()[-1]
    assert step >= 20
    assert f"max_wall_time: saved at step {step}." in run.stdout
    assert len(metrics_of(directory)) == step
