# SPDX-License-Identifier: Apache-2.0
"""Imports TensorFlow for a script, without the notices it prints whatever one does."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.util
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator

# Printed by C++ code on every start, before any log level applies.
_NOTICES = re.compile(
    rb"absl::InitializeLog|oneDNN custom operations are on|Could not find cuda drivers"
    rb"|optimized to use available CPU instructions|rebuild TensorFlow with"
    rb"|failed call to cuInit: (INTERNAL: .*)?UNKNOWN ERROR \(303\)"
)

_is_filtered = False
# Whether only a script uses this Keras; `cli.run` says so.
in_script = False

# Keras imports them where they are installed, for wrappers that no script uses. That
# would be a third of the time that the import of TensorFlow takes.
_FOR_WRAPPERS = ("matplotlib", "sklearn")


def import_tensorflow() -> None:
    """Imports tensorflow and finds its devices; passes on what is worth reading.

    What is known to say nothing is dropped: notices of how TensorFlow was built, and
    that a machine without a GPU driver has none.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with filtered_stderr(), absent(_FOR_WRAPPERS if in_script else ()):
        import tensorflow as tf

        tf.config.list_physical_devices()


class _OnImport(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, around: Callable[[Callable, types.ModuleType], None]):
        self._name, self._around = name, around

    def find_spec(self, fullname, path, target=None):
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute, around = spec.loader.exec_module, self._around
            spec.loader.exec_module = lambda module: around(execute, module)
        return spec


def on_import(name: str, around: Callable[[Callable, types.ModuleType], None]) -> None:
    """Calls `around(execute, module)` in place of `execute(module)` of a module.

    It is executed at its first import, which is still to come, by any other module.
    """
    sys.meta_path.insert(0, _OnImport(name, around))


def filter_import() -> None:
    """Drops the notices of TensorFlow's import in a user's program, too.

    Devices are left for the program to choose, and so are log levels.
    """

    def filtered(execute: Callable, module: types.ModuleType) -> None:
        with filtered_stderr():
            execute(module)

    if "tensorflow" not in sys.modules:
        on_import("tensorflow", filtered)


def keep_triton_out() -> None:
    """To be called before torch or transformers is imported beside TensorFlow.

    torch's CUDA build brings triton, whose import ends a process that has TensorFlow:
    each has an LLVM of its own. torch does without it where it is not installed.
    """
    sys.modules.setdefault("triton", None)


@contextlib.contextmanager
def absent(modules: Iterable[str]) -> Iterator[None]:
    """Lets imports of modules fail in the block, as if they were not installed."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def filtered_stderr():
    """Sends file descriptor 2 through this file, run as a process of its own.

    The notices come before any log level applies, and that process outlives an abort of
    this one and passes on its message.
    """
    import subprocess

    global _is_filtered
    if _is_filtered:
        yield
        return
    _is_filtered = True
    sys.stderr.flush()
    # In a session of its own, Ctrl-C does not reach it.
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    kept = os.dup(2)
    os.dup2(child.stdin.fileno(), 2)
    child.stdin.close()
    try:
        yield
    finally:
        _is_filtered = False
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        child.wait()


def _filter() -> None:
    for line in sys.stdin.buffer:
        if not _NOTICES.search(line):
            sys.stderr.buffer.write(line.rstrip(b"\n") + b"\n")
            sys.stderr.buffer.flush()


if __name__ == "__main__":
    _filter()
