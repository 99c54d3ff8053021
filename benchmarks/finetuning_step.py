# SPDX-License-Identifier: Apache-2.0
"""One fine-tuning step: sequences per second, and how near the matmul rate it comes.

    python benchmarks/finetuning_step.py
    python benchmarks/finetuning_step.py --kind qa --lengths 128,256,384,512
    python benchmarks/finetuning_step.py --lengths 32,64,128 --kind classification

The step is the one that run_finetuning.py makes, with its clipping, layer-wise rates
and metrics, on random tokens padded to each length: what a batch costs that is padded
to a bucket's length, beside one that is padded to max_seq_length. The first step counts
apart, because XLA compiles each length. Operations are counted as in
benchmarks/step_measurement.py, heads included; large matrix products are timed in the
same process before, between and after the steps.
"""

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from absl import flags

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from step_measurement import Encoder, time_steps
from step_process import make_matmul

from electra_tf import cli, startup
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.errors import UserError

FLAGS = flags.FLAGS
KINDS = {"classification": 2, "regression": 0, "tagging": 23, "qa": 0}

flags.DEFINE_enum("kind", "classification", list(KINDS), "Kind of the task.")
flags.DEFINE_list("lengths", "32,64,128", "Tokens that sequences are padded to.")
flags.DEFINE_integer("steps", 10, "Loops of steps that are timed.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sequences of a step.", lower_bound=1)
flags.DEFINE_string("hparams", "{}", "Hparams of run_finetuning.py.")
flags.DEFINE_string("json", None, "File for all that was measured.")


def main(_):
    try:
        lengths = [int(length) for length in FLAGS.lengths]
    except ValueError as error:
        raise UserError(f"--lengths takes whole numbers: {error}.") from None
    given = {"vocab_size": 30522, "max_seq_length": max(lengths)}
    given |= {"task_names": ["task"], "train_batch_size": FLAGS.batch_size}
    config = FinetuningConfig.from_hparams(
        "", "benchmark", given | read_hparams(FLAGS.hparams)
    )
    startup.import_tensorflow()
    results = measure(config, lengths)
    if FLAGS.json:
        Path(FLAGS.json).write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)


def measure(config: FinetuningConfig, lengths: list[int]) -> list[dict]:
    """A row per length, longest first, so that shorter ones meet a warm program."""
    import keras
    import tensorflow as tf

    from electra_tf.finetune.model import (
        TrainableFinetuningModel,
        build_finetuning_model,
    )
    from electra_tf.train import distribution, optimization
    from electra_tf.train import step as training_step

    distribution.configure_devices(config)
    distribution.set_precision(config.precision)
    placement = distribution.create_strategy(config)
    print(distribution.describe(placement, config.precision), flush=True)
    keras.utils.set_random_seed(config.seed)
    head = SimpleNamespace(kind=FLAGS.kind, num_labels=KINDS[FLAGS.kind])
    with placement.strategy.scope():
        model = build_finetuning_model(
            config, [SimpleNamespace(name="task", head=head)]
        )
        optimizer = optimization.create_finetuning_optimizer(config, 100_000)
        state = training_step.TrainState(model, optimizer)
    matmul, matmul_flops = make_matmul(
        config.precision, bool(tf.config.list_physical_devices("GPU"))
    )
    results = []
    for length in sorted(lengths, reverse=True):
        step = training_step.TrainingStep(
            TrainableFinetuningModel(model), state, placement, seed=config.seed
        )
        batches = iter(make_batches(tf, config, length))
        count = itertools.count()

        def run(number, step=step, batches=batches, count=count):
            step.run(batches, next(count), number)

        started = time.perf_counter()
        run(1)
        result = {"length": length, "first_s": time.perf_counter() - started}
        result["flops"] = step_flops(config, length)
        result |= time_steps(run, matmul, matmul_flops, FLAGS.steps)
        results.append(result)
    return results


def step_flops(config: FinetuningConfig, length: int) -> int:
    """Forward and backward pass of encoder and head."""
    shape = config.model_config()
    encoder = Encoder(
        shape.num_hidden_layers,
        shape.hidden_size,
        shape.intermediate_size,
        shape.num_attention_heads,
    )
    tokens = config.train_batch_size * length
    width = shape.hidden_size
    head = {
        "classification": config.train_batch_size * 2 * width * 2,
        "regression": config.train_batch_size * 2 * width,
        "tagging": tokens * 2 * width * KINDS["tagging"],
        # The end's hidden layer sees each end once and each start once.
        "qa": tokens * 2 * 512 * (width + 1),
    }[FLAGS.kind]
    encoded = tokens * encoder.flops_per_token(length, config.embedding_size)
    return 3 * (encoded + head)


def make_batches(tf, config: FinetuningConfig, length: int):
    """Endless batches of one random example after the other, without padding."""
    rows = config.train_batch_size
    ids = tf.random.stateless_uniform(
        (rows, length), [3, 7], 5, config.vocab_size, tf.int32
    )
    zeros = tf.zeros([rows], tf.int32)
    words = tf.zeros([rows, length], tf.int32)
    batch = {
        "input_ids": ids,
        "input_mask": tf.ones_like(ids),
        "segment_ids": tf.ones_like(ids),
        "task_id": zeros,
        "task_eid": zeros,
        "task_label_ids": zeros,
        "task_targets": tf.zeros([rows]),
        "task_labeled_positions": words + tf.range(length),
        "task_labels": words,
        "task_labels_mask": tf.ones([rows, length]),
        "task_start_positions": zeros + 3,
        "task_end_positions": zeros + 5,
        "task_is_impossible": zeros,
    }
    return tf.data.Dataset.from_tensors(batch).repeat()


def print_table(results: list[dict]) -> None:
    """Medians, as Markdown."""
    print(
        f"\n{FLAGS.kind}, batches of {FLAGS.batch_size}\n\n"
        "| length | GFLOP per step | first step, s | step, s | seq/s "
        "| share of the matmul rate | speed relative to the longest |\n"
        "|---|---|---|---|---|---|---|"
    )
    longest = statistics.median(results[0]["seconds"])
    for result in results:
        seconds = statistics.median(result["seconds"])
        rate = statistics.median(result["rates"]["during"])
        print(
            f"| {result['length']} | {result['flops'] / 1e9:.1f} "
            f"| {result['first_s']:.1f} | {seconds:.4f} "
            f"| {FLAGS.batch_size / seconds:.1f} "
            f"| {result['flops'] / seconds / rate:.0%} | {longest / seconds:.2f} |"
        )


if __name__ == "__main__":
    cli.run(main)
