# SPDX-License-Identifier: Apache-2.0
"""What is settled before others are imported: Keras's backend, optional packages."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator

from electra_tf.errors import UserError

in_command = False  # set by `cli.run`

# Keras imports these for wrappers that no command uses: 0.7 s and 85 MB.
_FOR_WRAPPERS = ("matplotlib", "sklearn")


def choose_backend() -> None:
    """Makes Keras compute with TensorFlow in this process, whatever keras.json names.

    Raises `UserError` if KERAS_BACKEND or the Keras that is imported has another one.
    """
    place, backend = "KERAS_BACKEND", os.environ.get("KERAS_BACKEND")
    if keras := sys.modules.get("keras"):
        place, backend = "the backend of the imported keras", keras.backend.backend()
    if backend not in ("tensorflow", "", None):
        raise UserError(
            f"electra_tf needs Keras's TensorFlow backend, but {place} is {backend}."
        )
    os.environ["KERAS_BACKEND"] = "tensorflow"


def import_tensorflow() -> None:
    """Imports tensorflow, on which Keras then computes; raises `UserError`."""
    choose_backend()
    is_first = in_command and "tensorflow" not in sys.modules
    with _quick_import() if is_first else contextlib.nullcontext():
        import tensorflow  # noqa: F401


@contextlib.contextmanager
def _quick_import() -> Iterator[None]:
    """Saves a command a third of the time of TensorFlow's import and after it.

    A program that imports this package keeps its collector and Keras's wrappers.
    """
    unused = [name for name in _FOR_WRAPPERS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(unused))  # Keras does without them.
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()  # No collection looks through the modules again.
        for name in unused:
            sys.modules.pop(name, None)


@contextlib.contextmanager
def optional(package: str, purpose: str, extra: str = "") -> Iterator[None]:
    """For an import: if it fails, a `UserError` says what needs the package.

    Args:
      extra: of setup.py, that installs the package.
    """
    try:
        yield
    except ImportError as error:
        install = f'-e ".[{extra}]"' if extra else package
        raise UserError(
            f"{purpose} needs the package {package} ({error}).\n"
            f"Install it: pip install {install}"
        ) from None


def keep_triton_out() -> None:
    """Call this before importing torch or transformers beside TensorFlow.

    torch's CUDA build imports triton, which crashes a process with TensorFlow: each has
    its own LLVM. torch works without it.
    """
    sys.modules.setdefault("triton", None)
