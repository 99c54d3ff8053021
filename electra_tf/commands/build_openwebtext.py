# SPDX-License-Identifier: Apache-2.0
"""Builds pre-training data from OpenWebText's archives of web pages.

    python3 build_openwebtext_pretraining_dataset.py --data-dir D --num-processes 5

Reads D/openwebtext/*.xz (tar archives of text files, straight from the archives) with
the vocabulary D/vocab.txt, and writes D/pretrain_tfrecords. Run an interrupted command
again and it goes on where it was.
"""

import os

from absl import flags

from electra_tf.commands import building
from electra_tf.commands.shared_flags import define_path
from electra_tf.storage.remote import fetch
from electra_tf.text import units

FLAGS = flags.FLAGS

define_path(
    "data_dir", "Directory with openwebtext/ and vocab.txt; data goes there too."
)
_build = building.define_flags()
flags.mark_flag_as_required("data_dir")


def main(_):
    """Builds the data as the flags say."""
    source, vocab_file, output_dir = (
        os.path.join(FLAGS.data_dir, name)
        for name in ("openwebtext", "vocab.txt", "pretrain_tfrecords")
    )

    def read(encoding_errors: str) -> tuple[units.Corpus, units.Reading]:
        return units.archive_corpus(fetch(source)), units.Reading(encoding_errors)

    # Every page is a file; blank lines in it separate paragraphs.
    _build(read, vocab_file, output_dir, False)
