# SPDX-License-Identifier: Apache-2.0
"""Builds pre-training data (TFRecord shards and a manifest) from text.

    python3 build_pretraining_dataset.py --corpus-dir $CORPUS --max-seq-length 128 \\
        --vocab-file $DATA_DIR/vocab.txt --output-dir $DATA_DIR/pretrain_tfrecords
    python3 build_openwebtext_pretraining_dataset.py --data-dir $DATA_DIR

The corpus is a directory of UTF-8 text files, one sentence or paragraph a line, a blank
line between documents, or of JSON Lines, each record a document; both may be compressed
or in tar archives; of Parquet or Arrow files; or a prepared data set of
tensorflow_datasets (--tfds).

build_openwebtext_pretraining_dataset.py reads OpenWebText's $DATA_DIR/openwebtext/*.xz
(tar archives of web pages, straight from the archives) with the vocabulary
$DATA_DIR/vocab.txt, and writes $DATA_DIR/pretrain_tfrecords.

Repeat an interrupted command to continue it.
"""

import os
from collections.abc import Callable

from absl import flags

from electra_tf import cli
from electra_tf.commands import shared_flags
from electra_tf.commands.shared_flags import define_path
from electra_tf.data import dataset_building
from electra_tf.data.record_making import PACKINGS, BuildSettings
from electra_tf.text import units
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

FLAGS = flags.FLAGS


def from_corpus() -> Callable[[list[str]], None]:
    """Defines the flags of the command for any corpus; returns its main."""
    shared_flags.define_corpus()
    define_path("vocab_file", "Vocabulary, one wordpiece a line.")
    define_path("output_dir", "Where the shards go; new or empty.")
    flags.DEFINE_boolean(
        "blanks_separate_docs",
        None,
        "Whether a blank line ends a document. Default: true for text files; false for "
        "records of JSON Lines, tables and tensorflow_datasets, each of them a "
        "document.",
    )
    build = _define_build()
    flags.mark_flags_as_required(["vocab_file", "output_dir"])

    def main(_):
        shared_flags.check_corpus("vocab_file", "output_dir")
        places = FLAGS.vocab_file, FLAGS.output_dir
        build(shared_flags.read_corpus, *places, FLAGS.blanks_separate_docs)

    return main


def from_openwebtext() -> Callable[[list[str]], None]:
    """Defines the flags of the command for OpenWebText; returns its main."""
    shared_flags.define_encoding_errors()
    define_path(
        "data_dir", "Directory with openwebtext/ and vocab.txt; data is written there."
    )
    build = _define_build()
    flags.mark_flag_as_required("data_dir")

    def main(_):
        source, vocab_file, output_dir = (
            os.path.join(FLAGS.data_dir, name)
            for name in ("openwebtext", "vocab.txt", "pretrain_tfrecords")
        )

        def read() -> tuple[units.Corpus, units.Reading]:
            corpus = units.archive_corpus(source)
            return corpus, units.Reading(FLAGS.encoding_errors)

        # Every page is a file; blank lines in it separate paragraphs.
        build(read, vocab_file, output_dir, False)

    return main


def _define_build() -> Callable[..., None]:
    """Defines the flags of both commands; returns a function that builds."""
    flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.", lower_bound=8)
    processes = "Number of processes. Does not change the result."
    flags.DEFINE_integer("num_processes", 1, processes, lower_bound=1)
    default = "Default: that of the vocabulary, else true."
    cli.define_pair(
        "do_lower_case", "no_lower_case", None, f"Lower-case the text. {default}"
    )
    accents = ("strip_accents", "no_strip_accents", None, f"Strip accents. {default}")
    cli.define_pair(*accents, positive="do_strip_accents")
    flags.DEFINE_enum(
        "packing",
        PACKINGS[0],
        PACKINGS,
        "original: lines of a document, without what is too long. full: all text; what "
        "does not fit continues in the next example.",
    )
    flags.DEFINE_integer("seed", 42, "Seed of all random choices.")
    number = "Number of shards. Default: one for 4 to 64 MB."
    flags.DEFINE_integer("num_out_files", None, number, lower_bound=1)
    shared_flags.define_runner()

    def build(
        read: Callable[[], tuple[units.Corpus, units.Reading]],
        vocab_file: str,
        output_dir: str,
        blanks_separate_docs: bool | None,
    ) -> None:
        beam_args, vocab = shared_flags.beam_args(), Vocabulary.load(vocab_file)
        text, reading = read()
        settings = BuildSettings(
            vocab_file=vocab_file,
            tokenizer=resolve_settings(vocab, FLAGS.do_lower_case, FLAGS.strip_accents),
            max_seq_length=FLAGS.max_seq_length,
            blanks_separate_docs=blanks_separate_docs,
            seed=FLAGS.seed,
            reading=reading,
            packing=FLAGS.packing,
        )
        dataset_building.build(
            text,
            output_dir,
            settings,
            num_processes=FLAGS.num_processes,
            num_shards=FLAGS.num_out_files,
            beam_args=beam_args,
        )

    return build
