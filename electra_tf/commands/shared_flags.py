# SPDX-License-Identifier: Apache-2.0
"""Flags of several commands."""

from typing import Any

from absl import flags

from electra_tf import cli
from electra_tf.errors import EXIT_FLAGS, UserError
from electra_tf.text import corpus, units

FLAGS = flags.FLAGS
# Flags defined through this module belong to the calling command.
flags.disclaim_key_flags()


def define_path(name: str, help: str, **kwargs: Any) -> flags.FlagHolder:
    """Defines the flag `--name` of a file or directory that may be in a bucket."""
    return cli.define_path(name, None, help, in_bucket=True, **kwargs)


def define_run() -> None:
    """Defines --data-dir, --model-name, --hparams and --config of a run."""
    define_path("data_dir", "Location of data files, vocabulary and models.")
    name = "Name of the pre-trained model; its run is in <data-dir>/models."
    flags.DEFINE_string("model_name", None, name)
    flags.DEFINE_string(
        "hparams", "{}", "JSON text or file of hparams; docs/hparams.md lists them."
    )
    define_path(
        "config",
        "Hparams that --hparams overrides: a recipe of configs/, such as "
        "electra_small, or a JSON file.",
    )
    flags.mark_flags_as_required(["data_dir", "model_name"])


def define_runner() -> None:
    """Defines --runner and --beam-args; `beam_args` is their value."""
    flags.DEFINE_enum(
        "runner",
        "local",
        ["local", "beam"],
        "Processes of this machine, or Apache Beam; the result is the same.",
    )
    flags.DEFINE_string(
        "beam_args",
        None,
        "Options of Beam, as '--runner=FlinkRunner --flink_master=...'. Default: "
        "Beam's own engine in this process.",
    )


def beam_args(processes: str = "num_processes") -> str | None:
    """The options of Beam; None: processes of this machine.

    Args:
      processes: the flag for their number.

    Raises `UserError` for flags that do not go together.
    """
    given = FLAGS.beam_args
    if FLAGS.runner == "local":
        if given is not None:
            raise UserError("--beam-args is for --runner beam.", EXIT_FLAGS)
        return None
    if FLAGS[processes].present:
        raise UserError(
            f"--{processes.replace('_', '-')} is for --runner local; --beam-args names "
            "the workers of Beam.",
            EXIT_FLAGS,
        )
    return given or ""


def define_corpus() -> None:
    """Defines the flags that name a corpus, and --encoding-errors."""
    define_path(
        "corpus_dir",
        "Directory of text: .jsonl, .ndjson and .json (JSON Lines), .parquet, "
        ".arrow and tar archives by their names, all other files as lines; also in "
        ".gz, .xz, .zst, .bz2.",
    )
    flags.DEFINE_string(
        "text_key",
        "text",
        "Key or column of the text in JSON Lines, Parquet and Arrow.",
    )
    flags.DEFINE_string(
        "tfds",
        None,
        "Instead of --corpus-dir: NAME:FIELD of a prepared data set of "
        "tensorflow_datasets, such as wikipedia/20230601.en:text.",
    )
    cli.define_path("tfds_data_dir", None, "Where tensorflow_datasets keeps its data.")
    define_encoding_errors()


def check_corpus(*others: str) -> None:
    """Raises `UserError` unless there is one corpus.

    Args:
      others: flags of paths that must be outside the corpus.
    """
    directory = FLAGS.corpus_dir
    if bool(directory) == bool(FLAGS.tfds):
        raise UserError("give either --corpus-dir or --tfds.", EXIT_FLAGS)
    for name in others if directory else ():
        corpus.check_outside(
            FLAGS[name].value, directory, f"--{name.replace('_', '-')}"
        )


def read_corpus() -> tuple[units.Corpus, units.Reading]:
    """The corpus and its `Reading`."""
    key, data_dir = FLAGS.text_key, FLAGS.tfds_data_dir
    reading = units.Reading(FLAGS.encoding_errors, key, data_dir)
    if FLAGS.tfds:
        return units.tfds_corpus(FLAGS.tfds, data_dir), reading
    return units.file_corpus(FLAGS.corpus_dir, key), reading


def define_encoding_errors() -> None:
    """Defines --encoding-errors."""
    flags.DEFINE_enum(
        "encoding_errors",
        "strict",
        corpus.ENCODING_ERRORS,
        "Bytes that are not UTF-8: stop, or replace; builders drop and count them.",
    )
