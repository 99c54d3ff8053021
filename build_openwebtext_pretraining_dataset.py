# SPDX-License-Identifier: Apache-2.0
"""Builds pre-training data from OpenWebText's archives of web pages.

    python3 build_openwebtext_pretraining_dataset.py --data-dir D --num-processes 5

Reads D/openwebtext/*.xz (tar archives of text files, straight from the archives) with
the vocabulary D/vocab.txt, and writes D/pretrain_tfrecords. Run an interrupted command
again and it goes on where it was.
"""

import os

from absl import flags

import electra_tf
from electra_tf import cli
from electra_tf.commands import shared_flags
from electra_tf.data import dataset_building
from electra_tf.data.record_making import BuildSettings
from electra_tf.storage.remote import fetch
from electra_tf.text import corpus, units
from electra_tf.text.filters import Filters
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

FLAGS = flags.FLAGS

cli.define_path(
    "data_dir",
    None,
    "Directory with openwebtext/ and vocab.txt; data goes there too.",
    in_bucket=True,
)
shared_flags.define_building(corpus.ENCODING_ERRORS)
FILTERS = shared_flags.define_filters()
BEAM_ARGS = shared_flags.define_runner()
flags.mark_flag_as_required("data_dir")


def main(_):
    """Builds the data as the flags say."""
    beam_args = BEAM_ARGS()
    vocab = Vocabulary.load(os.path.join(FLAGS.data_dir, "vocab.txt"))
    settings = BuildSettings(
        vocab_file=vocab.path,
        tokenizer=resolve_settings(
            vocab, FLAGS.do_lower_case, FLAGS.strip_accents, of_flags=True
        ),
        max_seq_length=FLAGS.max_seq_length,
        # Every page is a file; blank lines in it separate paragraphs.
        blanks_separate_docs=False,
        seed=FLAGS.seed,
        reading=units.Reading(FLAGS.encoding_errors),
        filters=Filters.of_flags(FILTERS),
    )
    dataset_building.build(
        units.archive_corpus(fetch(os.path.join(FLAGS.data_dir, "openwebtext"))),
        os.path.join(FLAGS.data_dir, "pretrain_tfrecords"),
        settings,
        num_processes=FLAGS.num_processes,
        num_shards=FLAGS.num_out_files,
        tool_version=electra_tf.__version__,
        beam_args=beam_args,
    )


if __name__ == "__main__":
    cli.run(main)
