# SPDX-License-Identifier: Apache-2.0
"""What both builders of pre-training data share: flags, and the build by these."""

from collections.abc import Callable
from typing import Any

from absl import flags

import electra_tf
from electra_tf import cli
from electra_tf.commands.shared_flags import define_runner
from electra_tf.data import dataset_building
from electra_tf.data.filters import Filters
from electra_tf.data.record_making import BuildSettings
from electra_tf.text import corpus, units
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

FLAGS = flags.FLAGS
# Flags defined through this module belong to the command that asked for them.
flags.disclaim_key_flags()


def define_flags() -> Callable[..., None]:
    """Defines the flags of both builders; what is returned builds as they say."""
    flags.DEFINE_integer("max_seq_length", 128, "Tokens of an example.")
    flags.DEFINE_integer(
        "num_processes",
        1,
        "Processes to share the work; the result is always the same.",
    )
    usual = "Default: as the vocabulary was built, else true."
    cli.define_pair(
        "do_lower_case", "no_lower_case", None, f"Lower-case the text. {usual}"
    )
    accents = ("strip_accents", "no_strip_accents", None, f"Strip accents. {usual}")
    cli.define_pair(*accents, positive="do_strip_accents")
    flags.DEFINE_integer("seed", 42, "Seed of all random choices.")
    flags.DEFINE_integer(
        "num_out_files", None, "Number of shards. Default: one for 4 to 64 MB."
    )
    flags.DEFINE_enum(
        "encoding_errors",
        "strict",
        corpus.ENCODING_ERRORS,
        "What to do with bytes that are not UTF-8: stop, or leave them out and count "
        "them.",
    )
    filters, beam_args = _define_filters(), define_runner()

    def build(
        read: Callable[[], units.Corpus],
        vocab_file: str,
        output_dir: str,
        blanks_separate_docs: bool | None,
        *reading: str | None,
    ) -> None:
        options, vocab = beam_args(), Vocabulary.load(vocab_file)
        text = read()
        if blanks_separate_docs is None:
            blanks_separate_docs = text.blanks_separate_docs()
        settings = BuildSettings(
            vocab_file=vocab_file,
            tokenizer=resolve_settings(
                vocab, FLAGS.do_lower_case, FLAGS.strip_accents, of_flags=True
            ),
            max_seq_length=FLAGS.max_seq_length,
            blanks_separate_docs=blanks_separate_docs,
            seed=FLAGS.seed,
            reading=units.Reading(FLAGS.encoding_errors, *reading),
            filters=Filters.of_flags(filters),
        )
        dataset_building.build(
            text,
            output_dir,
            settings,
            num_processes=FLAGS.num_processes,
            num_shards=FLAGS.num_out_files,
            tool_version=electra_tf.__version__,
            beam_args=options,
        )

    return build


def _define_filters() -> dict[str, Any]:
    """Defines the flags of `data.filters.Filters`; FlagHolders by field."""
    length = "Leave out documents of fewer characters (0: none)."
    letters = "Leave out documents with a smaller share of letters, as 0.5 (0: none)."
    languages = "Leave out documents in languages other than these, as de,en."
    documents = "Leave out documents that are equal to an earlier one."
    near = "Leave out documents that are nearly equal to an earlier one (MinHash)."
    lines = "Leave out lines that are equal to an earlier one, of any document."
    return {
        "min_chars": flags.DEFINE_integer("min_document_chars", 0, length),
        "min_letters": flags.DEFINE_float("min_letters", 0.0, letters),
        "languages": flags.DEFINE_list("languages", [], languages),
        "duplicate_documents": flags.DEFINE_boolean(
            "drop_duplicate_documents", False, documents
        ),
        "near_duplicates": flags.DEFINE_boolean("drop_near_duplicates", False, near),
        "duplicate_lines": flags.DEFINE_boolean("drop_duplicate_lines", False, lines),
    }
