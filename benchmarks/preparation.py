# SPDX-License-Identifier: Apache-2.0
"""Vocabularies, examples, models and training steps for the benchmarks of TensorFlow.

The steps are those of run_pretraining.py and run_finetuning.py.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags
from measurement import ROOT, Device

from electra_tf.config.pretraining import PretrainingConfig
from electra_tf.text.vocabulary import SPECIAL_TOKENS, Vocabulary, write_tokens

# Flags defined here belong to the script that calls define_step_flags.
flags.disclaim_key_flags()


def define_step_flags(script: str) -> None:
    """The flags of every benchmark of a training step."""
    flags.DEFINE_string("hparams", "{}", f"Hparams of {script}.")
    flags.DEFINE_integer("batch_size", 32, "Sequences of a step.", lower_bound=1)
    flags.DEFINE_integer("steps", 10, "Loops of steps that are timed.", lower_bound=1)
    flags.DEFINE_string("json", None, "File for all that was measured.")


def numbers(vocab_size: int) -> Vocabulary:
    """The special tokens, then 0, 1, 2, ..."""
    count = vocab_size - len(SPECIAL_TOKENS)
    return Vocabulary((*SPECIAL_TOKENS, *map(str, range(count))))


def train_vocabulary(corpus: str | Path, path: Path, vocab_size: int) -> str:
    """Runs build_vocab.py on a corpus; returns the vocabulary's path."""
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
    """Writes a vocabulary and random examples into the config's data directory."""
    folder = Path(config.data_dir) / "pretrain_tfrecords"
    folder.mkdir()
    write_shards(folder, config.vocab_size, config.max_seq_length, count)
    return write_tokens(config.vocab_file, numbers(config.vocab_size).tokens)


def place(config, make_task: Callable, make_optimizer: Callable):
    """Returns task, state and placement, on the first GPU or without any on the CPU."""
    import keras
    import tensorflow as tf

    from electra_tf.train import distribution
    from electra_tf.train import step as training_step

    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[:1], "GPU")  # several would share the batch
    distribution.configure_devices(config)
    distribution.set_precision(config.precision)
    placement = distribution.create_strategy(config)
    print(distribution.describe(placement, config.precision), flush=True)
    keras.utils.set_random_seed(config.seed)
    with placement.strategy.scope():
        task = make_task()
        state = training_step.TrainState(task.model, make_optimizer())
    return task, state, placement


def place_pretraining(config: PretrainingConfig, special: tuple[int, int, int]):
    """`place` for pre-training; `special` are the ids of [CLS], [SEP] and [MASK]."""
    from electra_tf.pretrain import pretraining
    from electra_tf.train import optimization

    def make_task():
        model = pretraining.build_pretrainer(config, special)
        return pretraining.TrainablePretrainer(model)

    return place(config, make_task, lambda: optimization.create_optimizer(config))


def make_loop(config: PretrainingConfig, vocab: Vocabulary | None = None):
    """Returns count -> loss of the last of `count` steps of pre-training.

    Args:
      vocab: of the config's data, read as run_pretraining.py does; without it batches
        are random tokens without a file.
    """
    from electra_tf.pretrain import run
    from electra_tf.pretrain.pretrain_data import RunData
    from electra_tf.train import step as training_step

    task, state, placement = place_pretraining(config, (2, 3, 4))
    step = training_step.TrainingStep(task, state, placement, seed=config.seed)
    if vocab:
        batches = run.batches_of(config, RunData(vocab), placement)
    else:
        batches = iter(random_batches(config))
    done = 0

    def loop(count):
        nonlocal done
        done += count
        return float(step.run(batches, done - count, count)["loss"][-1])

    return loop


def random_batches(config: PretrainingConfig):
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
        features = {
            "input_ids": tf.ensure_shape(ids, shape),
            "input_mask": tf.ones(shape, tf.int32),
            "segment_ids": tf.zeros(shape, tf.int32),
        }
        count = config.max_predictions_per_seq
        settings = masking.MaskingSettings(config.mask_prob, count, (2, 3, 4))
        return masking.mask_batch(features, config.seed, step, settings)

    return tf.data.Dataset.range(1 << 40).map(batch).prefetch(2)


def make_device(precision: str) -> Device:
    """TensorFlow's first GPU, or its CPU."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpus[0]) if gpus else {}
    name = details.get("device_name", "GPU") if gpus else "CPU"

    def make_matmul():
        rows, inner, columns = (8192, 8192, 8192) if gpus else (4096, 1024, 1024)
        dtype = tf.as_dtype(precision.removeprefix("mixed_"))
        a = tf.cast(tf.random.normal([rows, inner]), dtype)
        b = tf.cast(tf.random.normal([inner, columns]), dtype)
        # The transfer to NumPy waits for the product.
        return lambda: tf.matmul(a, b)[0, 0].numpy(), 2.0 * rows * inner * columns

    def gpu_peak():
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
        tf.config.experimental.reset_memory_stats("GPU:0")
        return peak

    version = f"TensorFlow {tf.__version__}"
    return Device(name, version, make_matmul, gpu_peak if gpus else None)
