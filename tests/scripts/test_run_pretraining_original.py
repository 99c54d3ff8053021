# SPDX-License-Identifier: Apache-2.0
"""run_pretraining.py on the original's checkpoints: continued, evaluated, refused."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.runs import TINY, pretrain, tiny

EVALUATE_ONLY = {"do_train": False, "do_eval": True, "num_eval_steps": 1}
EVALUATE = TINY | EVALUATE_ONLY


@pytest.fixture(scope="module")
def data(pretrained, tmp_path_factory):
    """A run of 12 steps, and the files that the original has of it after 10."""
    folder = tmp_path_factory.mktemp("run") / "data"
    shutil.copytree(pretrained("electra"), folder)
    original = folder / "models" / "of_original"
    original.mkdir()
    for path in (folder / "models" / "electra").glob("model.ckpt-10.*"):
        if path.suffix != ".json":
            shutil.copy(path, original)
    (original / "model.ckpt-10.meta").write_bytes(b"a graph")
    (original / "graph.pbtxt").write_text("node {}")
    (original / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-10"\n')
    return folder


def tensors(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {k: reader.get_tensor(k) for k in reader.get_variable_to_shape_map()}


def test_a_run_of_the_original_is_evaluated_and_continued(data):
    original = data / "models" / "of_original"
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
    done = pretrain(data, "evaluated_only", EVALUATE | {"init_checkpoint": model})
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
