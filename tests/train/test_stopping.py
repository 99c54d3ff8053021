# SPDX-License-Identifier: Apache-2.0
"""Runs that must end early: signals at any time, and the time of a cluster's queue."""

import functools
import os
import signal
import subprocess
import sys
import time

import pytest

from electra_tf.errors import UserError
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.train.stopping import StopRequest, parse_duration
from tests.helpers import forked_runs
from tests.helpers.forked_runs import ROOT, metrics_of, pretrain
from tests.helpers.runs import TINY, by_default, tiny


@pytest.fixture(autouse=True)
def sighup_is_heard():
    """Even by tests that nohup started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5400", 5400),
        ("90s", 90),
        ("90m", 5400),
        ("1h30m", 5400),
        ("1H30", 3630),
        ("2d12h", 216000),
        ("1d1h1m1s", 90061),
        ("0", 0),
    ],
)
def test_durations(text, seconds):
    assert parse_duration(text, "--flag") == seconds


@pytest.mark.parametrize("text", ["", "-5", "1.5h", "1h30x", "30m1h", "soon"])
def test_what_is_no_duration(text):
    with pytest.raises(UserError, match="--flag .* is not a duration") as caught:
        parse_duration(text, "--flag")
    assert caught.value.exit_code == 2


ALL = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.mark.parametrize("number", ALL)
def test_the_first_signal_is_noted_the_second_acts(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.reason() is None
        os.kill(os.getpid(), number)
        assert stop.reason() == number.name
        assert {signal.getsignal(n) for n in ALL} == {signal.SIG_DFL}
    assert signal.getsignal(number) == before


def test_it_may_be_entered_again_and_keeps_what_it_has_noted():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        with stop:
            os.kill(os.getpid(), signal.SIGTERM)
        with stop:
            assert stop.reason() == "SIGTERM"
            # The second one would act.
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_time_that_is_left_must_do_for_a_round_and_a_save():
    stop = StopRequest(100, since=time.monotonic() - 60)
    assert stop.reason() is None and stop.reason(20) is None
    assert stop.reason(41) == "max_wall_time"
    assert StopRequest(100, since=time.monotonic() - 101).reason() == "max_wall_time"
    assert StopRequest().reason(1e9) is None


def test_nohup_is_heeded():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.reason() is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


BLOCK = """
import os, signal, time
from electra_tf.train.stopping import LeaveAtOnce, plain_signals

signal.signal(signal.SIGHUP, signal.{at_start})
with LeaveAtOnce(), plain_signals({seconds}):
    os.kill(os.getpid(), {number})
    time.sleep({seconds} and 2)
print("ended")
"""


@pytest.mark.parametrize(
    ("number", "at_start", "seconds", "code"),
    [
        (int(signal.SIGTERM), "SIG_DFL", 9, -signal.SIGTERM),
        (int(signal.SIGHUP), "SIG_DFL", 9, -signal.SIGHUP),
        (int(signal.SIGHUP), "SIG_IGN", 9, 0),
        (0, "SIG_IGN", 0.2, -signal.SIGALRM),
    ],
)
def test_a_block_that_signals_end(number, at_start, seconds, code):
    """But those that nohup has the program ignore."""
    text = BLOCK.format(number=number, at_start=at_start, seconds=seconds)
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert ("ended" in done.stdout) == (code == 0)


IN_A_FINALIZER = """
import os, signal, time
from electra_tf.train.stopping import LeaveAtOnce

class File:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)

with LeaveAtOnce():
    File()
    time.sleep(60)
"""


def test_signal_in_a_finalizer_ends_the_process():
    """Python ignores exceptions there, so SystemExit does not get out."""
    command = [sys.executable, "-c", IN_A_FINALIZER]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 42
    assert done.stdout.count("SIGTERM: nothing to save") == 1


WAITS = """
import os, signal, time
from electra_tf.train import stopping

stopping.PATIENCE_SECONDS = 0.5
with stopping.StopRequest(several_workers=True) as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    for seconds in {expected}:
        stop.expect(float(seconds))
    time.sleep(2)
    stop.answered()
print('ended')
"""


@pytest.mark.parametrize(
    ("expected", "code"),
    [("", 0), ("inf", 0), ("10", 0), ("0.1", 69), ("10 0.1", 69)],
)
def test_a_worker_may_go_on_as_long_as_a_loop_and_a_save_take(expected, code):
    """For ever before the first was measured; beyond, it is taken to wait for ever."""
    text = WAITS.format(expected=expected.split())
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    said = "SIGTERM: no exchange with the other workers was reached within 0.5 s"
    assert (said in done.stdout) == (code == 69)
    assert ("ended" in done.stdout) == (code == 0)


def interrupt_the_import(number):
    from electra_tf import startup

    startup.import_tensorflow = lambda: os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", ALL)
def test_a_signal_before_training(tiny_data, number):
    before = functools.partial(interrupt_the_import, number)
    run = pretrain(tiny_data, "early", TINY, before=before).wait()
    assert run.returncode == 42, run.stderr
    assert f"{number.name}: nothing to save" in run.stdout
    assert Checkpoints(tiny_data / "models" / "early").newest_intact() is None


def test_max_wall_time(tiny_data):
    hparams = tiny(num_train_steps=10**6, save_checkpoints_steps=10**6)
    before = functools.partial(forked_runs.time_over_at, 20)
    flag = "--max-wall-time=5h"
    run = pretrain(tiny_data, "timed", hparams, flag, before=before).wait()
    assert run.returncode == 42, run.stderr
    directory = tiny_data / "models" / "timed"
    step = Checkpoints(directory).steps()[-1]
    assert step >= 20
    assert f"max_wall_time: saved at step {step}." in run.stdout
    assert len(metrics_of(directory)) == step
    # It goes on, also when it is to end and to save at other steps than was said.
    changed = tiny(num_train_steps=step + 3, save_checkpoints_steps=10**5)
    run = pretrain(tiny_data, "timed", changed).wait()
    assert run.returncode == 0, run.stderr
    assert f"Continuing from {directory}/model.ckpt-{step}." in run.stdout
    for name, old in (("num_train_steps", 10**6), ("save_checkpoints_steps", 10**6)):
        line = f"Changed since step {step}: {name} {old} -> {changed[name]}"
        assert line in run.stdout
    assert len(metrics_of(directory)) == step + 3
    for wrong in ("soon", ""):
        run = pretrain(tiny_data, "timed", hparams, "--max-wall-time", wrong).wait()
        assert run.returncode == 2 and f"{wrong!r} is not a duration" in run.stderr


def signal_in_a_long_step(number):
    """Sends a signal in the middle of a loop that takes three seconds."""
    from electra_tf.train import step as training_step

    run = training_step.TrainingStep.run

    @functools.wraps(run)
    def long(self, iterator, start, count):
        if start >= 3:
            os.kill(os.getpid(), number)
            time.sleep(3)
        return run(self, iterator, start, count)

    training_step.TrainingStep.run = long


@pytest.mark.parametrize(
    "number", by_default([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM])
)
def test_a_long_step_is_waited_for_and_saved(tiny_data, number):
    model = f"long_step_{int(number)}"
    before = functools.partial(signal_in_a_long_step, number)
    run = pretrain(tiny_data, model, TINY, before=before).wait()
    assert run.returncode == 42, run.stdout
    last = metrics_of(tiny_data / "models" / model)[-1]["step"]
    assert last > 3 and f"{number.name}: saved at step {last}." in run.stdout
    assert "nothing to save" not in run.stdout
    assert (tiny_data / "models" / model / f"model.ckpt-{last}.json").is_file()
