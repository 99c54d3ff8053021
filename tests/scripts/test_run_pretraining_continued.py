# SPDX-License-Identifier: Apache-2.0
"""Runs continued with other hparams or data, from the original, or as evaluations."""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

import electra_tf
from electra_tf.errors import UserError
from electra_tf.storage.checkpoints import Checkpoints
from electra_tf.text.vocabulary import TokenizerConfig
from tests.helpers import forked_runs
from tests.helpers.runs import TINY, pretrain, run_script, tiny, write_tiny_data

MORE = {"num_train_steps": 13}
EVALUATE_ONLY = {"do_train": False, "do_eval": True, "num_eval_steps": 1}
EVALUATE = TINY | EVALUATE_ONLY
KEPT = {"do_lower_case": True, "strip_accents": False}


def eagerly():
    tf.config.run_functions_eagerly(True)


def run_eagerly(data, name, hparams):
    return forked_runs.pretrain(data, name, hparams, before=eagerly).wait()


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
        run = run_eagerly(data, name, TINY | changes)
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


@pytest.mark.thorough
def test_init_checkpoint_is_for_the_first_start(data, run_again):
    first = {"init_checkpoint": str(data / "models" / "electra"), "num_train_steps": 1}
    for hparams in (first, {"num_train_steps": 2}):
        run = run_eagerly(data, "warm", TINY | hparams)
        assert run.returncode == 0, run.stderr
    # Left out later, it is kept.
    assert "init_checkpoint" not in run.stdout.split("Config:")[0]
    folder, start = data / "models" / "warm", first["init_checkpoint"]
    assert settings_at(folder, 2)["init_checkpoint"] == start
    config = json.loads((folder / "config.json").read_text())
    assert config["init_checkpoint"] == start
    printed, _ = run_again(2, **first)
    for word in ("init_checkpoint None", "would have no effect"):
        assert word in printed


@pytest.mark.thorough
def test_other_data_are_reported(run_again, tmp_path):
    other = write_tiny_data(tmp_path / "other", examples=40)
    place = {"pretrain_tfrecords": f"{other}/pretrain_tfrecords/*"}
    printed, folder = run_again(0, **MORE, **place)
    assert "Changed since step 12: data [['2 files, " in printed
    assert settings_at(folder, 13)["data"] != settings_at(folder, 12)["data"]


@pytest.mark.thorough
def test_evaluations_of_undone_steps_are_removed(data):
    few = TINY | {"num_train_steps": 4, "save_checkpoints_steps": 2}
    for hparams in (few | {"eval_every_steps": 2, "num_eval_steps": 1}, few):
        run = run_eagerly(data, "undone", hparams)
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


# The original's checkpoints, and weights that are evaluated.


def tensors(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {k: reader.get_tensor(k) for k in reader.get_variable_to_shape_map()}


@pytest.fixture(scope="module")
def original(data):
    """A run directory with what the original has of that run after 10 steps."""
    folder = data / "models" / "of_original"
    folder.mkdir()
    for path in (data / "models" / "electra").glob("model.ckpt-10.*"):
        if path.suffix != ".json":
            shutil.copy(path, folder)
    (folder / "model.ckpt-10.meta").write_bytes(b"a graph")
    (folder / "graph.pbtxt").write_text("node {}")
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    return folder


def test_a_run_of_the_original_is_evaluated_and_continued(data, original):
    done = pretrain(data, "of_original", EVALUATE)
    assert done.returncode == 0, done.stderr
    assert "global_step = 10" in done.stdout
    keep = TINY | {"keep_checkpoint_max": 1, "save_checkpoints_steps": 1}
    done = pretrain(data, "of_original", keep)
    assert done.returncode == 0, done.stderr
    assert "Continuing from the original's" in done.stdout
    expected = tensors(data / "models" / "electra" / "model.ckpt-12")
    found = tensors(original / "model.ckpt-12")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    # The original's checkpoint is not removed; of the new ones, one is kept.
    names = {path.name for path in original.glob("*.index")}
    assert names == {"model.ckpt-10.index", "model.ckpt-12.index"}


def test_a_damaged_run_is_not_taken_for_the_originals(data):
    models = data / "models"
    shutil.copytree(models / "electra", models / "damaged_run")
    for path in (models / "damaged_run").glob("model.ckpt-*.json"):
        path.unlink()
    done = pretrain(data, "damaged_run", TINY)
    assert done.returncode == 65 and "model.ckpt-12.json is missing" in done.stderr


def test_an_init_checkpoint_is_evaluated(data):
    model = str(data / "models" / "electra")
    done = run_eagerly(data, "evaluated_only", EVALUATE | {"init_checkpoint": model})
    assert done.returncode == 0, done.stderr
    assert "global_step = 12" in done.stdout and f"Evaluating {model}" in done.stdout
    # Weights of another model are refused though they fit: the number of heads has no
    # influence on their shapes.
    heads = tiny(overrides={"num_attention_heads": 4})
    changes = EVALUATE_ONLY | {"init_checkpoint": model}
    done = pretrain(data, "evaluated_other", heads | changes)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "num_attention_heads is 2 there, 4 here" in done.stderr


def test_without_slots_it_cannot_be_continued(data):
    folder = data / "models" / "released"
    folder.mkdir()
    found = tensors(data / "models" / "electra" / "model.ckpt-12")
    found = {k: v for k, v in found.items() if not k.endswith(("/adam_m", "/adam_v"))}
    tf.raw_ops.SaveV2(
        prefix=str(folder / "model.ckpt-12"),
        tensor_names=sorted(found),
        shape_and_slices=[""] * len(found),
        tensors=[tf.constant(found[name]) for name in sorted(found)],
    )
    (folder / "model.ckpt-12.meta").write_bytes(b"a graph")
    done = pretrain(data, "released", TINY)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no Adam slots" in done.stderr


# Tokenizer settings.


@pytest.fixture(scope="module")
def others(data):
    """Data that were built with the same vocabulary and --no-strip-accents."""
    corpus = data / "corpus"
    corpus.mkdir()
    words = [f"w{i % 55}" for i in range(4000)]
    lines = [" ".join(words[i : i + 10]) for i in range(0, len(words), 10)]
    (corpus / "text.txt").write_text("\n".join(lines))
    places = f"--vocab-file={data}/vocab.txt", f"--output-dir={data}/others"
    flags = f"--corpus-dir={corpus}", "--max-seq-length=32", "--no-strip-accents"
    built = run_script("build_pretraining_dataset.py", *places, *flags)
    assert built.returncode == 0, built.stderr
    return str(data / "others" / "pretrain_data.tfrecord*")


@pytest.mark.parametrize("read", ["trained_on", "a_phase", "evaluated", "sampled"])
def test_data_of_other_settings_are_refused_at_every_start(data, others, read):
    parts = [{"num_train_steps": 12}, {"num_train_steps": 1}]
    changes = {
        "trained_on": {"num_train_steps": 13, "pretrain_tfrecords": others},
        "a_phase": {
            "num_train_steps": 13,
            "phases": [parts[0], parts[1] | {"pretrain_tfrecords": others}],
        },
        "evaluated": {"do_train": False, "do_eval": True, "eval_tfrecords": others},
        "sampled": {"sample_steps": 1, "eval_tfrecords": others},
    }[read]
    done = pretrain(data, "electra", TINY | changes)
    assert done.returncode == 2, done.stdout
    assert f"{data}/others were built uncased, accents kept" in done.stderr
    assert "require text that is uncased, accents stripped" in done.stderr


def test_a_run_keeps_its_recorded_settings(tmp_path):
    data = write_tiny_data(tmp_path / "data")
    hparams = tiny(num_train_steps=2, num_eval_steps=1)
    beside, run = data / "vocab.txt.json", data / "models" / "kept"
    beside.write_text(json.dumps(KEPT))
    done = run_eagerly(data, "kept", hparams)
    assert done.returncode == 0, done.stderr
    prefix = run / "model.ckpt-2"
    kept = TokenizerConfig(**KEPT)
    # Lost when the vocabulary was copied: they are still what the run has learned by.
    beside.unlink()
    for place in (run, prefix):
        assert electra_tf.load(place).tokenizer.config == kept
    for changes in ({"num_train_steps": 3}, {"do_train": False, "do_eval": True}):
        done = pretrain(data, "kept", hparams | changes)
        assert done.returncode == 2, done.stdout
        assert f"{prefix} was trained on text that is {kept}" in done.stderr
    # Replaced by others.
    beside.write_text(json.dumps(KEPT | {"strip_accents": True}))
    with pytest.raises(UserError, match="was trained on text that is uncased, acc"):
        electra_tf.load(run)
