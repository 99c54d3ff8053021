# SPDX-License-Identifier: Apache-2.0
"""The command line: a file for each command, with its flags and a short main.

`electra-tf COMMAND` and the scripts of a checkout run the same.
"""

import importlib
import sys
from collections.abc import Sequence

from electra_tf import cli
from electra_tf.errors import EXIT_FLAGS, EXIT_OK

# What `electra-tf` takes -> the module here.
COMMANDS = {
    "pretrain": "pretrain",
    "finetune": "finetune",
    "infer": "infer",
    "export": "export",
    "build-vocab": "build_vocab",
    "build-data": "build_data",
    "build-openwebtext": "build_openwebtext",
    "flops": "flops",
}
_USAGE = f"""\
usage: electra-tf COMMAND [flags]; electra-tf COMMAND --help lists the flags.
Commands: {", ".join(COMMANDS)}."""


def run(module: str, argv: Sequence[str] | None = None) -> None:
    """Runs a command of this package and exits.

    Args:
      argv: the program and the command's flags; by default the command line.
    """
    command = importlib.import_module(f"{__name__}.{module}")
    cli.run(command.main, vars(command).get("SUBCOMMANDS"), argv)


def main() -> None:
    """The entry point `electra-tf`."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        run(COMMANDS[name], [sys.argv[0], *sys.argv[2:]])
    if name in ("-h", "--help"):
        print(_USAGE)
        sys.exit(EXIT_OK)
    print(f"error: unknown command {name!r}.\n{_USAGE}", file=sys.stderr)
    sys.exit(EXIT_FLAGS)
