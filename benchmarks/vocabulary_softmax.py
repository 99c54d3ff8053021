# SPDX-License-Identifier: Apache-2.0
"""The normalizer of Electric's softmax over the vocabulary, by rows at one time.

    python benchmarks/vocabulary_softmax.py
    python benchmarks/vocabulary_softmax.py --rows 40 --words 30522 --at_once 128,1024 \
        --exported

`cloze_chunk_size` says how many rows (positions) have scores of all words at one time.
Forward and backward pass compiled by XLA, as in a training step; with --exported the
forward pass in a graph that does not know the number of rows, as in a SavedModel. The
first line is one product of all rows with all words: the normalizer needs one, its
gradients three. Best of the calls; the sizes take turns.
"""

import time

from absl import flags
from measurement import save

from electra_tf import cli, startup

FLAGS = flags.FLAGS

flags.DEFINE_integer("rows", 2048, "Positions.", lower_bound=1)
flags.DEFINE_integer("columns", 128, "Of the embeddings.", lower_bound=1)
flags.DEFINE_integer("words", 8192, "Of the vocabulary.", lower_bound=1)
flags.DEFINE_list(
    "at_once", ["32", "64", "128", "256", "512", "1024", "2048"], "Rows at one time."
)
flags.DEFINE_integer("calls", 8, "Of each size.", lower_bound=1)
flags.DEFINE_boolean("exported", False, "The forward pass alone, without XLA.")
flags.DEFINE_string("json", None, "File for all that was measured.")


def main(_):
    startup.import_tensorflow()
    import tensorflow as tf

    hidden = tf.random.normal([FLAGS.rows, FLAGS.columns])
    table = tf.random.normal([FLAGS.words, FLAGS.columns], stddev=0.05)
    bias = tf.zeros([FLAGS.words])
    functions = {"one product": product_of(tf)}
    for size in map(int, FLAGS.at_once):
        functions[f"{size:,}"] = normalizer_of(tf, size)
    seconds = {name: [] for name in functions}
    for call in range(-1, FLAGS.calls):  # the first one traces and compiles
        for name, function in functions.items():
            started = time.perf_counter()
            function(hidden, table, bias).numpy()
            if call >= 0:
                seconds[name].append(time.perf_counter() - started)
    print(f"| rows at one time | {FLAGS.rows:,} rows, {FLAGS.words:,} words, ms |")
    print("|---|---|")
    for name, found in seconds.items():
        print(f"| {name} | {1e3 * min(found):.1f} |")
    flops = 2 * FLAGS.rows * FLAGS.columns * FLAGS.words
    rate = flops / min(seconds["one product"]) / 1e9
    print(f"\nThe product is {flops / 1e9:.2f} GFLOP: {rate:.0f} GFLOP/s.")
    save(FLAGS.json, seconds)
    return 0


def product_of(tf):
    @tf.function(jit_compile=not FLAGS.exported, autograph=False)
    def product(hidden, table, bias):
        del bias
        return tf.matmul(hidden, table, transpose_b=True)

    def wait(hidden, table, bias):
        return product(hidden, table, bias)[0, 0]  # A number to wait for.

    return wait


def normalizer_of(tf, size: int):
    """A function of (rows, table, bias) whose result is a number to wait for."""
    from electra_tf.pretrain.vocabulary_softmax import log_normalizer

    def forward(hidden, table, bias):
        return tf.reduce_sum(log_normalizer(hidden, table, bias, size)[0])

    def with_gradients(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = forward(*inputs)
        return tf.add_n([total, *map(tf.reduce_sum, tape.gradient(total, inputs))])

    rows = None if FLAGS.exported else FLAGS.rows
    shapes = [rows, FLAGS.columns], [FLAGS.words, FLAGS.columns], [FLAGS.words]
    return tf.function(
        forward if FLAGS.exported else with_gradients,
        jit_compile=not FLAGS.exported,
        autograph=False,
    ).get_concrete_function(*map(tf.TensorSpec, shapes))


if __name__ == "__main__":
    cli.run(main)
