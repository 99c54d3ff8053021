# SPDX-License-Identifier: Apache-2.0
"""What benchmarks count: the operations of a step, the memory of a process."""

import pytest
import tensorflow as tf
from measurement import (
    Encoder,
    Sizes,
    memory_now,
    peak_memory,
    reset_peak_memory,
)

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.config.run import NO_DATA
from electra_tf.pretrain import masking, pretraining
from tests.helpers.runs import TINY_STEP


def _operations(graph):
    """All operations of a graph, those of a called function once for each call."""
    for op in graph.get_operations():
        if op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            called = graph._get_function(op.get_attr("f").name)
            yield from _operations(called.graph)
        else:
            yield op


@pytest.mark.parametrize("changes", [{}, {"embedding_size": 16}])
def test_operations_are_those_of_the_graph(changes):
    """Counts the matrix products that TensorFlow would make."""
    config = PretrainingConfig.from_hparams(
        NO_DATA, "m", TINY_STEP | {"train_batch_size": 3} | changes
    )
    task = pretraining.TrainablePretrainer(
        pretraining.build_pretrainer(config, (2, 3, 4))
    )
    ids = tf.random.uniform([3, 16], 5, 300, tf.int32)
    batch = masking.mask_batch(
        {
            "input_ids": ids,
            "input_mask": tf.ones_like(ids),
            "segment_ids": tf.zeros_like(ids),
        },
        1,
        0,
        mask_prob=config.mask_prob,
        max_predictions_per_seq=config.max_predictions_per_seq,
        cls_id=2,
        sep_id=3,
        mask_id=4,
    )
    variables = [v.value for v in task.model.trainable_variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            constants = {k: tf.constant(v.numpy()) for k, v in batch.items()}
            loss, _ = task.training_sums(
                constants, tf.constant([1, 2]), task.loss_weights(constants)
            )
        return tape.gradient(loss, variables)

    flops = 0
    for op in _operations(step.get_concrete_function().graph):
        if op.type in ("MatMul", "BatchMatMul", "BatchMatMulV2"):
            transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            inner = op.inputs[0].shape[-2 if transposed else -1]
            flops += 2 * op.outputs[0].shape.num_elements() * inner
    sizes = Sizes(
        Encoder(12, 16, 64, 2),
        Encoder(12, 8, 32, 1),
        config.embedding_size,
        vocab=300,
        batch=3,
        length=16,
        masked=2,
    )
    assert sizes.step_flops() == flops


def test_peak_memory_can_start_anew():
    if not reset_peak_memory():
        pytest.skip("the kernel does not offer it")
    block = b"x" * 300_000_000
    peak = peak_memory()
    del block
    assert reset_peak_memory()
    assert peak - peak_memory() > 200_000_000
    assert peak_memory() >= memory_now() - 1_000_000
