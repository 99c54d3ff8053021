# SPDX-License-Identifier: Apache-2.0
"""The commands of `electra-tf` and of the scripts: flags and a short main for each."""

import importlib
import sys
from collections.abc import Sequence

from electra_tf import cli
from electra_tf.errors import EXIT_FLAGS, EXIT_OK

# Command -> module, and in a module with several commands the function that defines
# the flags and returns main.
COMMANDS = {
    "pretrain": "commands.pretrain",
    "finetune": "commands.finetune",
    "infer": "commands.infer",
    "export": "commands.export",
    "build-vocab": "commands.build_vocab",
    "build-data": "commands.build_data:from_corpus",
    "build-openwebtext": "commands.build_data:from_openwebtext",
    "flops": "pretrain.flops",
}
_USAGE = f"""\
usage: electra-tf COMMAND [flags]; electra-tf COMMAND --help lists the flags.
Commands: {", ".join(COMMANDS)}."""


def run(name: str, argv: Sequence[str] | None = None) -> None:
    """Runs one of `COMMANDS` and exits.

    Args:
      argv: the program and the command's flags; by default the command line.
    """
    module, _, define = COMMANDS[name].partition(":")
    command = importlib.import_module(f"electra_tf.{module}")
    main = getattr(command, define)() if define else command.main
    cli.run(main, vars(command).get("SUBCOMMANDS"), argv)


def main() -> None:
    """The entry point `electra-tf`."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        run(name, [sys.argv[0], *sys.argv[2:]])
    if name in ("-h", "--help"):
        print(_USAGE)
        sys.exit(EXIT_OK)
    print(f"error: unknown command {name!r}.\n{_USAGE}", file=sys.stderr)
    sys.exit(EXIT_FLAGS)
