# SPDX-License-Identifier: Apache-2.0
"""Shards to batches: examples/s of the reader on one core, and of what else was tried.

    python benchmarks/input_pipeline.py
    python benchmarks/input_pipeline.py --pattern 'D/pretrain_data.tfrecord*' \\
        --vocab-file V --max-seq-length 128

Without --pattern, 60,000 examples are made up. The process keeps to one core; the
variants take turns, and the table has the median of several rounds.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path

from absl import flags
from preparation import numbers, write_shards

from electra_tf import cli, startup
from electra_tf.text.vocabulary import Vocabulary

FLAGS = flags.FLAGS

flags.DEFINE_string("pattern", None, "Shards to read.")
flags.DEFINE_string("vocab_file", None, "Their vocabulary.")
flags.DEFINE_integer("batch_size", 128, "Examples of a batch.")
flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.")
flags.DEFINE_integer("rounds", 5, "Times that each variant is measured.")
flags.DEFINE_float("seconds", 2.0, "Length of a measurement.")


def main(_):
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    startup.import_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        given = FLAGS.vocab_file
        vocab = Vocabulary.load(given) if given else numbers(30522)
        sizes = len(vocab), FLAGS.max_seq_length, 60_000, 4
        pattern = FLAGS.pattern or write_shards(Path(folder), *sizes)
        measure(variants(pattern, vocab))


def variants(pattern: str, vocab: Vocabulary) -> dict:
    """Name -> function that makes the data set."""
    import tensorflow as tf

    from electra_tf.data import tfrecord
    from electra_tf.pretrain import masking, pretrain_data

    size, length = FLAGS.batch_size, FLAGS.max_seq_length
    settings = {
        "mask_prob": 0.15,
        "max_predictions_per_seq": int(0.155 * length),
    }
    ids = {"cls_id": vocab.cls_id, "sep_id": vocab.sep_id, "mask_id": vocab.mask_id}
    spec = dict.fromkeys(tfrecord.FEATURES, tf.io.FixedLenFeature([length], tf.int64))

    def ours(workers=1, **changes):
        """What the last of the workers reads: its own rows of a larger batch."""
        return pretrain_data.make_dataset(
            pattern,
            batch_size=size * workers,
            max_seq_length=length,
            vocab=vocab,
            seed=1,
            num_replicas=workers,
            replica_slice=(workers - 1, workers),
            **settings | changes,
        )

    def unmasked():
        source = pretrain_data.open_data(pattern, length, vocab)
        steps = tf.data.Dataset.range(1 << 40)
        return steps.map(lambda step: source.batch(step, size, 1, True)).prefetch(1)

    def masked(features, step):
        batch = {name: tf.cast(value, tf.int32) for name, value in features.items()}
        return masking.mask_batch(batch, 1, step, **settings, **ids)

    def sequential(parse_first):
        """TensorFlow's own reader; no random access, so no start but at the front."""
        records = tf.data.Dataset.list_files(pattern).repeat()
        records = records.interleave(tf.data.TFRecordDataset, cycle_length=4)
        records = records.shuffle(10_000)
        if parse_first:  # as the original does
            batches = records.map(lambda r: tf.io.parse_single_example(r, spec))
            batches = batches.batch(size, drop_remainder=True)
        else:
            batches = records.batch(size, drop_remainder=True)
            batches = batches.map(lambda r: tf.io.parse_example(r, spec))
        pairs = tf.data.Dataset.zip(batches, tf.data.Dataset.range(1 << 40))
        return pairs.map(masked).prefetch(1)

    return {
        "make_dataset, from step 0": ours,
        "make_dataset, from step 1,000,000": lambda: ours(start_step=10**6),
        'make_dataset, repeated_masks "fixed"': lambda: ours(repeated_masks="fixed"),
        "make_dataset, shuffle=False": lambda: ours(shuffle=False),
        "make_dataset, one of 2 workers": lambda: ours(workers=2),
        "make_dataset, one of 8 workers": lambda: ours(workers=8),
        "make_dataset, one of 64 workers": lambda: ours(workers=64),
        "the same without masking": unmasked,
        "TFRecordDataset, parsed in batches": lambda: sequential(False),
        "TFRecordDataset, parsed one by one": lambda: sequential(True),
    }


def measure(makers: dict) -> None:
    rates: dict[str, list[float]] = {name: [] for name in makers}
    first: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(FLAGS.rounds):
        for name, make in makers.items():
            # One at a time: others would fill their buffers meanwhile.
            started = time.perf_counter()
            iterator = iter(make())
            next(iterator)
            first[name].append(time.perf_counter() - started)
            for _ in range(20):
                next(iterator)
            started, batches = time.process_time(), 0
            while time.process_time() - started < FLAGS.seconds:
                next(iterator)
                batches += 1
            seconds = time.process_time() - started
            rates[name].append(batches * FLAGS.batch_size / seconds)
            del iterator
    print(f"batches of {FLAGS.batch_size} x {FLAGS.max_seq_length}, one core\n")
    print(f"{'':38} examples per CPU second   first batch")
    for name in makers:
        rate, wait = statistics.median(rates[name]), statistics.median(first[name])
        print(f"{name:38} {rate:23,.0f} {wait:11.2f} s")


if __name__ == "__main__":
    cli.run(main)
