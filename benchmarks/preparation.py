# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks of TensorFlow prepare: vocabularies, examples, models, steps.

The steps are those that run_pretraining.py and run_finetuning.py make.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags
from measurement import ROOT, Device, measure_steps

from electra_tf import startup
from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.text.vocabulary import SPECIAL_TOKENS, Vocabulary, write_tokens

# Flags defined here belong to the script that asked for them.
flags.disclaim_key_flags()

PARTS = ("step", "given_samples", "no_optimizer", "forward")


def define_step_flags(script: str) -> None:
    """The flags of every benchmark of a training step."""
    flags.DEFINE_string("hparams", "{}", f"Hparams of {script}.")
    flags.DEFINE_integer("batch_size", 32, "Sequences of a step.", lower_bound=1)
    flags.DEFINE_integer("steps", 10, "Loops of steps that are timed.", lower_bound=1)
    flags.DEFINE_string("json", None, "File for all that was measured.")


def define_process_flags() -> None:
    """The flags of benchmarks that start a process for each variant."""
    flags.DEFINE_integer("repeats", 2, "Processes for each variant.", lower_bound=1)
    flags.DEFINE_boolean(
        "xla_buffers", True, "Another process asks XLA for its buffers."
    )
    flags.DEFINE_string(
        "variant", None, "Used by the script itself: the one to measure."
    )


def numbers(vocab_size: int) -> Vocabulary:
    """The special tokens, then 0, 1, 2, ..."""
    count = vocab_size - len(SPECIAL_TOKENS)
    return Vocabulary((*SPECIAL_TOKENS, *map(str, range(count))))


def train_vocabulary(corpus: str | Path, path: Path, vocab_size: int) -> str:
    """Has build_vocab.py make a vocabulary of a corpus; returns its path."""
    command = [sys.executable, str(ROOT / "build_vocab.py"), f"--corpus-dir={corpus}"]
    command += [f"--vocab-size={vocab_size}", f"--output-file={path}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(path)


def write_shards(
    folder: Path, vocab_size: int, length: int, count: int, num_shards: int = 1
) -> str:
    """Writes examples of random ids with two segments; returns the shards' pattern."""
    import numpy as np

    from electra_tf.data import tfrecord

    rng = np.random.default_rng(1)
    shape = (count // num_shards, length)
    segments = np.zeros(shape, int)
    segments[:, length // 2 + 1 :] = 1
    for shard in range(num_shards):
        ids = rng.integers(5, vocab_size, shape)
        ids[:, 0], ids[:, length // 2], ids[:, -1] = 2, 3, 3
        records = tfrecord.encode_examples(ids, np.ones(shape, int), segments)
        path = folder / f"pretrain_data.tfrecord-{shard:05d}-of-{num_shards:05d}"
        path.write_bytes(b"".join(map(tfrecord.frame, records)))
    return str(folder / "pretrain_data.tfrecord*")


def write_data(config: PretrainingConfig, count: int) -> Vocabulary:
    """Writes data of random examples where the config expects a run's, in one file."""
    folder = Path(config.data_dir) / "pretrain_tfrecords"
    folder.mkdir()
    write_shards(folder, config.vocab_size, config.max_seq_length, count)
    return write_tokens(config.vocab_file, numbers(config.vocab_size).tokens)


def place(config, make_task: Callable, make_optimizer: Callable):
    """Returns task, state and placement on one GPU, or whatever else there is.

    The first GPU of several: all would share the batch.
    """
    import keras
    import tensorflow as tf

    from electra_tf.train import distribution
    from electra_tf.train import step as training_step

    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[:1], "GPU")
    distribution.configure_devices(config)
    distribution.set_precision(config.precision)
    placement = distribution.create_strategy(config)
    print(distribution.describe(placement, config.precision), flush=True)
    keras.utils.set_random_seed(config.seed)
    with placement.strategy.scope():
        task = make_task()
        state = training_step.TrainState(task.model, make_optimizer())
    return task, state, placement


def measure(config: PretrainingConfig, flops: float, steps: int, variant: dict) -> dict:
    """Builds the model and measures its steps; see `measure_steps`.

    The variant's "part" says what a step is: see PARTS.
    """
    startup.import_tensorflow()
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    loop, _ = make_loop(config, variant.get("part", "step"))
    device = Device(
        *device_and_version(),
        lambda: make_matmul(config.precision, bool(gpus)),
        _gpu_peak if gpus else None,
    )
    return measure_steps(loop, device, flops, steps, variant) | {
        "operations": operations_of(loop.step) if loop.step else None
    }


def device_and_version() -> tuple[str, str]:
    """What `place` takes, and whose steps are made there."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    name = details.get("device_name", "GPU") if gpus else "CPU"
    return name, f"TensorFlow {tf.__version__}"


def operations_of(step) -> int:
    """Operations of the graph of a step that was made, each function counted once."""
    [traced] = step._loop._list_all_concrete_functions()
    graph = traced.graph.as_graph_def()
    return len(graph.node) + sum(len(f.node_def) for f in graph.library.function)


def _gpu_peak() -> int:
    import tensorflow as tf

    peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    tf.config.experimental.reset_memory_stats("GPU:0")
    return peak


def make_loop(
    config: PretrainingConfig, part: str = "step", vocab: Vocabulary | None = None
):
    """Returns count -> loss of the last of `count` steps of pre-training; its state.

    Args:
      vocab: of the config's data, which are read as run_pretraining.py does; without
        it batches are of random tokens that never were in a file.
    """
    import tensorflow as tf

    from electra_tf.pretrain import pretraining, run
    from electra_tf.train import optimization
    from electra_tf.train import step as training_step

    class NoUpdate(optimization.AdamWeightDecay):
        """Needs every gradient, for their norm, but leaves the variables alone."""

        def update_step(self, gradient, variable, learning_rate):
            del gradient, variable, learning_rate

    def make_optimizer():
        if part in ("no_optimizer", "forward"):
            return NoUpdate(1e-4)
        return optimization.create_optimizer(config)

    task, state, placement = place(
        config,
        lambda: pretraining.TrainablePretrainer(
            pretraining.build_pretrainer(config, (2, 3, 4))
        ),
        make_optimizer,
    )
    step = training_step.TrainingStep(task, state, placement, seed=config.seed)
    if vocab:
        batches = run.batches_of(config, vocab, placement)
    else:
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

    loop.step = None if part == "forward" else step
    return loop, state


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
