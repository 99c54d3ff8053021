# SPDX-License-Identifier: Apache-2.0
"""Shards to batches: examples/s of the reader on one core, beside TensorFlow's own.

    python benchmarks/input_pipeline.py

The process keeps to one core; the variants take
turns, and the table has the median of several rounds.
"""

import os
import tempfile
import time
from pathlib import Path

from absl import flags
from measurement import median, numbers, print_table, write_shards

from electra_tf import cli, startup
from electra_tf.text.vocabulary import Vocabulary

FLAGS = flags.FLAGS

flags.DEFINE_integer("examples", 60_000, "Random examples.")
flags.DEFINE_integer("batch_size", 128, "Examples of a batch.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.")
flags.DEFINE_integer("rounds", 5, "Measurements of each variant.")
flags.DEFINE_float("seconds", 2.0, "CPU time of a measurement.")


def main(_):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    startup.import_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        vocab = numbers(30522)
        sizes = len(vocab), FLAGS.max_seq_length, FLAGS.examples, 4
        pattern = write_shards(Path(folder), *sizes)
        makers = variants(pattern, vocab)
        rows = {name: [] for name in makers}
        for _ in range(FLAGS.rounds):
            for name, make in makers.items():
                rows[name].append(measure(make))
    print(f"batches of {FLAGS.batch_size} x {FLAGS.max_seq_length}, one core")
    head = "variant | examples per CPU second | first batch, s"
    table = [
        {"name": name} | {key: median(runs, key) for key in ("rate", "first_s")}
        for name, runs in rows.items()
    ]
    print_table(head, "{name} | {rate:,.0f} | {first_s:.2f}", table)


def variants(pattern: str, vocab: Vocabulary) -> dict:
    """Name -> function that makes the data set."""
    import tensorflow as tf

    from electra_tf.config.pretraining import PretrainingConfig
    from electra_tf.data import tfrecord
    from electra_tf.pretrain import masking, pretrain_data

    size, length = FLAGS.batch_size, FLAGS.max_seq_length
    config = PretrainingConfig(max_seq_length=length, vocab_size=len(vocab))
    how = masking.Masking.of(config, vocab)
    spec = dict.fromkeys(tfrecord.FEATURES, tf.io.FixedLenFeature([length], tf.int64))

    def ours(start_step=0):
        data = pretrain_data.open_data(pattern, length, vocab)
        given = {"batch_size": size, "seed": 1, "start_step": start_step}
        return pretrain_data.make_dataset(data, how, **given)

    def masked(features, step):
        batch = {name: tf.cast(value, tf.int32) for name, value in features.items()}
        return masking.mask_batch(batch, 1, step, how)

    def sequential():
        """TensorFlow's own reader, which has no random access."""
        records = tf.data.Dataset.list_files(pattern).repeat()
        records = records.interleave(tf.data.TFRecordDataset, cycle_length=4)
        records = records.shuffle(10_000)
        batches = records.batch(size, drop_remainder=True)
        batches = batches.map(lambda r: tf.io.parse_example(r, spec))
        pairs = tf.data.Dataset.zip(batches, tf.data.Dataset.range(1 << 40))
        return pairs.map(masked).prefetch(1)

    return {
        "make_dataset, from step 0": ours,
        "make_dataset, from step 1,000,000": lambda: ours(start_step=10**6),
        "TFRecordDataset, parsed in batches": sequential,
    }


def measure(make) -> dict:
    """Examples per CPU second after a start, and seconds until the first batch."""
    started = time.perf_counter()
    iterator = iter(make())
    next(iterator)
    first_s = time.perf_counter() - started
    for _ in range(20):
        next(iterator)
    started, batches = time.process_time(), 0
    while (seconds := time.process_time() - started) < FLAGS.seconds:
        next(iterator)
        batches += 1
    return {"rate": batches * FLAGS.batch_size / seconds, "first_s": first_s}


if __name__ == "__main__":
    cli.run(main)
