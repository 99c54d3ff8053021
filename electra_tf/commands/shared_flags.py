# SPDX-License-Identifier: Apache-2.0
"""Flags that several commands have."""

from collections.abc import Callable, Sequence
from typing import Any

from absl import flags

from electra_tf import cli
from electra_tf.errors import EXIT_FLAGS, UserError

# Flags defined through this module belong to the command that asked for them.
flags.disclaim_key_flags()


def define_run(data_dir: str, model_name: str) -> None:
    """Defines --data-dir, --model-name, --hparams and --config of a run.

    Args:
      data_dir, model_name: what their help says.
    """
    cli.define_path("data_dir", None, data_dir, in_bucket=True)
    flags.DEFINE_string("model_name", None, model_name)
    flags.DEFINE_string(
        "hparams", "{}", "JSON text or file of hparams; docs/hparams.md lists them."
    )
    cli.define_path(
        "config",
        None,
        "Hparams that --hparams overrides: a recipe of configs/, such as "
        "electra_small, or a JSON file.",
        in_bucket=True,
    )
    flags.mark_flags_as_required(["data_dir", "model_name"])


def define_building(encoding_errors: Sequence[str]) -> None:
    """Defines the flags of both builders of pre-training data, but for the filters."""
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
        "num_out_files", None, "Number of shards. Default: one for about 64 MB."
    )
    flags.DEFINE_enum(
        "encoding_errors",
        "strict",
        encoding_errors,
        "What to do with bytes that are not UTF-8: stop, or leave them out and count "
        "them.",
    )


def define_filters() -> dict[str, Any]:
    """Defines the flags of `text.filters.Filters`; FlagHolders by field."""
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
