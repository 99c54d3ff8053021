# SPDX-License-Identifier: Apache-2.0
"""Flags that several commands have."""

from collections.abc import Callable
from typing import Any

from absl import flags

from electra_tf import cli
from electra_tf.errors import EXIT_FLAGS, UserError

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
