# SPDX-License-Identifier: Apache-2.0
"""Flags that several commands have."""

from collections.abc import Callable
from typing import Any, NamedTuple

from absl import flags

from electra_tf import cli
from electra_tf.errors import EXIT_CONFIG, EXIT_FLAGS, UserError
from electra_tf.storage.remote import fetch
from electra_tf.text import corpus, units

# Flags defined through this module belong to the command that asked for them.
flags.disclaim_key_flags()


def define_path(name: str, help: str, **kwargs: Any) -> flags.FlagHolder:
    """Defines the flag `--name` of a file or directory that may be in a bucket."""
    return cli.define_path(name, None, help, in_bucket=True, **kwargs)


def define_run(data_dir: str, model_name: str) -> None:
    """Defines --data-dir, --model-name, --hparams and --config of a run.

    Args:
      data_dir, model_name: what their help says.
    """
    define_path("data_dir", data_dir)
    flags.DEFINE_string("model_name", None, model_name)
    flags.DEFINE_string(
        "hparams", "{}", "JSON text or file of hparams; docs/hparams.md lists them."
    )
    define_path(
        "config",
        "Hparams that --hparams overrides: a recipe of configs/, such as "
        "electra_small, or a JSON file.",
    )
    flags.mark_flags_as_required(["data_dir", "model_name"])


def define_runner(processes: str = "num_processes") -> Callable[[], str | None]:
    """Defines --runner and --beam-args; what is returned gives Beam's options or None.

    Calling it raises `UserError` for flags that do not go together.

    Args:
      processes: the flag for their number with --runner local.
    """
    runner = flags.DEFINE_enum(
        "runner",
        "local",
        ["local", "beam"],
        "Who does the work: processes of this machine, or Apache Beam; the result is "
        "the same.",
    )
    args = flags.DEFINE_string(
        "beam_args",
        None,
        "Options of Beam, as '--runner=FlinkRunner --flink_master=...'. Default: "
        "Beam's own engine in this process.",
    )

    def beam_args() -> str | None:
        if runner.value == "beam":
            if flags.FLAGS[processes].present:
                name = processes.replace("_", "-")
                raise UserError(
                    f"--{name} is for --runner local; Beam takes the number of workers"
                    "\nfrom --beam-args, as '--direct_num_workers=2 "
                    "--direct_running_mode=multi_processing'.",
                    EXIT_FLAGS,
                )
            return args.value or ""
        if args.value is not None:
            raise UserError("--beam-args is for --runner beam.", EXIT_FLAGS)
        return None

    return beam_args


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
