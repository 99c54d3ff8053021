# SPDX-License-Identifier: Apache-2.0
"""One step of fine-tuning: sequences per second, and the share of the matmul rate.

    python benchmarks/finetuning_step.py
    python benchmarks/finetuning_step.py --lengths 32,64,128

The step is that of run_finetuning.py, with clipping, layer-wise rates and metrics, on
random tokens padded to each length: what a batch costs that is padded to a bucket's
length, compared with one that is padded to max_seq_length. The first step is reported
separately, because XLA compiles each length. FLOPs are counted as in
benchmarks/measurement.py, heads included; large matrix products are timed in the
same process between the steps.
"""

import itertools
import time

from absl import flags
from measurement import (
    Encoder,
    define_step_flags,
    make_device,
    median,
    place,
    print_table,
    save,
    time_steps,
)

from electra_tf import cli, startup
from electra_tf.config.finetuning import FinetuningConfig
from electra_tf.config.hparams import read_hparams
from electra_tf.config.run import NO_DATA

FLAGS = flags.FLAGS
flags.DEFINE_list("lengths", "32,64,128", "Tokens that sequences are padded to.")
define_step_flags("run_finetuning.py")


def main(_):
    lengths = [int(length) for length in FLAGS.lengths]
    given = {"vocab_size": 30522, "max_seq_length": max(lengths)}
    given |= {"task_names": ["task"], "train_batch_size": FLAGS.batch_size}
    config = FinetuningConfig.from_hparams(
        NO_DATA, "benchmark", given | read_hparams(FLAGS.hparams)
    )
    startup.import_tensorflow()
    results = measure(config, lengths)
    save(FLAGS.json, results)
    print_lengths(results)


def measure(config: FinetuningConfig, lengths: list[int]) -> list[dict]:
    """A row per length, longest first."""
    import tensorflow as tf

    from electra_tf.finetune.classification import ClassHead
    from electra_tf.finetune.model import build_finetuning_model, training_task
    from electra_tf.train import optimization
    from electra_tf.train import step as training_step

    heads = {"task": ClassHead(2)}
    task, state, placement = place(
        config,
        lambda: training_task(build_finetuning_model(config, heads)),
        lambda: optimization.create_finetuning_optimizer(config, 100_000),
    )
    matmul, matmul_flops = make_device(config.precision).make_matmul()
    results = []
    for length in sorted(lengths, reverse=True):
        step = training_step.TrainingStep(task, state, placement, seed=config.seed)
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
    tokens = config.train_batch_size * length
    head = config.train_batch_size * 2 * shape.hidden_size * 2
    encoded = tokens * Encoder.of(shape).flops_per_token(length, config.embedding_size)
    return 3 * (encoded + head)


def make_batches(tf, config: FinetuningConfig, length: int):
    """Endless batches of one random example after the other, without padding."""
    rows = config.train_batch_size
    ids = tf.random.stateless_uniform(
        (rows, length), [3, 7], 5, config.vocab_size, tf.int32
    )
    zeros = tf.zeros([rows], tf.int32)
    batch = {"input_ids": ids, "task_id": zeros, "task:label_ids": zeros}
    batch |= dict.fromkeys(("input_mask", "segment_ids"), tf.ones_like(ids))
    batch["task:eid"] = zeros
    return tf.data.Dataset.from_tensors(batch).repeat()


TABLE = (
    "length | GFLOP per step | first step, s | step, s | seq/s | "
    "share of the matmul rate | speed relative to the longest",
    "{length} | {gflop:.1f} | {first_s:.1f} | {step_s:.4f} | {speed:.1f} | "
    "{share:.0%} | {relative:.2f}",
)


def print_lengths(results: list[dict]) -> None:
    """Medians."""
    print(f"\nClassification, batches of {FLAGS.batch_size}")
    rows = []
    for result in results:
        seconds, flops = median([result], "seconds"), result["flops"]
        row = result | {"step_s": seconds, "speed": FLAGS.batch_size / seconds}
        row |= {"gflop": flops / 1e9, "share": flops / seconds / median([row], "rates")}
        longest = rows[0]["step_s"] if rows else seconds
        rows.append(row | {"relative": longest / seconds})
    print_table(*TABLE, rows)


if __name__ == "__main__":
    cli.run(main)
