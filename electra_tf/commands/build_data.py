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

from electra_tf.commands import building
from electra_tf.commands.shared_flags import define_path

FLAGS = flags.FLAGS

_corpus = building.define_corpus()
define_path("vocab_file", "Vocabulary, one wordpiece a line.")
define_path("output_dir", "Where the shards go; new or empty.")
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
    place = {"vocab_file": FLAGS.vocab_file, "output_dir": FLAGS.output_dir}
    _corpus.check()
    _corpus.check_outside(**place)
    _build(_corpus.read, **place, blanks_separate_docs=FLAGS.blanks_separate_docs)
