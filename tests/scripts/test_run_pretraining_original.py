# SPDX-License-Identifier: Apache-2.0
"""run_pretraining.py on the original's checkpoints: continued, evaluated, refused."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers.runs import OF_OBJECTIVE, TINY, pretrain, tiny

SHORT = TINY | {"num_train_steps": 4, "save_checkpoints_steps": 2}
EVALUATE_ONLY = {"do_train": False, "do_eval": True, "num_eval_steps": 1}
EVALUATE = SHORT | EVALUATE_ONLY


@pytest.fixture(scope="module")
def data(tiny_data):
    """A data directory with a run of 4 steps, and what the original has after 2."""
    done = pretrain(tiny_data, "two_starts", SHORT)
    assert done.returncode == 0, done.stderr
    models = tiny_data / "models"
    original = models / "of_original"
    original.mkdir()
    for path in (models / "two_starts").glob("model.ckpt-2.*"):
        if path.suffix != ".json":
            shutil.copy(path, original)
    (original / "model.ckpt-2.meta").write_bytes(b"a graph")
    (original / "graph.pbtxt").write_text("node {}")
    (original / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"\n')
    return tiny_data


def tensors(prefix):
    reader = tf.train.load_checkpoint(str(prefix))
    return {k: reader.get_tensor(k) for k in reader.get_variable_to_shape_map()}


def test_a_run_of_the_original_is_evaluated_and_continued(data):
    original = data / "models" / "of_original"
    init = {"init_checkpoint": str(data / "models" / "two_starts")}
    for hparams in (SHORT, EVALUATE):
        done = pretrain(data, "of_original", hparams | init)
        assert done.returncode == 2 and "would have no effect" in done.stderr
        assert f"holds the original's {original}" in done.stderr
    done = pretrain(data, "of_original", EVALUATE)
    assert done.returncode == 0, done.stderr
    assert "global_step = 2" in done.stdout
    keep = SHORT | {"keep_checkpoint_max": 1, "save_checkpoints_steps": 1}
    done = pretrain(data, "of_original", keep)
    assert done.returncode == 0, done.stderr
    assert "Continuing from the original's" in done.stdout
    expected = tensors(data / "models" / "two_starts" / "model.ckpt-4")
    found = tensors(original / "model.ckpt-4")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    # The original's own is not ours to remove; of ours, one is kept.
    names = {path.name for path in original.glob("*.index")}
    assert names == {"model.ckpt-2.index", "model.ckpt-4.index"}
    done = pretrain(data, "of_original", SHORT, "--dry-run")
    assert "would do nothing: 4 of 4 steps are made. Nothing of it was w" in done.stdout


def test_a_damaged_run_of_ours_is_not_taken_for_the_originals(data):
    models = data / "models"
    shutil.copytree(models / "two_starts", models / "damaged_run")
    for path in (models / "damaged_run").glob("model.ckpt-*.json"):
        path.unlink()
    done = pretrain(data, "damaged_run", SHORT)
    assert done.returncode == 65 and "model.ckpt-4.json is missing" in done.stderr


def test_an_init_checkpoint_is_evaluated(data):
    model = str(data / "models" / "two_starts")
    done = pretrain(data, "evaluated_only", EVALUATE | {"init_checkpoint": model})
    assert done.returncode == 0, done.stderr
    assert "global_step = 4" in done.stdout and f"Evaluating {model}" in done.stdout
    done = pretrain(data, "nothing", EVALUATE)
    assert done.returncode == 2 and "set init_checkpoint" in done.stderr


def test_weights_of_another_model_are_not_evaluated(data):
    """Though they fit: the number of heads and what was learned leave no trace."""
    model = {"init_checkpoint": str(data / "models" / "two_starts")}
    heads = tiny(overrides={"num_attention_heads": 4})
    for changes, said in (
        (heads, "num_attention_heads is 2 there, 4 here"),
        (
            SHORT | {"objective": "electra_15"},
            'objective is None there, "electra_15" here',
        ),
    ):
        done = pretrain(data, "evaluated_other", changes | EVALUATE_ONLY | model)
        assert done.returncode == 2, done.stdout
        assert said.replace('"', "'") in done.stderr and "Traceback" not in done.stderr


def saved_without(prefix, path, *endings):
    """Writes a checkpoint without the tensors whose names end so."""
    found = {k: v for k, v in tensors(prefix).items() if not k.endswith(endings)}
    tf.raw_ops.SaveV2(
        prefix=str(path),
        tensor_names=sorted(found),
        shape_and_slices=[""] * len(found),
        tensors=[tf.constant(found[name]) for name in sorted(found)],
    )


@pytest.mark.thorough
def test_another_runs_steps_are_not_those_of_the_stages_here(data, tmp_path):
    """It is evaluated as a finished model, with all metrics."""
    stages = {"objective": "two_stage", **OF_OBJECTIVE["two_stage"]}
    for name, steps in (("both_stages", 4), ("first_stage", 2)):
        flags = [] if steps == 4 else ["--max-wall-time=0"]
        done = pretrain(data, name, SHORT | stages, *flags)
        assert done.returncode == (0 if steps == 4 else 42), done.stderr
    models = data / "models"
    saved_without(models / "both_stages" / "model.ckpt-4", tmp_path / "m", "step")
    more = EVALUATE | stages | {"num_train_steps": 1000}
    for path, step in ((models / "both_stages", 4), (tmp_path / "m", None)):
        init = {"init_checkpoint": str(path)}
        done = pretrain(data, "evaluated_stages", more | init)
        assert done.returncode == 0, done.stderr
        assert "disc_loss = " in done.stdout
        assert ("global_step" in done.stdout) == (step is not None)
        results = models / "evaluated_stages" / "results" / "unsup_results.json"
        assert json.loads(results.read_text()).get("global_step") == step
    init = {"init_checkpoint": str(models / "first_stage")}
    done = pretrain(data, "evaluated_stages", more | init)
    assert done.returncode == 2 and "discriminator learns after" in done.stderr


def test_without_slots_it_cannot_be_continued(data):
    folder = data / "models" / "released"
    folder.mkdir()
    whole = data / "models" / "two_starts" / "model.ckpt-4"
    saved_without(whole, folder / "model.ckpt-4", "/adam_m", "/adam_v")
    (folder / "model.ckpt-4.meta").write_bytes(b"a graph")
    done = pretrain(data, "released", SHORT)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no Adam slots" in done.stderr
