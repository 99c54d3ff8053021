# SPDX-License-Identifier: Apache-2.0
"""Runs that are continued with other hparams or data than they began with."""

import json
import os
import shutil

import pytest
import tensorflow as tf

from electra_tf.storage.checkpoints import Checkpoints
from tests.helpers import forked_runs
from tests.helpers.runs import TINY, pretrain, write_tiny_data

MORE = {"num_train_steps": 13}


def eagerly():
    tf.config.run_functions_eagerly(True)


@pytest.fixture(scope="module")
def data(pretrained, tmp_path_factory):
    """A data directory with models/electra, a finished run of TINY, 12 steps."""
    folder = tmp_path_factory.mktemp("run") / "data"
    return shutil.copytree(pretrained("electra"), folder)


@pytest.fixture
def run_again(data):
    """Continues a copy of the run: (its output, its directory)."""
    copies = []

    def again(code, **changes):
        name = f"again_{os.getpid()}_{len(copies)}"
        copies.append(data / "models" / name)
        shutil.copytree(data / "models" / "electra", copies[-1])
        hparams = TINY | changes
        run = forked_runs.pretrain(data, name, hparams, before=eagerly).wait()
        assert run.returncode == code, run.stdout + run.stderr
        return run.stdout + run.stderr, copies[-1]

    yield again
    for folder in copies:
        shutil.rmtree(folder)


def settings_at(folder, step):
    return Checkpoints(folder, read_only=True).verify(step).settings


def steps_in(path):
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_config_is_written_only_if_a_step_is_made(data, run_again):
    before = (data / "models" / "electra" / "config.json").read_bytes()
    for code, changes, text in (
        (2, {"max_seq_length": 16}, "max_seq_length is 16"),
        (0, {"mask_prob": 0.4, "temperature": 9}, "nothing to do"),
    ):
        printed, folder = run_again(code, **changes)
        assert text in printed
        assert (folder / "config.json").read_bytes() == before
    _, folder = run_again(0, mask_prob=0.4, **MORE)
    assert json.loads((folder / "config.json").read_text())["mask_prob"] == 0.4


def test_init_checkpoint_is_for_the_first_start(data, run_again):
    first = {"init_checkpoint": str(data / "models" / "electra"), "num_train_steps": 1}
    for hparams in (first, {"num_train_steps": 2}):
        run = forked_runs.pretrain(data, "warm", TINY | hparams, before=eagerly).wait()
        assert run.returncode == 0, run.stderr
    # Left out later, it is kept.
    assert "init_checkpoint" not in run.stdout.split("Config:")[0]
    folder, start = data / "models" / "warm", first["init_checkpoint"]
    assert settings_at(folder, 2)["init_checkpoint"] == start
    config = json.loads((folder / "config.json").read_text())
    assert config["init_checkpoint"] == start
    printed, _ = run_again(2, **first)
    for word in ("at step 12", "random weights", "would have no effect"):
        assert word in printed


def test_other_data_are_reported(run_again, tmp_path):
    other = write_tiny_data(tmp_path / "other", examples=40)
    place = {"pretrain_tfrecords": f"{other}/pretrain_tfrecords/*"}
    printed, folder = run_again(0, **MORE, **place)
    assert "Changed since step 12: data [['2 files, " in printed
    assert "counted as if they had been these from the beginning" in printed
    assert settings_at(folder, 13)["data"] != settings_at(folder, 12)["data"]


def test_evaluations_of_undone_steps_are_removed(data):
    few = TINY | {"num_train_steps": 4, "save_checkpoints_steps": 2}
    for hparams in (few | {"eval_every_steps": 2, "num_eval_steps": 1}, few):
        run = forked_runs.pretrain(data, "undone", hparams, before=eagerly).wait()
        assert run.returncode == 0, run.stderr
        folder = data / "models" / "undone"
        rows = folder / "evaluations.jsonl"
        if "eval_every_steps" in hparams:
            assert steps_in(rows) == [2, 4]
            for path in folder.glob("model.ckpt-4*"):
                path.unlink()
            newest = 'model_checkpoint_path: "model.ckpt-2"\n'
            (folder / "checkpoint").write_text(newest)
    assert steps_in(rows) == [2]


@pytest.mark.parametrize(
    "name, value, compiled",
    [
        ("segment_ids", 3, False),
        pytest.param("segment_ids", 3, True, marks=pytest.mark.thorough),
        pytest.param("input_mask", 7, False, marks=pytest.mark.thorough),
    ],
)
def test_records_with_impossible_values_are_named(tmp_path, name, value, compiled):
    data = write_tiny_data(tmp_path / "data")
    path = sorted((data / "pretrain_tfrecords").iterdir())[1]
    records = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
    example = tf.train.Example.FromString(records[30])
    example.features.feature[name].int64_list.value[5] = value
    records[30] = example.SerializeToString()
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    run = pretrain(data, "odd", TINY | {"num_train_steps": 30, "jit_compile": compiled})
    assert run.returncode == 2, run.stdout
    assert f"{path}: record 30 at byte " in run.stderr
    assert f"has {name} of {value}" in run.stderr
