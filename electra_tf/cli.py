# SPDX-License-Identifier: Apache-2.0
"""Start of every command: absl flags in the original's spellings, and error messages.

A command defines its flags with `absl.flags` (and `define_pair`), has `main(argv)`, and
ends with

    if __name__ == "__main__":
        cli.run(main)

The docstring of its module is its `--help` text, with an example. TensorFlow is not
among its top-level imports, so that `--help` and errors in flags and hparams are quick.
"""

import atexit
import contextlib
import errno
import functools
import gc
import os
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

from electra_tf import processes, startup
from electra_tf.console import open_closed_streams, printable, say
from electra_tf.errors import (
    EXIT_CANNOT_WRITE,
    EXIT_CONFIG,
    EXIT_FLAGS,
    EXIT_PEER_LOST,
    EXIT_PREEMPTED,
    LEFT,
    UserError,
)
from electra_tf.paths import local_of, shown

# Flags defined through this module belong to the calling script.
flags.disclaim_key_flags()

FLAGS = flags.FLAGS

_EXIT_INTERRUPTED = 130  # The shell's convention for a process ended by Ctrl-C.
_BOOLEANS = ("true", "false", "t", "f", "1", "0")
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# Errors due to a user's path or its file system, wherever it is opened.
_CANNOT_OPEN = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG)
_CANNOT_OPEN += (errno.EIO, errno.ESTALE)
# Messages of TensorFlow, XLA and NumPy.
_TOO_LARGE = re.compile(
    r"OOM when allocating tensor with shape\[.*?\].*? on \S+"
    r"|Out of memory (while )?trying to allocate [\d.]+ ?\w+"
    r"|Unable to allocate [^\n]+"
)

# The module of the running `main`, with the flags and the docstring of the command.
_module = "__main__"
# The original's names of boolean flags -> absl's: {"no_lower_case": "nodo_lower_case"}.
_spellings: dict[str, str] = {}


def run(
    main: Callable[[list[str]], Any],
    commands: Mapping[str, str] | None = None,
    argv: Sequence[str] | None = None,
) -> None:
    """Parses the command line, calls `main(argv)` and exits with its return value.

    With `commands` (name -> names of the flags that it uses), the first argument is one
    of them, which `main` finds in argv[1]; other flags are refused.

    Flags may be spelled with hyphens or underscores (`--data-dir`, `--data_dir`).
    A boolean may be `--x`, `--nox`, `--no-x`, `--x=False` or `--x False`. Other
    arguments are refused. A `UserError` is printed as `error: ...` on stderr and ends
    the process with its exit code; other exceptions, which are defects of the program,
    keep their traceback.
    """
    global _module
    _module = main.__module__
    open_closed_streams()
    processes.end_with_parent()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    startup.in_command = True
    # Saves the search for cycles at the end, which takes a second.
    atexit.register(gc.freeze)
    app.run(
        *(functools.partial(_call, main), argv),
        flags_parser=lambda argv: _parse_flags(argv, commands or {}),
    )


def define_pair(
    name: str, negative: str, default: bool, help: str, positive: str | None = None
) -> Any:
    """Defines the boolean flag `--name` that `--negative` switches off.

    For the original's argparse pairs with different names, such as
    `define_pair("do_lower_case", "no_lower_case", True, "...")`. `--positive` is an
    alias of `--name`. Returns absl's FlagHolder.
    """
    _spellings[negative] = f"no{name}"
    if positive:
        _spellings[positive] = name
    return flags.DEFINE_boolean(name, default, help)


def define_path(
    name: str, default: str | None, help: str, in_bucket: bool = False, **kwargs: Any
) -> Any:
    """Defines the flag `--name` of a file or directory; returns absl's FlagHolder.

    With `in_bucket` the path may be in a bucket; the value is then its place in the
    cache, for `storage.remote` to download or upload. Unsupported paths are refused.
    `kwargs` are those of `flags.DEFINE`.
    """
    return flags.DEFINE(_PathParser(not in_bucket), name, default, help, **kwargs)


class _PathParser(flags.ArgumentParser):
    def __init__(self, here: bool):
        self._here = here

    def parse(self, argument: str) -> str:
        if not argument:  # an unset variable of a shell
            raise ValueError("a path is needed; leave the flag out for its default")
        return local_of(argument, self._here)


def _call(main: Callable[[list[str]], Any], argv: list[str]) -> Any:
    """Calls `main` so that the user's mistakes end without a traceback."""
    # absl shows what libraries report; commands have messages of their own.
    logging.set_verbosity(logging.WARNING)
    try:
        code = main(argv)
    except UserError as e:
        if e.exit_code == EXIT_PEER_LOST:
            _leave(e.exit_code, str(e))
        _exit(str(e), e.exit_code)
    except KeyboardInterrupt:
        _exit("interrupted", _EXIT_INTERRUPTED)
    except OSError as e:
        if e.errno in _CANNOT_OPEN and e.filename is not None:
            _exit(f"cannot open {e.filename}: {e.strerror}", EXIT_CONFIG)
        if e.errno not in _CANNOT_WRITE:
            raise
        _exit(f"cannot write {e.filename or ''}: {e.strerror}", EXIT_CANNOT_WRITE)
    except Exception as e:
        # By name, as not every script imports TensorFlow.
        if type(e).__name__ not in ("ResourceExhaustedError", "MemoryError"):
            raise
        _leave(EXIT_CONFIG, _out_of_memory(e))
    if code == EXIT_PREEMPTED and "TF_CONFIG" not in os.environ:
        _leave(code)
    return code


def _out_of_memory(error: Exception) -> str:
    """The relevant part of an out-of-memory message, and advice."""
    found = _TOO_LARGE.search(str(error))
    advice = "Close what else uses this memory, or take a larger machine or device."
    if "hparams" in FLAGS:
        advice = (
            "A larger gradient_accumulation_steps needs less, with the same results; "
            "or take a smaller\nmodel or eval_batch_size, a shorter max_seq_length or "
            'precision "mixed_bfloat16".'
        )
    return f"not enough memory{f': {found[0]}' if found else ''}.\n{advice}"


def _leave(code: int, message: str = "") -> NoReturn:
    """Ends the process without the cleanup of Python and TensorFlow.

    Cleanup takes two seconds for ELECTRA-Small, and a scheduler may not wait.
    """
    if message:
        _report(message)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # The terminal may be closed.
            stream.flush()
    os._exit(code)


def _report(message: str) -> None:
    say(f"error: {printable(shown(message))}", sys.stderr)


def _exit(message: str, code: int) -> NoReturn:
    _report(message)
    sys.exit(code)


def _refuse(problem: str) -> NoReturn:
    _exit(f"{problem}\nTry --help.", EXIT_FLAGS)


def _parse_flags(argv: Sequence[str], commands: Mapping[str, str]) -> list[str]:
    """absl's parser with the original's spellings; exits on a wrong command line."""
    args, command = _normalize(argv[1:]), []
    if "--help" in args:
        print(_help_text())
        sys.exit(0)
    if commands:
        command, args = args[:1], args[1:]
        if not command or command[0] not in commands:
            _refuse(f"the first argument must be one of {', '.join(commands)}.")
    try:
        rest = FLAGS([argv[0], *args])
    except (flags.Error, ValueError) as e:
        missing = re.search(r"Flag --(\w+) must have a value other than None", str(e))
        _refuse(f"--{_hyphens(missing[1])} must be given" if missing else str(e))
    if len(rest) > 1:
        _refuse(f"unexpected argument {rest[1]!r}: every option starts with --.")
    used = {name: names.split() for name, names in commands.items()}
    for flag in _script_flags() if command else ():
        if flag.present and flag.name not in used[command[0]]:
            others = " and ".join(name for name in used if flag.name in used[name])
            _refuse(f"--{_hyphens(flag.name)} is used by {others}, not {command[0]}.")
    return [*rest, *command]


def _normalize(args: Sequence[str]) -> list[str]:
    """Rewrites arguments to absl's spelling, without changing values."""
    result = []
    args = list(args)
    while args:
        arg = args.pop(0)
        if arg == "--" or not arg.startswith("-"):
            result.append(arg)
            continue
        if arg in ("-h", "--help", "--helpshort"):
            result.append("--help")
            continue
        name, equals, value = arg.lstrip("-").partition("=")
        flag = f"--{_hyphens(name)}"
        for given in (flag, f"{flag} {value if equals else ''.join(args[:1])}"):
            if left := LEFT.get(given):
                _refuse(f"{given} {left.message}.")
        name = _flag_name(name)
        if name is None:
            result.append(arg)
            continue
        is_boolean = name not in FLAGS or FLAGS[name].boolean
        if is_boolean and not equals and args and args[0].lower() in _BOOLEANS:
            equals, value = "=", args.pop(0)  # `--blanks-separate-docs False`
        result.append(f"--{name}{equals}{value}")
        if not is_boolean and not equals and args:
            result.append(args.pop(0))
    return result


def _flag_name(name: str) -> str | None:
    """absl's name of a flag, with the prefix `no`; None for an unknown flag."""
    name = name.replace("-", "_")
    if name in FLAGS:
        return name
    if name in _spellings:
        return _spellings[name]
    for prefix in ("no", "no_"):
        positive = name.removeprefix(prefix)
        if positive != name and positive in FLAGS and FLAGS[positive].boolean:
            return "no" + positive
    return None


def _script_flags() -> list[flags.Flag]:
    """The flags of the script itself, in alphabetical order."""
    name = sys.argv[0] if _module == "__main__" else _module
    found = FLAGS.get_key_flags_for_module(name)
    return sorted(found, key=lambda flag: flag.name)


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def _help_text() -> str:
    """The script's docstring, then its flags with their defaults."""
    lines = [(sys.modules[_module].__doc__ or "").strip()]
    others = {name: spelling for spelling, name in _spellings.items()}
    found = _script_flags()
    lines += ["", "Flags:"] if found else []
    for flag in found:
        names = [flag.name]
        if flag.boolean:
            names += [others[flag.name]] if flag.name in others else []
            names.append(others.get(f"no{flag.name}", f"no_{flag.name}"))
        spelling = " / ".join(f"--{_hyphens(name)}" for name in names)
        default = "" if flag.default is None else f" (default: {flag.default})"
        lines.append(f"  {spelling}")
        lines += textwrap.wrap(
            f"{flag.help}{default}",
            width=88,
            initial_indent=" " * 6,
            subsequent_indent=" " * 6,
        )
    return "\n".join(lines)
