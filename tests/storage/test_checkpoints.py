# SPDX-License-Identifier: Apache-2.0
"""Checkpoints are whole or absent, and those of different runs do not mix.

Damaged ones: tests/faults/test_checkpoint_faults.py.
"""

import errno
import os
import resource
import shutil
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.runs import refused


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
    assert Run(tmp_path / "absent").restored() is None
    Run(tmp_path).saved(3, 7)
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-7")
    names = dict(tf.train.list_variables(str(tmp_path / "model.ckpt-7")))
    assert names == {k: list(v.shape) for k, v in state(7).items()}
    assert Run(tmp_path).restored() == 7


def test_the_oldest_are_removed(tmp_path):
    run = Run(tmp_path, keep=2).saved(1, 2, 3, 4)
    assert run.checkpoints.steps() == [3, 4]
    assert len(run.names()) == 2 * 3 + 1
    assert "model.ckpt-3" in (tmp_path / "checkpoint").read_text()


def test_readers_of_damaged_checkpoints_alone_are_refused(tmp_path):
    assert Checkpoints(tmp_path, read_only=True).newest_intact() is None
    [data] = Run(tmp_path).saved(1).directory.glob("model.ckpt-1.data*")
    data.write_bytes(b"damage")
    with pytest.raises(UserError, match="holds no intact checkpoint") as caught:
        Checkpoints(tmp_path, read_only=True, log=lambda line: None).newest_intact()
    assert caught.value.exit_code == EXIT_DAMAGED


def test_damaged_files_are_kept_each_time(tmp_path):
    run = Run(tmp_path).saved(1)
    for _ in range(2):
        [data] = run.saved(2).directory.glob("model.ckpt-2.data*[0-9]")
        data.write_bytes(b"damage")
        run = Run(tmp_path)
        assert run.restored() == 1
    assert {f"{data.name}.corrupt", f"{data.name}.corrupt-2"} <= run.names()


def test_an_old_checkpoint_that_cannot_be_removed_does_not_end_the_run(
    tmp_path, monkeypatch
):
    run = Run(tmp_path, keep=2).saved(1, 2)
    busy = OSError(errno.EACCES, "Permission denied")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", mock.Mock(side_effect=busy))
        run.saved(3)
    assert any("step 1 could not be removed" in line for line in run.log)
    later = Run(tmp_path, keep=2)
    assert later.restored() == 3
    assert later.saved(4).checkpoints.steps() == [3, 4]


def test_a_pointer_without_checkpoints_is_not_a_new_run(tmp_path):
    Run(tmp_path).saved(10)
    for path in tmp_path.glob("model.ckpt-*"):
        path.unlink()
    refused(Run(tmp_path).restored, "checkpoint", code=65)


class Killed(BaseException):
    """Stands for the end of the process: the program's own clean-up does not run."""


class Killer:
    """Simulates a kill before the n-th operation on files."""

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


def test_the_last_saved_is_kept_even_below_higher_steps(tmp_path):
    Run(tmp_path, keep=1).saved(30)
    Run(tmp_path, keep=1).saved(10)
    assert Run(tmp_path).restored() == 10
    assert not (tmp_path / "model.ckpt-30.json").exists()


@pytest.mark.parametrize("keep", [0, 1])
def test_a_kill_between_any_two_file_operations_loses_nothing(
    tmp_path, monkeypatch, keep
):
    """A kill -9 inside a save, at each place."""
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


@pytest.fixture
def small_files():
    """Stands for a full disk: no file may be larger than 700 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, request):
    run = Run(tmp_path).saved(10)
    before = run.names()
    request.getfixturevalue("small_files")
    refused(lambda: run.saved(20), "cannot write", code=73)
    assert run.names() == before
    assert Run(tmp_path).restored() == 10


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
