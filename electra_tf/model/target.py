# SPDX-License-Identifier: Apache-2.0
"""What a step is compiled for, where one form of the same mathematics suits it better.

Like Keras's dtype policy it holds for the process, and is looked at when a graph is
made. Without it, everything is in the form that suits CPUs.
"""

TARGETS = ("cpu", "gpu", "tpu")
_target = "cpu"


def set_target(name: str) -> None:
    """Chooses one of `TARGETS`."""
    global _target  # noqa: PLW0603
    if name not in TARGETS:
        raise ValueError(f"target is {name!r}; it is one of {', '.join(TARGETS)}")
    _target = name


def is_for_tpu() -> bool:
    """Whether what is traced now is for TPUs."""
    return _target == "tpu"
