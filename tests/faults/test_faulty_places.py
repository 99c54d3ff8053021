# SPDX-License-Identifier: Apache-2.0
"""Whole runs that meet damaged data or a signal.

Full disks: tests/storage/test_checkpoints.py, tests/train/test_workers.py.
"""

import shutil
import time

import pytest

from electra_tf.data import tfrecord
from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.forked_runs import eagerly, metrics_of, pretrain
from tests.helpers.runs import check_ok, check_refused, tiny, write_tiny_data

STEPS = 14  # An epoch has 12.5.
HPARAMS = tiny(num_train_steps=STEPS)


def test_a_damaged_record(tmp_path):
    data = write_tiny_data(tmp_path / "data")
    path = data / "pretrain_tfrecords" / "pretrain_data.tfrecord-1-of-2"
    shutil.copy(path, tmp_path / "whole")
    offsets, _ = tfrecord.scan(path)
    content = bytearray(path.read_bytes())
    content[offsets[3] + 40] ^= 4
    path.write_bytes(content)

    skip = HPARAMS | {"on_bad_record": "skip"}
    record = f"record 3 at byte {offsets[3]}"
    run = pretrain(data, "run", HPARAMS, before=eagerly).wait()
    says = (f"{path}: {record} is damaged", '"on_bad_record": "skip"')
    check_refused(run, 65, *says)
    run = pretrain(data, "run", skip, before=eagerly).wait()
    check_ok(run, f"{path}: 1 damaged records left out", record, "Data: 99 examples")
    rows = metrics_of(data / "models" / "run")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))


@pytest.mark.thorough
def test_a_run_that_evaluates_stops_at_once(tiny_data):
    """It does not wait for the end of the evaluation."""
    hparams = tiny(num_train_steps=8, eval_every_steps=5, num_eval_steps=10**6)
    run = pretrain(tiny_data, "evaluating", hparams)
    directory = tiny_data / "models" / "evaluating"
    deadline = time.monotonic() + 200
    while 5 not in Checkpoints(directory, read_only=True).steps():
        assert time.monotonic() < deadline and run.process.is_alive()
        time.sleep(0.1)
    time.sleep(2)  # in the evaluation
    run.process.terminate()
    ended = run.wait()
    assert ended.returncode == 42, ended.stderr
    assert "SIGTERM: nothing to save." in ended.stdout
    hparams["num_eval_steps"] = 2
    ended = pretrain(tiny_data, "evaluating", hparams).wait()
    check_ok(ended, "Evaluation at step 5: ")
