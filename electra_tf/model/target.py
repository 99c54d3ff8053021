# SPDX-License-Identifier: Apache-2.0
"""The target device of a step; some operations have faster equivalents there.

A setting of the process, like Keras's dtype policy, which is read when a graph is
traced. The default is the CPU.
"""

import contextlib
from collections.abc import Iterator

_target = "cpu"
_is_compiled = False


def set_target(name: str) -> None:
    """Chooses "cpu", "gpu" or "tpu"."""
    global _target  # noqa: PLW0603
    _target = name


def is_for_cpu() -> bool:
    """Whether graphs are traced for CPUs."""
    return _target == "cpu"


def is_for_tpu() -> bool:
    """Whether graphs are traced for TPUs."""
    return _target == "tpu"


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """A block that traces a graph for XLA."""
    global _is_compiled  # noqa: PLW0603
    before, _is_compiled = _is_compiled, True
    try:
        yield
    finally:
        _is_compiled = before


def compiled_for() -> str | None:
    """The platform for which XLA compiles the current trace; None without XLA."""
    return _target if _is_compiled or is_for_tpu() else None
