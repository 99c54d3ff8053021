# SPDX-License-Identifier: Apache-2.0
"""200 damaged checkpoints: the newest intact one is found, or the run says why not."""

import collections
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.storage.checkpoints import Checkpoints

STEPS = (10, 20, 30)
SUFFIXES = ("data-00000-of-00001", "index", "json")
FAULTS = 200


def variables(step):
    rng = np.random.default_rng(step)
    return {
        "electra/a": tf.Variable(rng.normal(size=(40, 7)).astype("f4")),
        "electra/a/adam_m": tf.Variable(rng.normal(size=(40, 7)).astype("f4")),
        "global_step": tf.Variable(step, dtype=tf.int64),
    }


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    directory = tmp_path_factory.mktemp("intact")
    saver = Checkpoints(directory)
    for step in STEPS:
        saver.save(step, variables(step))
    return directory


# Faults: (file, random numbers) -> changes the file.


def flip_bits(path, rng):
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 5))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def directory_instead(path, rng):
    path.unlink()
    path.mkdir()


def other_step(path, rng):
    """A file of another checkpoint under this name."""
    names = [path.name.replace(path.name[11:13], str(step)) for step in STEPS]
    files = [path.with_name(name) for name in names if name != path.name]
    files = [file for file in files if file.is_file()]
    shutil.copy(rng.choice(files), path) if files else path.unlink()


KINDS = (
    *(flip_bits, flip_bits, directory_instead, other_step),
    lambda path, rng: os.truncate(path, rng.randrange(path.stat().st_size)),
    lambda path, rng: os.truncate(path, 0),
    lambda path, rng: path.unlink(),
    # What some file systems leave after a loss of power: the length, not the data.
    lambda path, rng: path.write_bytes(bytes(path.stat().st_size)),
    lambda path, rng: path.write_bytes(path.read_bytes() + rng.randbytes(9)),
)


def damage_pointer(directory, rng):
    pointer = directory / "checkpoint"
    contents = (None, rng.randbytes(50), b"", b'model_checkpoint_path: "model.ckpt-99"')
    content = rng.choice(contents)
    pointer.unlink() if content is None else pointer.write_bytes(content)


def inject(directory: Path, rng) -> dict[int, list[Path]]:
    """Damages one or more checkpoints; returns the files by step."""
    damaged = collections.defaultdict(list)
    newest_first = list(reversed(STEPS))
    for step in newest_first[: rng.choice((0, 1, 1, 1, 2, 2, 3))]:
        for suffix in rng.sample(SUFFIXES, rng.choice((1, 1, 1, 2))):
            path = directory / f"model.ckpt-{step}.{suffix}"
            before = path.read_bytes()
            rng.choice(KINDS)(path, rng)
            if path.is_file() and path.read_bytes() == before:  # flipped back
                flip_bits(path, rng)
            damaged[step].append(path)
    if not damaged or rng.random() < 0.2:
        damage_pointer(directory, rng)
    return damaged


def entries(directory):
    return collections.Counter(
        path.name.partition(".corrupt")[0] for path in directory.iterdir()
    )


def test_200_faults(intact, tmp_path):
    rng = random.Random(7)
    restored = collections.Counter()
    for number in range(FAULTS):
        directory = tmp_path / str(number)
        shutil.copytree(intact, directory)
        damaged = inject(directory, rng)
        before = entries(directory)
        names = sorted(os.listdir(directory))
        reader, log = Checkpoints(directory, read_only=True), []
        checkpoints = Checkpoints(directory, log=log.append)
        left = [step for step in STEPS if step not in damaged]
        if not left:
            with pytest.raises(UserError, match="no intact checkpoint") as caught:
                checkpoints.newest_intact()
            assert caught.value.exit_code == 65
            assert any(path.name in str(caught.value) for path in damaged[STEPS[-1]])
            restored["none"] += 1
            assert sorted(os.listdir(directory)) == names
        else:
            assert reader.newest_intact().step == left[-1]
            assert sorted(os.listdir(directory)) == names
            manifest = checkpoints.newest_intact()
            assert manifest.step == left[-1]
            check_values(checkpoints, manifest)
            check_messages(log, damaged, manifest.step)
            restored[manifest.step] += 1
        assert entries(directory) == before  # renamed at most, never removed
        if left and number % 10 == 0:  # A step that was passed over is saved again.
            checkpoints.save(STEPS[-1], variables(STEPS[-1]))
            assert checkpoints.newest_intact().step == STEPS[-1]
        shutil.rmtree(directory)
    assert sum(restored.values()) == FAULTS
    assert set(restored) == {10, 20, 30, "none"}


def check_values(checkpoints, manifest):
    found = variables(1)
    checkpoints.restore(manifest, found)
    for key, expected in variables(manifest.step).items():
        np.testing.assert_array_equal(found[key], expected)


def check_messages(log, damaged, step):
    """Each checkpoint passed over is named, with a file that is damaged."""
    for bad, paths in damaged.items():
        (line,) = [text for text in log if f"checkpoint of step {bad} " in text]
        assert f"going back to step {step}" in line
        assert any(path.name in line for path in paths), line
        assert not any(path.exists() for path in paths)
