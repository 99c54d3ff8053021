# SPDX-License-Identifier: Apache-2.0
"""Name tables: our names beside another library's, used in both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from electra_tf.errors import EXIT_DAMAGED, UserError


class Entry(NamedTuple):
    """One weight here and there."""

    ours: str
    theirs: str
    to_theirs: Callable[[np.ndarray], np.ndarray] | None = None  # None: as it is
    to_ours: Callable[[np.ndarray], np.ndarray] | None = None


def to_theirs(
    table: Iterable[Entry], tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Weights under the other library's names; every weight must be in the table."""
    entries = {entry.ours: entry for entry in table}
    result = {}
    for name, array in tensors.items():
        entry = entries.get(name)
        if entry is None:
            raise UserError(f"{name} has no equivalent in the format to write.")
        array = entry.to_theirs(array) if entry.to_theirs else array
        result[entry.theirs] = np.ascontiguousarray(array)
    return result


def to_ours(
    table: Iterable[Entry], tensors: Mapping[str, np.ndarray], origin: str
) -> dict[str, np.ndarray]:
    """Weights under our names; `UserError` (65) for a name that is not in the table.

    Whether all are there is for the caller to check.
    """
    entries = {entry.theirs: entry for entry in table}
    result = {}
    for name, array in tensors.items():
        entry = entries.get(name)
        if entry is None:
            raise UserError(
                f"{origin} holds {name}, which no ELECTRA model of its configuration "
                "has.",
                EXIT_DAMAGED,
            )
        array = entry.to_ours(array) if entry.to_ours else array
        result[entry.ours] = np.ascontiguousarray(array)
    return result
