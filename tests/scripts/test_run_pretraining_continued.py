# SPDX-License-Identifier: Apache-2.0
"""A run that is gone on with by a command that is not what it was."""

import json
import os
import shutil

import pytest
import tensorflow as tf

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers.runs import pretrain, tiny, write_tiny_data

HPARAMS = tiny(num_train_steps=4, save_checkpoints_steps=2, train_batch_size=4)


@pytest.fixture(scope="module")
def done(tiny_data):
    """The directory of a run of four steps."""
    run = pretrain(tiny_data, "done", HPARAMS)
    assert run.returncode == 0, run.stderr
    return tiny_data / "models" / "done"


@pytest.fixture
def run_again(tiny_data, done):
    """Goes on with a copy of the run: (what was said, its directory)."""
    copies = []

    def again(code, *flags, data=tiny_data, **changes):
        name = f"again_{os.getpid()}_{len(copies)}"
        copies.append(data / "models" / name)
        shutil.copytree(done, copies[-1])
        run = pretrain(data, name, HPARAMS | changes, *flags)
        assert run.returncode == code, run.stdout + run.stderr
        return run.stdout + run.stderr, copies[-1]

    yield again
    for folder in copies:
        shutil.rmtree(folder)


def settings_at(folder, step):
    return Checkpoints(folder, read_only=True).verify(step).settings


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_a_start_that_makes_no_step_changes_no_file(run_again, done):
    before = (done / "config.json").read_bytes()
    for code, changes, said in (
        (2, {"max_seq_length": 16}, "max_seq_length is 16"),
        (0, {"mask_prob": 0.4, "temperature": 9}, "nothing to do"),
    ):
        printed, folder = run_again(code, **changes)
        assert said in printed
        assert (folder / "config.json").read_bytes() == before
    _, folder = run_again(0, mask_prob=0.4, num_train_steps=5)
    assert json.loads((folder / "config.json").read_text())["mask_prob"] == 0.4


def test_init_checkpoint_is_for_the_first_start(tiny_data, run_again, done):
    first = {"init_checkpoint": str(done), "num_train_steps": 2}
    run = pretrain(tiny_data, "warm", HPARAMS | first)
    assert run.returncode == 0, run.stderr
    # Left out later, it is what the run began with.
    run = pretrain(tiny_data, "warm", HPARAMS)
    assert (
        run.returncode == 0 and "init_checkpoint" not in run.stdout.split("Config:")[0]
    )
    folder = tiny_data / "models" / "warm"
    assert settings_at(folder, 4)["init_checkpoint"] == str(done)
    config = json.loads((folder / "config.json").read_text())
    assert config["init_checkpoint"] == str(done)
    for step, code in ((0, 42), (4, 0)):
        name = f"cold_{step}"
        begun = pretrain(tiny_data, name, HPARAMS, *["--max-wall-time=0"] * (not step))
        assert begun.returncode == code, begun.stderr
        late = pretrain(tiny_data, name, HPARAMS | first)
        assert late.returncode == 2
        for word in (f"at step {step}", "random weights", "would have no effect"):
            assert word in late.stderr


def test_other_data_are_told(tiny_data, run_again, tmp_path):
    other = write_tiny_data(tmp_path / "other", examples=40)
    place = {"pretrain_tfrecords": f"{other}/pretrain_tfrecords/*"}
    printed, folder = run_again(0, num_train_steps=5, **place)
    assert "Changed since step 4: data [['2 files, " in printed
    assert "counted as if they had been these from the beginning" in printed
    assert settings_at(folder, 5)["data"] != settings_at(folder, 4)["data"]
    printed, _ = run_again(0, num_train_steps=5)
    assert "data" not in printed.split("Config:")[0]
    # What is read further on was not read yet.
    parts = [{"num_train_steps": 4}, {"num_train_steps": 1} | place]
    printed, _ = run_again(0, num_train_steps=5, phases=parts)
    assert "counted as if" not in printed.split("Config:")[0]


def test_data_go_on_however_their_place_is_written(tiny_data, run_again):
    same = f"{tiny_data}/./pretrain_tfrecords/*"
    phases = [
        {"num_train_steps": 4},
        {"num_train_steps": 4, "pretrain_tfrecords": same},
    ]
    steps = {name: HPARAMS[name] for name in HPARAMS if name != "num_train_steps"}
    phases = {"phases": [{"max_seq_length": 32} | phase for phase in phases]}
    run = pretrain(tiny_data, "phases", steps | phases)
    assert run.returncode == 0, run.stderr
    # 16 of 100 examples are behind it where the second phase begins, 32 at its end.
    assert "100 examples; 0.00 of 0.16 epochs done" in run.stdout
    assert "100 examples; 0.00 of 0.32 epochs done" in run.stdout


def test_evaluations_of_steps_that_are_undone_go(tiny_data):
    every = {"eval_every_steps": 2}
    run = pretrain(tiny_data, "undone", HPARAMS | every)
    assert run.returncode == 0, run.stderr
    folder = tiny_data / "models" / "undone"
    rows = folder / "evaluations.jsonl"
    assert steps_in(rows) == [2, 4]
    for path in folder.glob("model.ckpt-4*"):
        path.unlink()
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"\n')
    run = pretrain(tiny_data, "undone", HPARAMS)
    assert run.returncode == 0, run.stderr
    assert steps_in(rows) == [2]


@pytest.mark.parametrize(
    "name, value, compiled",
    [
        pytest.param("segment_ids", 3, True, marks=pytest.mark.thorough),
        ("segment_ids", 3, False),
        ("input_mask", 7, False),
    ],
)
def test_records_with_values_that_no_model_has(tmp_path, name, value, compiled):
    data = write_tiny_data(tmp_path / "data")
    path = sorted((data / "pretrain_tfrecords").iterdir())[1]
    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    example = tf.train.Example.FromString(records[30])
    example.features.feature[name].int64_list.value[5] = value
    records[30] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    hparams = HPARAMS | {"num_train_steps": 30, "jit_compile": compiled}
    run = pretrain(data, "odd", hparams)
    assert run.returncode == 2, run.stdout
    assert f"{path}: record 30 at byte " in run.stderr
    assert f"has {name} of {value}" in run.stderr
