# SPDX-License-Identifier: Apache-2.0
"""What the builders of pre-training data and vocabularies share: flags."""

from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

from electra_tf import cli
from electra_tf.commands.shared_flags import define_path, define_runner
from electra_tf.data import dataset_building
from electra_tf.data.filters import Filters
from electra_tf.data.record_making import BuildSettings
from electra_tf.errors import EXIT_CONFIG, UserError
from electra_tf.storage.remote import fetch
from electra_tf.text import corpus, units
from electra_tf.text.vocabulary import Vocabulary, resolve_settings

FLAGS = flags.FLAGS
# Flags defined through this module belong to the command that asked for them.
flags.disclaim_key_flags()


class CorpusFlags(NamedTuple):
    """The flags that name a corpus, and what they name."""

    directory: flags.FlagHolder
    text_key: flags.FlagHolder
    tfds: flags.FlagHolder
    tfds_data_dir: flags.FlagHolder

    def check(self, exit_code: int = EXIT_CONFIG) -> None:
        """Raises `UserError` unless there is one corpus."""
        if bool(self.directory.value) == bool(self.tfds.value):
            raise UserError("give either --corpus-dir or --tfds.", exit_code)

    def check_outside(self, **others: str) -> None:
        """Raises `UserError` if the path of another flag is in the corpus."""
        if self.directory.value:
            for name, path in others.items():
                flag = f"--{name.replace('_', '-')}"
                corpus.check_outside(path, self.directory.value, flag)

    def read(self, encoding_errors: str) -> tuple[units.Corpus, units.Reading]:
        """The corpus, and how its texts are read."""
        key, data_dir = self.text_key.value, self.tfds_data_dir.value
        reading = units.Reading(encoding_errors, key, data_dir)
        if self.tfds.value:
            return units.tfds_corpus(self.tfds.value, data_dir), reading
        return units.file_corpus(fetch(self.directory.value), key), reading


def define_corpus() -> CorpusFlags:
    """Defines the flags that name a corpus."""
    return CorpusFlags(
        define_path(
            "corpus_dir",
            "Directory of text: .jsonl, .ndjson and .json (JSON Lines), .parquet, "
            ".arrow and tar archives by their names, all other files as lines; also in "
            ".gz, .xz, .zst, .bz2.",
        ),
        flags.DEFINE_string(
            "text_key",
            "text",
            "Where the text is in JSON Lines, Parquet and Arrow; a/b is b inside a.",
        ),
        flags.DEFINE_string(
            "tfds",
            None,
            "Instead of --corpus-dir: NAME:FIELD of a prepared data set of "
            "tensorflow_datasets, such as wikipedia/20230601.en:text.",
        ),
        cli.define_path(
            "tfds_data_dir", None, "Where tensorflow_datasets keeps its data."
        ),
    )


def define_encoding_errors() -> flags.FlagHolder:
    """Defines --encoding-errors."""
    return flags.DEFINE_enum(
        "encoding_errors",
        "strict",
        corpus.ENCODING_ERRORS,
        "What to do with bytes that are not UTF-8: stop, or leave them out and count "
        "them.",
    )


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
    encoding_errors = define_encoding_errors()
    filters, beam_args = _define_filters(), define_runner()

    def build(
        read: Callable[[str], tuple[units.Corpus, units.Reading]],
        vocab_file: str,
        output_dir: str,
        blanks_separate_docs: bool | None,
    ) -> None:
        options, vocab = beam_args(), Vocabulary.load(vocab_file)
        text, reading = read(encoding_errors.value)
        settings = BuildSettings(
            vocab_file=vocab_file,
            tokenizer=resolve_settings(vocab, FLAGS.do_lower_case, FLAGS.strip_accents),
            max_seq_length=FLAGS.max_seq_length,
            blanks_separate_docs=blanks_separate_docs,
            seed=FLAGS.seed,
            reading=reading,
            filters=Filters.of_flags(filters),
        )
        dataset_building.build(
            text,
            output_dir,
            settings,
            num_processes=FLAGS.num_processes,
            num_shards=FLAGS.num_out_files,
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
