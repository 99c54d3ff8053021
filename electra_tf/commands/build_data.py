# SPDX-License-Identifier: Apache-2.0
"""Builds pre-training data (TFRecord shards and a manifest) from text.

    python3 build_pretraining_dataset.py --corpus-dir C --vocab-file V --output-dir O \\
        --max-seq-length 128 --num-processes 4

The corpus is a directory of UTF-8 text files, one sentence or paragraph a line, a blank
line between documents, or of JSON Lines, each record a document; both may be compressed
or in tar archives; of Parquet or Arrow files; or a prepared data set of
tensorflow_datasets (--tfds). Run an interrupted command again and it goes on where it
was.
"""

from absl import flags

from electra_tf import cli
from electra_tf.commands import building
from electra_tf.errors import UserError
from electra_tf.storage.remote import fetch
from electra_tf.text import corpus, units

FLAGS = flags.FLAGS

cli.define_path(
    "corpus_dir",
    None,
    "Directory of text: .jsonl, .ndjson and .json (JSON Lines), .parquet, .arrow and "
    "tar archives by their names, all other files as lines; also in .gz, .xz, .zst, "
    ".bz2.",
    in_bucket=True,
)
flags.DEFINE_string(
    "text_key",
    "text",
    "Where the text is in JSON Lines, Parquet and Arrow; a/b is b inside a.",
)
flags.DEFINE_string(
    "tfds",
    None,
    "Instead of --corpus-dir: NAME:FIELD of a prepared data set of "
    "tensorflow_datasets, such as wikipedia/20230601.en:text.",
)
cli.define_path("tfds_data_dir", None, "Where tensorflow_datasets keeps its data.")
cli.define_path("vocab_file", None, "Vocabulary, one wordpiece a line.", in_bucket=True)
cli.define_path(
    "output_dir", None, "Where the shards go; new or empty.", in_bucket=True
)
flags.DEFINE_boolean(
    "blanks_separate_docs",
    None,
    "Whether a blank line ends a document. Default: true for text files; false for "
    "records of JSON Lines, tables and tensorflow_datasets, each of them a document.",
)
_build = building.define_flags()
flags.mark_flags_as_required(["vocab_file", "output_dir"])


def main(_):
    """Builds the data as the flags say."""
    if (FLAGS.corpus_dir is None) == (FLAGS.tfds is None):
        raise UserError("give either --corpus-dir or --tfds.")
    if FLAGS.corpus_dir:
        corpus.check_outside(FLAGS.output_dir, FLAGS.corpus_dir, "--output-dir")
        corpus.check_outside(FLAGS.vocab_file, FLAGS.corpus_dir, "--vocab-file")

    def read() -> units.Corpus:
        if FLAGS.corpus_dir:
            return units.file_corpus(fetch(FLAGS.corpus_dir), FLAGS.text_key)
        return units.tfds_corpus(FLAGS.tfds, FLAGS.tfds_data_dir)

    place = FLAGS.vocab_file, FLAGS.output_dir
    reading = FLAGS.text_key, FLAGS.tfds_data_dir
    _build(read, *place, FLAGS.blanks_separate_docs, *reading)
