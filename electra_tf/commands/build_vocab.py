# SPDX-License-Identifier: Apache-2.0
"""Builds a WordPiece vocabulary from text.

Example:
  python3 build_vocab.py --corpus-dir texts --vocab-size 30522 --output-file vocab.txt

The tokenizer settings are written beside it (vocab.txt.json), where
build_pretraining_dataset.py finds them. The file does not depend on the number of
processes.
"""

import os

from absl import flags

from electra_tf import cli
from electra_tf.commands import shared_flags
from electra_tf.errors import UserError
from electra_tf.paths import shown
from electra_tf.storage.files import check_place
from electra_tf.storage.mirror import Outputs
from electra_tf.text import corpus, records
from electra_tf.text.vocabulary import (
    SPECIAL_TOKENS,
    TokenizerConfig,
    read_if_there,
    settings_path,
)

_MANY_STRIPPED = 0.01  # of the words; French has a fifth, English hardly any

shared_flags.define_corpus()
_VOCAB_SIZE = flags.DEFINE_integer(
    "vocab_size", 30522, "Number of tokens, special ones included.", lower_bound=1
)
_OUTPUT_FILE = shared_flags.define_path(
    "output_file", "Where to write the vocabulary.", required=True
)
_LOWER = cli.define_pair(
    "do_lower_case", "no_lower_case", True, "Lower-case the text (uncased vocabulary)."
)
_ACCENTS = cli.define_pair(
    "strip_accents",
    "no_strip_accents",
    True,
    "Strip accents. Has no effect on a cased vocabulary.",
)
_MIN_FREQUENCY = flags.DEFINE_integer(
    "min_frequency",
    2,
    "How often a piece must occur in the corpus to become a token.",
    lower_bound=1,
)
_NUM_UNUSED = flags.DEFINE_integer(
    "num_unused", 0, "Number of [unusedN] tokens to keep for later use.", lower_bound=0
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "Processes that count words (default: one per core)."
)
shared_flags.define_runner()
_OVERWRITE = flags.DEFINE_boolean(
    "overwrite", False, "Replace the output file if it exists."
)


def main(argv: list[str]) -> None:
    """Trains a vocabulary by the flags."""
    output = _check_flags()
    # Imported late, so that wrong flags are reported first.
    from electra_tf.data import vocabulary_training
    from electra_tf.jobs.job import Runner

    config = TokenizerConfig(_LOWER.value, _ACCENTS.value)
    text, reading = shared_flags.read_corpus()
    if spec := flags.FLAGS.tfds:
        name, *_ = records.open_tfds(spec, reading.tfds_data_dir)
        source = {"tfds": f"{name}:{spec.rpartition(':')[2]}"}
    else:
        source = {"corpus_dir": flags.FLAGS.corpus_dir, "num_files": text.num_files}
    with Outputs(*os.path.split(output)):
        vocab, counts, num_padding = vocabulary_training.build(
            text,
            config,
            reading,
            output,
            Runner(_NUM_PROCESSES.value or os.cpu_count(), shared_flags.beam_args()),
            _VOCAB_SIZE.value,
            _MIN_FREQUENCY.value,
            _NUM_UNUSED.value,
            corpus=source,
        )
    num_words = counts.words.total() + counts.num_forgotten
    print(
        f"{shown(output)}: {len(vocab)} tokens ({config}) from {num_words:,} words, "
        f"{len(counts.words):,} of them different."
    )
    if number := counts.num_too_long:
        print(f"Left out: {vocabulary_training.describe_too_long(number)}")
    if counts.num_stripped > _MANY_STRIPPED * num_words:
        print(
            f"warning: stripping accents changed {counts.num_stripped:,} of these "
            "words. If the language needs its accents, vowel signs or diacritics,\n"
            "build again with --no-strip-accents."
        )
    if counts.replaced_in:
        print(f"Left out: {corpus.describe_replaced(counts.replaced_in)}.")
    if num_padding:
        print(
            f"The corpus gave no more than {len(vocab) - num_padding} tokens: "
            f"the last {num_padding} are [unusedN].\n"
            "A smaller --vocab-size would do, or --min-frequency 1."
        )


def _check_flags() -> str:
    """Raises UserError for flags that do not go together; returns the output file."""
    shared_flags.check_corpus("output_file")
    least = len(SPECIAL_TOKENS) + _NUM_UNUSED.value
    if _VOCAB_SIZE.value <= least:
        raise UserError(
            f"--vocab-size {_VOCAB_SIZE.value} leaves no room beside the {least} "
            "special and unused tokens."
        )
    shared_flags.beam_args()
    output = _OUTPUT_FILE.value
    if os.path.isdir(output):
        raise UserError(f"--output-file {output} is a directory; name a file in it.")
    folder = os.path.dirname(output) or "."
    check_place(folder)
    for path in (output, settings_path(output)):
        if not _OVERWRITE.value and read_if_there(path) is not None:
            raise UserError(
                f"{path} exists already.\nGive another --output-file, or --overwrite "
                "to replace it."
            )
    return output
