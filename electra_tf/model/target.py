# SPDX-License-Identifier: Apache-2.0
"""What a step is compiled for, where one form of the same mathematics suits it better.

Like Keras's dtype policy it holds for the process, and is looked at when a graph is
made. Without it, everything is in the form that suits CPUs.
"""

import contextlib
from collections.abc import Iterator

TARGETS = ("cpu", "gpu", "tpu")
_target = "cpu"
_is_compiled = False


def set_target(name: str) -> None:
    """Chooses one of `TARGETS`."""
    global _target  # noqa: PLW0603
    if name not in TARGETS:
        raise ValueError(f"target is {name!r}; it is one of {', '.join(TARGETS)}")
    _target = name


def is_for_cpu() -> bool:
    """Whether what is traced now is for CPUs."""
    return _target == "cpu"


def is_for_tpu() -> bool:
    """Whether what is traced now is for TPUs."""
    return _target == "tpu"


@contextlib.contextmanager
def compiled() -> Iterator[None]:
    """For tracing what XLA compiles as a whole."""
    global _is_compiled  # noqa: PLW0603
    before, _is_compiled = _is_compiled, True
    try:
        yield
    finally:
        _is_compiled = before


def compiled_for() -> str | None:
    """The platform that XLA compiles the current trace for; None without XLA."""
    return _target if _is_compiled or is_for_tpu() else None
