# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are whole or absent, damaged ones are passed over, runs do not mix."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.storage import files
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.storage.files import atomic_write
from electra_tf.storage.lock import RunLock
from electra_tf.storage.stored_tensors import of_checkpoint
from tests.helpers.runs import ROOT


def state(value: float) -> dict[str, tf.Variable]:
    return {
        "electra/embeddings/word_embeddings": tf.Variable(
            np.full([50, 4], value, "f4")
        ),
        "electra/embeddings/word_embeddings/adam_m": tf.Variable(
            np.full([50, 4], -value, "f4")
        ),
        "global_step": tf.Variable(int(value), dtype=tf.int64),
    }


class Run:
    """A run directory and what was logged about it."""

    def __init__(self, directory, **kwargs):
        self.log = []
        self.directory = directory
        self.checkpoints = Checkpoints(directory, log=self.log.append, **kwargs)

    def saved(self, *steps):
        for step in steps:
            self.checkpoints.save(step, state(step))
        return self

    def restored(self) -> int | None:
        """The step that a new process would continue from, its values checked."""
        manifest = self.checkpoints.newest_intact()
        if manifest is None:
            return None
        variables = state(-1)
        self.checkpoints.restore(manifest, variables)
        for name, expected in state(manifest.step).items():
            np.testing.assert_array_equal(variables[name], expected)
        return manifest.step

    def names(self) -> set[str]:
        return set(os.listdir(self.directory))


def test_a_checkpoint_has_the_originals_names(tmp_path):
    Run(tmp_path).saved(3, 7)
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-7")
    names = dict(tf.train.list_variables(str(tmp_path / "model.ckpt-7")))
    assert names == {k: list(v.shape) for k, v in state(7).items()}
    assert Run(tmp_path).restored() == 7


def test_an_empty_or_absent_directory_has_no_checkpoint(tmp_path):
    assert Run(tmp_path / "absent").restored() is None
    assert Run(tmp_path).restored() is None


def test_saving_a_step_twice_writes_once(tmp_path):
    run = Run(tmp_path).saved(3)
    before = (tmp_path / "model.ckpt-3.json").stat().st_mtime_ns
    run.saved(3)
    assert (tmp_path / "model.ckpt-3.json").stat().st_mtime_ns == before


def test_the_oldest_are_removed(tmp_path):
    run = Run(tmp_path, keep=2).saved(1, 2, 3, 4)
    assert run.checkpoints.steps() == [3, 4]
    assert len(run.names()) == 2 * 3 + 1
    assert "model.ckpt-3" in (tmp_path / "checkpoint").read_text()


@pytest.mark.parametrize("operation", ["rmtree", "replace"])
def test_an_old_one_that_cannot_be_removed_ends_no_run(
    tmp_path, monkeypatch, operation
):
    """As on NFS, where the folder of a file that somebody reads cannot go."""
    run = Run(tmp_path, keep=2).saved(1, 2)
    module = {"rmtree": shutil, "replace": os}[operation]
    function = getattr(module, operation)

    def busy(path, *args, **kwargs):
        if "model.ckpt-1" in str(path):
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        return function(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, operation, busy)
        run.saved(3, 4)
    said = [line for line in run.log if "step 1 could not be removed: Dir" in line]
    assert len(said) == {"rmtree": 1, "replace": 2}[operation]
    later = Run(tmp_path, keep=2)
    assert later.restored() == 4
    later.saved(5)
    assert later.checkpoints.steps() == [4, 5] and len(later.names()) == 2 * 3 + 1


def flip_bit(path, position):
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 1 << (position % 8)
    path.write_bytes(data)


def truncate(path, position):
    os.truncate(path, position % path.stat().st_size)


FAULTS = {"flip": flip_bit, "truncate": truncate, "remove": lambda p, _: p.unlink()}
SUFFIXES = ("data-00000-of-00001", "index", "json")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, fault, suffix):
    random = np.random.default_rng(len(fault + suffix))
    Run(tmp_path / "good").saved(10, 20)
    for number in range(1 if fault == "remove" else 12):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "good", directory)
        FAULTS[fault](directory / f"model.ckpt-20.{suffix}", int(random.integers(1e6)))
        before = set(os.listdir(directory))

        reader = Run(directory, read_only=True)
        assert reader.restored() == 10
        assert reader.names() == before

        run = Run(directory)
        assert run.restored() == 10
        assert "step 20" in run.log[0] and f"model.ckpt-20.{suffix}" in run.log[0]
        # Set aside, not removed, and out of the way of the next save.
        assert {n.removesuffix(".corrupt") for n in run.names()} == before
        assert run.saved(20).restored() == 20


def test_a_reader_takes_what_the_training_beside_it_leaves(tmp_path, monkeypatch):
    """Between its looking and its reading a checkpoint may be removed for a newer."""
    writer = Run(tmp_path, keep=1).saved(10)
    reader = Run(tmp_path, read_only=True).checkpoints
    verify = Checkpoints.verify

    def late(self, step):
        if step == 10:
            writer.saved(20)
        return verify(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "verify", late)
        found = reader.newest_intact()
    assert found.step == 20
    writer.saved(30)
    variables = state(-1)
    assert reader.restore_newest(found, variables).step == 30
    for name, expected in state(30).items():
        np.testing.assert_array_equal(variables[name], expected)
    (tmp_path / "model.ckpt-30.index").unlink()
    with pytest.raises(UserError, match="no intact checkpoint"):
        reader.newest_intact()
    with pytest.raises(UserError):
        reader.restore_newest(found, variables)


def test_without_an_intact_checkpoint_the_run_does_not_start_over(tmp_path):
    Run(tmp_path).saved(10, 20)
    flip_bit(tmp_path / "model.ckpt-20.index", 5)
    truncate(tmp_path / "model.ckpt-10.data-00000-of-00001", 5)
    before = os.listdir(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match=r"no intact checkpoint.*ckpt-20") as e:
            Run(tmp_path).restored()
        assert e.value.exit_code == 65
    assert sorted(os.listdir(tmp_path)) == sorted(before)


def test_a_pointer_without_checkpoints_is_not_a_new_run(tmp_path):
    Run(tmp_path).saved(10)
    for path in tmp_path.glob("model.ckpt-*"):
        path.unlink()
    with pytest.raises(UserError, match="checkpoint") as e:
        Run(tmp_path).restored()
    assert e.value.exit_code == 65


def test_a_damaged_pointer_does_not_matter(tmp_path):
    Run(tmp_path).saved(10)
    (tmp_path / "checkpoint").write_bytes(b"\0garbage")
    assert Run(tmp_path).restored() == 10


class Killed(BaseException):
    """Stands for the end of the process: no clean-up of the program runs."""


class Killer:
    """Ends the process, so to speak, before its n-th operation on files."""

    OPERATIONS = (
        (os, "replace"),
        (os, "fsync"),
        (os, "mkdir"),
        (os, "rmdir"),
        (os, "unlink"),
        (shutil, "rmtree"),
    )

    def __init__(self, patch, n: int):
        self.left = n
        for module, name in self.OPERATIONS:
            patch.setattr(module, name, self.guarded(getattr(module, name)))

    def guarded(self, function):
        def call(*args, **kwargs):
            self.left -= 1
            if self.left <= 0:
                raise Killed
            return function(*args, **kwargs)

        return call


def test_what_was_just_saved_stays_below_higher_steps(tmp_path):
    Run(tmp_path, keep=1).saved(30)
    Run(tmp_path, keep=1).saved(10)
    assert Run(tmp_path).restored() == 10
    assert not (tmp_path / "model.ckpt-30.json").exists()


@pytest.mark.parametrize("keep", [0, 1])
def test_a_kill_between_any_two_file_operations_loses_nothing(
    tmp_path, monkeypatch, keep
):
    completed = False
    n = 0
    while not completed:
        n += 1
        directory = tmp_path / str(n)
        run = Run(directory, keep=keep).saved(10)
        with monkeypatch.context() as patch:
            Killer(patch, n)
            try:
                run.saved(20)
                completed = True
            except Killed:
                pass
        after = Run(directory, keep=keep)
        step = after.restored()
        assert step in (10, 20)
        assert not [name for name in after.names() if name.endswith(".partial")]
        # Every file that is left belongs to a whole checkpoint.
        for left in after.checkpoints.steps():
            after.checkpoints.verify(left)
        assert after.saved(20, 30).restored() == 30
    assert step == 20 and n > 10


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    run = Run(tmp_path).saved(10)
    before = run.names()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))  # stands for a full disk
    try:
        with pytest.raises(UserError, match="cannot write") as e:
            run.saved(20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert e.value.exit_code == 73
    assert run.names() == before
    assert Run(tmp_path).restored() == 10
    assert run.saved(20).restored() == 20


def test_atomic_write_keeps_the_old_file_when_it_fails(tmp_path):
    path = tmp_path / "file.json"
    atomic_write(path, "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UserError, match="cannot write") as e:
            atomic_write(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert e.value.exit_code == 73
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.json"]


def test_another_run_is_refused_with_both_values(tmp_path):
    old = {"hidden_size": 256, "vocab_sha256": "abc"}
    Run(tmp_path, identity=old, settings={"learning_rate": 1e-3}).saved(10)

    new = Run(tmp_path, identity=old | {"hidden_size": 128})
    with pytest.raises(UserError, match="hidden_size is 256 there, 128 here") as e:
        new.checkpoints.check_identity(new.checkpoints.newest_intact())
    assert e.value.exit_code == 2

    changed = Run(tmp_path, identity=old, settings={"learning_rate": 2e-3})
    changed.checkpoints.check_identity(changed.checkpoints.newest_intact())
    assert changed.log == ["Changed since step 10: learning_rate 0.001 -> 0.002"]


def test_names_and_shapes_must_fit(tmp_path):
    run = Run(tmp_path).saved(10)
    manifest = run.checkpoints.newest_intact()
    more = state(1) | {"electra/new": tf.Variable(1.0)}
    with pytest.raises(UserError, match=r"has no electra/new \(1 missing\)"):
        run.checkpoints.restore(manifest, more)
    fewer = {"global_step": tf.Variable(0, dtype=tf.int64)}
    with pytest.raises(UserError, match="holds electra/embeddings"):
        run.checkpoints.restore(manifest, fewer)
    run.checkpoints.restore(manifest, fewer, partial=True)
    assert fewer["global_step"].numpy() == 10
    other = state(1)
    name = "electra/embeddings/word_embeddings"
    other[name] = tf.Variable(tf.zeros([50, 3]))
    with pytest.raises(UserError, match=rf"{name} has shape \[50, 4\].*\[50, 3\]"):
        run.checkpoints.restore(manifest, other)


def test_the_originals_checkpoints_can_be_read():
    prefix = ROOT / "tests/golden/pretrain/electra_tiny/init.ckpt"
    bias = tf.Variable(tf.zeros([1000]))
    of_checkpoint(str(prefix)).assign_to({"generator_predictions/output_bias": bias})
    assert np.std(bias.numpy()) > 0.01


HOLD = """
import sys, time
sys.path.insert(0, {root!r})
from electra_tf.storage.lock import RunLock
with RunLock({directory!r}):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_turned_away_and_a_dead_one_replaced(tmp_path):
    code = HOLD.format(root=str(ROOT), directory=str(tmp_path))
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(UserError, match=f"in use by process {holder.pid} on") as e:
            RunLock(tmp_path).__enter__()
        assert e.value.exit_code == 75
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RunLock(tmp_path):
        pid = json.loads((tmp_path / "run.lock").read_text())["pid"]
        assert pid == os.getpid()
    with RunLock(tmp_path):  # released, so it can be had again
        pass


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match="cannot write") as e:
        RunLock(blocked / "run").__enter__()
    assert e.value.exit_code == 73
    with pytest.raises(UserError, match="cannot write"):
        Run(blocked / "run").saved(1)


def test_the_lock_is_taken_without_tensorflow():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import electra_tf.storage.checkpoints, electra_tf.storage.files\n"
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_partial_names_are_only_ours(tmp_path):
    assert files.PARTIAL == ".partial"
    (tmp_path / "notes.txt.tmp").write_text("mine")
    (tmp_path / "config.json.partial").write_text("half")
    Run(tmp_path).restored()
    assert os.listdir(tmp_path) == ["notes.txt.tmp"]
