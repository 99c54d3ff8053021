# SPDX-License-Identifier: Apache-2.0
"""The process that measures a training step of TensorFlow; see step_measurement.py.

The step is the one that run_pretraining.py makes, on random tokens.
"""

import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from step_measurement import memory_now, peak_memory, reset_peak_memory, time_steps

from electra_tf import startup
from electra_tf.config.pretraining import PretrainingConfig

PARTS = ("step", "given_samples", "no_optimizer", "forward")


def xla_buffers(first_step: Callable[[dict[str, str]], object]) -> int | None:
    """Bytes of the buffers that XLA assigns to a step; from a dump of its plan.

    Args:
      first_step: makes a step in a new process with these environment variables.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = os.environ.get("XLA_FLAGS", "")
        dump = f"{given} --xla_dump_to={folder} --xla_dump_hlo_as_text"
        first_step({"XLA_FLAGS": dump.strip()})
        totals = [0]
        for plan in Path(folder).glob("*buffer-assignment.txt"):
            # " Total bytes used: 1535121408 (1.43GiB)", or a line for each buffer.
            found = re.search(r"[Tt]otal bytes used: (\d+)", plan.read_text())
            totals.append(int(found[1]) if found else 0)
    return max(totals) or None


def measure(
    config: PretrainingConfig,
    part: str,
    flops: float,
    steps: int,
    launched: float,
    compile_only: bool = False,
) -> dict:
    """Builds model and step, makes the first one, times the others.

    Args:
      config: of the run whose steps are made.
      part: what is timed: see PARTS.
      flops: that a step needs.
      steps: loops of steps that are timed.
      launched: when this process was started, as time.time() says.
      compile_only: ends after the first step.

    Returns: times in seconds, memory in bytes, losses; see `time_steps`.
    """
    startup.import_tensorflow()
    import tensorflow as tf

    loop, device = make_loop(config, part)
    gpu = device != "CPU"
    ready = time.time()
    result = {"device": device, "version": f"TensorFlow {tf.__version__}"}
    result |= {"start_s": ready - launched, "memory_start": memory_now()}
    reset_peak_memory()
    loss = loop(1)
    result |= {"first_s": time.time() - ready, "peak_first": peak_memory()}
    if compile_only:
        return result
    result["memory_first"] = memory_now()
    reset_peak_memory()
    if gpu:
        memory = tf.config.experimental.get_memory_info("GPU:0")
        result["gpu_peak_first"] = memory["peak"]
        tf.config.experimental.reset_memory_stats("GPU:0")
    result["flops"] = flops
    matmul, product_flops = make_matmul(config.precision, gpu)
    result |= time_steps(lambda n: loop(n), matmul, product_flops, steps)
    result["peak_steps"] = peak_memory()
    if gpu:
        memory = tf.config.experimental.get_memory_info("GPU:0")
        result["gpu_peak_steps"] = memory["peak"]
    result["loss"] = [loss, loop(1)]
    return result


def make_loop(config: PretrainingConfig, part: str):
    """Returns count -> loss of the last of `count` steps, and the device's name."""
    import keras
    import tensorflow as tf

    from electra_tf.pretrain import pretraining
    from electra_tf.pretrain.trainable import TrainablePretrainer
    from electra_tf.train import distribution, optimization
    from electra_tf.train import step as training_step

    class NoUpdate(optimization.AdamWeightDecay):
        """Needs every gradient, for their norm, but leaves the variables alone."""

        def update_step(self, gradient, variable, learning_rate):
            del gradient, variable, learning_rate

    distribution.configure_devices(config)
    distribution.set_precision(config.precision)
    # More than one GPU would share the batch.
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[:1], "GPU")
    placement = distribution.create_strategy(config)
    keras.utils.set_random_seed(config.seed)
    task = TrainablePretrainer(pretraining.build_pretrainer(config, (2, 3, 4)))
    optimizer = optimization.create_optimizer(config)
    if part in ("no_optimizer", "forward"):
        optimizer = NoUpdate(1e-4)
    state = training_step.TrainState(task.model, optimizer)
    step = training_step.TrainingStep(task, state, placement, seed=config.seed)
    batches = iter(make_batches(config, given_samples=part == "given_samples"))
    done = 0

    @tf.function(jit_compile=placement.jit_compile, autograph=False)
    def forward(batch, seed):
        loss, sums = task.training_sums(batch, seed, task.loss_weights(batch))
        return tf.stack([loss, *(tf.cast(s, tf.float32) for s in sums.values())])

    def loop(count):
        nonlocal done
        done += count
        if part == "forward":
            for i in range(count):
                found = forward(next(batches), tf.constant([done, i]))
            return float(found[0])
        return float(step.run(batches, done - count, count)["loss"][-1])

    device = "CPU"
    if gpus:
        details = tf.config.experimental.get_device_details(gpus[0])
        device = details.get("device_name", "GPU")
    return loop, device


def make_batches(config: PretrainingConfig, given_samples: bool):
    """Batches of random tokens, masked in the input pipeline as real ones are."""
    import tensorflow as tf

    from electra_tf.pretrain import masking

    shape = (config.train_batch_size, config.max_seq_length)

    def batch(step):
        ids = tf.random.stateless_uniform(
            shape, [step, 7], 5, config.vocab_size, tf.int32
        )
        ids = tf.concat([tf.fill([shape[0], 1], 2), ids[:, 1:-1]], 1)
        ids = tf.concat([ids, tf.fill([shape[0], 1], 3)], 1)
        masked = masking.mask_batch(
            {
                "input_ids": tf.ensure_shape(ids, shape),
                "input_mask": tf.ones(shape, tf.int32),
                "segment_ids": tf.zeros(shape, tf.int32),
            },
            config.seed,
            step,
            mask_prob=config.mask_prob,
            max_predictions_per_seq=config.max_predictions_per_seq,
            cls_id=2,
            sep_id=3,
            mask_id=4,
        )
        if given_samples:
            masked["sampled_ids"] = masked["masked_lm_ids"]
        return masked

    return tf.data.Dataset.range(1 << 40).map(batch).prefetch(2)


def make_matmul(precision: str, gpu: bool):
    """A function that makes a large product in that precision, and its operations."""
    import tensorflow as tf

    rows, inner, columns = (8192, 8192, 8192) if gpu else (4096, 1024, 1024)
    dtype = tf.as_dtype(precision.removeprefix("mixed_"))
    a = tf.cast(tf.random.normal([rows, inner]), dtype)
    b = tf.cast(tf.random.normal([inner, columns]), dtype)

    def matmul():
        product = tf.matmul(a, b)
        product[0, 0].numpy()  # waits

    return matmul, 2.0 * rows * inner * columns
