# SPDX-License-Identifier: Apache-2.0
"""Benchmarks count what they say and time the real step.

No test depends on a time.
"""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.config.run import NO_DATA
from electra_tf.pretrain import masking, pretraining
from electra_tf.train import distribution, optimization
from electra_tf.train import step as training_step
from tests.helpers.runs import (
    ROOT,
    TINY,
    TINY_STEP,
    check_ok,
    pretrain,
    python,
    run_script,
    tiny,
)
from tests.helpers.tiny_pretraining import tiny_batch, tiny_config, tiny_model

BENCHMARKS = ROOT / "benchmarks"
COMPILERS = ROOT / ".venv-accelerators" / "bin" / "python"

ONE_LAYER = TINY_STEP["model_hparam_overrides"] | {"num_hidden_layers": 1}
STEP = TINY_STEP | {"jit_compile": False, "model_hparam_overrides": ONE_LAYER}
STEP_FLAGS = (f"--hparams={json.dumps(STEP)}", "--batch-size=2", "--steps=1")
PRETRAINING = (*STEP_FLAGS, "--repeats=1", "--precision=float32", "--jit=off")


def printed(script: str, *flags: str) -> str:
    done = check_ok(run_script(f"benchmarks/{script}.py", *flags))
    return done.stdout


@pytest.mark.thorough
def test_pytorch_makes_the_same_step(tmp_path):
    pytest.importorskip("torch")
    found = tmp_path / "all.json"
    printed("pretraining_step", *PRETRAINING, "--peer=torch", f"--json={found}")
    results = [run for (run,) in json.loads(found.read_text()).values()]
    assert [run["framework"] for run in results] == ["tensorflow", "torch", "torch"]
    for run in results:
        # ln(vocabulary) + 50 ln 2, from other random weights.
        assert run["loss"][0] == pytest.approx(40.4, abs=1)
        # A step of this size needs fewer FLOPs than one large product a second.
        assert 0 < run["flops"] < 1e8 < min(run["rates"])
        assert 0 < run["peak_first"] and len(run["seconds"]) == 1
    # Dropout aside, fused attention is the plain one.
    assert results[1]["loss"][0] == pytest.approx(results[2]["loss"][0], abs=0.1)


LOSSES = """
import json, os, sys
from electra_tf import startup
startup.import_tensorflow()
import measurement
from electra_tf.config.pretraining import PretrainingConfig

data, hparams = sys.argv[1:]
config = PretrainingConfig.from_hparams(data, "same", json.loads(hparams))
loop = measurement.make_loop(config, measurement.write_data(config, 64))
print(json.dumps([loop(1) for _ in range(3)]), flush=True)
os._exit(0)  # TensorFlow may hang while Python ends
"""


@pytest.mark.thorough
def test_the_timed_step_is_that_of_run_pretraining(tmp_path):
    hparams = tiny(vocab_size=300, num_train_steps=3)
    args = LOSSES, tmp_path, json.dumps(hparams)
    done = check_ok(python("-c", *args, PYTHONPATH=str(BENCHMARKS)))
    check_ok(pretrain(tmp_path, "same", hparams))
    lines = (tmp_path / "models/same/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == pytest.approx(losses, rel=1e-4)


def operations(graph):
    """All operations of a graph, those of a called function once for each call."""
    for op in graph.get_operations():
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            yield from operations(graph._get_function(op.get_attr("f").name).graph)
        else:
            yield op


@pytest.mark.thorough
@pytest.mark.parametrize("embedding_size", [8, 16])
def test_flops_are_those_of_the_matrix_products_in_the_graph(embedding_size):
    from measurement import step_flops

    config = PretrainingConfig.from_hparams(
        NO_DATA, "m", STEP | {"train_batch_size": 3, "embedding_size": embedding_size}
    )
    task = pretraining.task_of(pretraining.build_pretrainer(config, (2, 3, 4)))
    ids = tf.random.uniform([3, 16], 5, 300, tf.int32)
    batch = {"input_ids": ids, "input_mask": tf.ones_like(ids)}
    batch["segment_ids"] = tf.zeros_like(ids)
    batch = masking.mask_batch(batch, 1, 0, masking.Masking(config, (2, 3, 4)))
    variables = [v.value for v in task.model.trainable_variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            constants = {k: tf.constant(v.numpy()) for k, v in batch.items()}
            loss, _ = task.loss(
                constants, tf.constant([1, 2]), task.divisors(constants)
            )
        return tape.gradient(loss, variables)

    flops = 0
    for op in operations(step.get_concrete_function().graph):
        if op.type in ("MatMul", "BatchMatMul", "BatchMatMulV2"):
            transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            inner = op.inputs[0].shape[-2 if transposed else -1]
            flops += 2 * op.outputs[0].shape.num_elements() * inner
    assert step_flops(config) == flops


# The step compiled for accelerators


def traced_step(variant: str, **hparams):
    """A tf.function of a step, the same as a concrete function, and its state."""
    model = tiny_model(variant, layers=1, dropout=0.1)
    config, batch = tiny_config(**hparams), tiny_batch()
    step = training_step.TrainingStep(
        pretraining.task_of(model),
        training_step.TrainState(model, optimization.create_optimizer(config)),
        distribution.create_strategy(config)._replace(jit_compile=False),
        seed=3,
        accumulation=config.gradient_accumulation_steps,
    )

    @tf.function(autograph=False)
    def once(*tensors):
        number = tf.cast(step.state.optimizer.iterations.value, tf.int64)
        scale = step.state.loss_scale.read_value()
        return step.replica_step(dict(zip(batch, tensors, strict=True)), number, scale)

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in batch.values()]
    variables = list(step.state.variables().values())
    return once, once.get_concrete_function(*specs), variables


@pytest.mark.thorough
@pytest.mark.parametrize("variant", ["electra", "electric_unigram"])
def test_a_step_without_variables_is_the_same(variant):
    from variable_free import without_variables

    once, concrete, variables = traced_step(variant)
    function = without_variables(concrete, variables)
    before = [v.numpy() for v in variables]
    inputs = tiny_batch().values()
    *after, row = function(*map(tf.constant, before), *inputs)
    np.testing.assert_allclose(row, once(*inputs), rtol=1e-5, atol=1e-5)
    changed = 0
    for variable, new, old in zip(variables, after, before, strict=True):
        np.testing.assert_allclose(new, variable.numpy(), atol=1e-6)
        changed += not np.array_equal(old, new)
    assert changed > len(variables) / 2
    hlo = function.experimental_get_compiler_ir(*function.input_signature)("hlo")
    assert " while(" not in hlo


@pytest.mark.thorough
@pytest.mark.accelerators
@pytest.mark.skipif(
    not COMPILERS.exists(),
    reason="the compilers are not installed: ./test.sh --accelerators installs them",
)
@pytest.mark.parametrize(
    ("platform", "python", "chips"),
    [
        ("h200", sys.executable, 1),
        ("tpu-v5e", sys.executable, 1),
        ("tpu-v5e", COMPILERS, 4),
    ],
)
def test_the_compilers_accept_the_whole_step(platform, python, chips, tmp_path):
    hparams = json.dumps(TINY | {"precision": "mixed_bfloat16", "vocab_size": 300})
    command = [python, BENCHMARKS / "aot_compile.py", f"--platform={platform}"]
    command += [f"--chips={chips}", f"--hparams={hparams}"]
    command += [f"--compiler-python={COMPILERS}", f"--json={tmp_path / 'found.json'}"]
    check_ok(subprocess.run(command, capture_output=True, text=True, check=False))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["kernels"] == ("TPU" if python == COMPILERS else "CPU")
    assert found["aliased"] == found["variables"] > 100
    none = ("while", "conditional", "infeed", "outfeed", "send", "recv")
    assert not any(found["ops"][name] for name in none)
    reduced = found["ops"]["all-reduce"] + found["ops"]["all-reduce-start"]
    assert bool(reduced) == (chips > 1)
    assert found["ops"]["fusion"] > 50 and found["flops"] > 1e6
    assert bool(found["cycles"]) == platform.startswith("tpu")
