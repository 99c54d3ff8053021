# SPDX-License-Identifier: Apache-2.0
"""Whole runs on a disk that fills up and on data that are damaged."""

import functools
import os
import resource
import shutil
import subprocess
import threading

import pytest

from electra_tf.data import tfrecord
from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.forked_runs import digest, metrics_of, pretrain
from tests.helpers.runs import tiny, write_tiny_data

STEPS = 40
HPARAMS = tiny(num_train_steps=STEPS, save_checkpoints_steps=20)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(directory)]
    may = os.geteuid() == 0 and shutil.which("mount")
    if not may or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root can mount a small file system")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def limit_memory():
    """Leaves this process 2 GB more than it has now."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    limit = pages * resource.getpagesize() + 2**31
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def test_too_little_memory_is_told_in_words(tmp_path):
    data = write_tiny_data(tmp_path / "data")
    wide = tiny(embedding_size=10**9)
    done = pretrain(data, "wide", wide, before=limit_memory).wait()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    _, message = done.stderr.split("error: not enough memory: ")
    assert message.startswith("OOM when allocating tensor with shape[60,1000000000]")
    assert "gradient_accumulation_steps" in message


def fill(disk):
    """Leaves not a byte."""
    block = bytes(1 << 16)
    with open(disk / "filler", "wb", buffering=0) as f:
        while block:
            try:
                f.write(block)
            except OSError:
                block = block[: len(block) // 2]


def fill_at_step(disk, step):
    """Fills the disk before the step: the metrics do not fit any more."""
    from electra_tf.train import step as training_step

    run = training_step.TrainingStep.run

    def run_on_full_disk(self, iterator, start, count):
        if start >= step and not (disk / "filler").exists():
            for thread in threading.enumerate():
                if thread.name == "checkpoint":  # that of this step is to be whole
                    thread.join()
            fill(disk)
        return run(self, iterator, start, count)

    training_step.TrainingStep.run = run_on_full_disk


def fill_at_save(disk, step):
    """Fills the disk at the start of the save of `step`."""
    from electra_tf.storage import checkpoints

    save = checkpoints.Checkpoints.save

    def save_on_full_disk(self, now, variables):
        if now == step:
            fill(disk)
        save(self, now, variables)

    checkpoints.Checkpoints.save = save_on_full_disk


@pytest.fixture(scope="module")
def straight(tiny_data):
    run = pretrain(tiny_data, "undisturbed", HPARAMS).wait()
    assert run.returncode == 0, run.stderr
    return digest(tiny_data / "models" / "undisturbed", STEPS)


@pytest.mark.parametrize(
    ("fault", "step", "what"),
    [
        # A page of the metrics that is there already takes about 12 rows more.
        pytest.param(fill_at_step, 20, "metrics.jsonl", marks=pytest.mark.thorough),
        # The last one: after an earlier one the metrics might fail first.
        (fill_at_save, STEPS, f"model.ckpt-{STEPS}"),
    ],
)
def test_a_full_disk(tiny_data, straight, small_disk, fault, step, what):
    run_directory = small_disk / "run"
    hparams = HPARAMS | {"model_dir": str(run_directory)}
    before = functools.partial(fault, small_disk, step)
    run = pretrain(tiny_data, "full_disk", hparams, before=before).wait()
    assert run.returncode == 73, run.stderr
    message = run.stderr[f"\n{run.stderr}".rindex("\nerror: ") :]
    assert f"cannot write {run_directory}/{what}" in message
    assert len(message.splitlines()) <= 3 and "Traceback" not in run.stderr
    assert (small_disk / "filler").exists()
    checkpoints = Checkpoints(run_directory, read_only=True)
    assert checkpoints.steps() == [0, 20]
    for saved in checkpoints.steps():
        checkpoints.verify(saved)
    # Still full: the run cannot continue, and what was saved is intact.
    again = pretrain(tiny_data, "full_disk", hparams).wait()
    assert again.returncode == 73, again.stderr
    assert Checkpoints(run_directory, read_only=True).newest_intact().step == 20

    (small_disk / "filler").unlink()
    again = pretrain(tiny_data, "full_disk", hparams).wait()
    assert again.returncode == 0, again.stderr
    assert f"Continuing from {run_directory}/model.ckpt-20." in again.stdout
    assert digest(run_directory, STEPS) == straight


def test_a_damaged_record(tmp_path):
    data = write_tiny_data(tmp_path / "data")
    path = data / "pretrain_tfrecords" / "pretrain_data.tfrecord-1-of-2"
    shutil.copy(path, tmp_path / "whole")
    offsets, _ = tfrecord.scan(path)
    content = bytearray(path.read_bytes())
    content[offsets[3] + 40] ^= 4
    path.write_bytes(content)

    run = pretrain(data, "run", HPARAMS).wait()
    assert run.returncode == 65, run.stderr
    message = run.stderr[run.stderr.rindex("error: ") :]
    assert f"{path}: record 3 at byte {offsets[3]} is damaged" in message
    assert '"on_bad_record": "skip"' in message and "Traceback" not in run.stderr

    run = pretrain(data, "run", HPARAMS | {"on_bad_record": "skip"}).wait()
    assert run.returncode == 0, run.stderr
    assert f"{path}: left out record 3 at byte {offsets[3]}" in run.stdout
    assert "Data: 99 examples" in run.stdout
    assert "1 damaged records left out" in run.stdout
    rows = metrics_of(data / "models" / "run")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert rows[-1]["skipped_records"] == 1
