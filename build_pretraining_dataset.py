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

import electra_tf
from electra_tf import cli
from electra_tf.commands import shared_flags
from electra_tf.data import dataset_building
from electra_tf.data.record_making import BuildSettings
from electra_tf.errors import UserError
from electra_tf.storage.remote import fetch
from electra_tf.text import corpus, units
from electra_tf.text.filters import Filters
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

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
shared_flags.define_building(corpus.ENCODING_ERRORS)
FILTERS = shared_flags.define_filters()
BEAM_ARGS = shared_flags.define_runner()
flags.mark_flags_as_required(["vocab_file", "output_dir"])


def main(_):
    """Builds the data as the flags say."""
    beam_args = BEAM_ARGS()
    if (FLAGS.corpus_dir is None) == (FLAGS.tfds is None):
        raise UserError("give either --corpus-dir or --tfds.")
    if FLAGS.corpus_dir:
        corpus.check_outside(FLAGS.output_dir, FLAGS.corpus_dir, "--output-dir")
        corpus.check_outside(FLAGS.vocab_file, FLAGS.corpus_dir, "--vocab-file")
    vocab = Vocabulary.load(FLAGS.vocab_file)
    if FLAGS.tfds is None:
        text = units.file_corpus(fetch(FLAGS.corpus_dir), FLAGS.text_key)
    else:
        text = units.tfds_corpus(FLAGS.tfds, FLAGS.tfds_data_dir)
    blanks_separate_docs = FLAGS.blanks_separate_docs
    if blanks_separate_docs is None:
        blanks_separate_docs = text.blanks_separate_docs()
    settings = BuildSettings(
        vocab_file=FLAGS.vocab_file,
        tokenizer=resolve_settings(
            vocab, FLAGS.do_lower_case, FLAGS.strip_accents, of_flags=True
        ),
        max_seq_length=FLAGS.max_seq_length,
        blanks_separate_docs=blanks_separate_docs,
        seed=FLAGS.seed,
        reading=units.Reading(
            FLAGS.encoding_errors, FLAGS.text_key, FLAGS.tfds_data_dir
        ),
        filters=Filters.of_flags(FILTERS),
    )
    dataset_building.build(
        text,
        FLAGS.output_dir,
        settings,
        num_processes=FLAGS.num_processes,
        num_shards=FLAGS.num_out_files,
        tool_version=electra_tf.__version__,
        beam_args=beam_args,
    )


if __name__ == "__main__":
    cli.run(main)
