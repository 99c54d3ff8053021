# SPDX-License-Identifier: Apache-2.0
"""The tensors of a TensorFlow checkpoint by name: this program's or the original's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from electra_tf.errors import EXIT_DAMAGED, UserError, reason_of
from electra_tf.paths import readable_by_tensorflow

# What the optimizer keeps for a variable is called as the variable is, and so.
SLOTS = ("/adam_m", "/adam_v")


class StoredTensors(NamedTuple):
    """Tensors by name, read one at a time."""

    origin: str  # for messages
    shapes: dict[str, list[int]]
    get: Callable[[str], np.ndarray]

    def assign_to(self, variables: Mapping[str, Any]) -> None:
        """Assigns the tensors to name -> tf.Variable.

        Every variable must be there in its shape; other tensors are ignored. Raises
        `UserError` naming the first that does not fit.
        """
        if _have_slots(variables) and not _have_slots(self.shapes):
            raise UserError(
                f"{self.origin} has no Adam slots, so it cannot be continued.\nGive it "
                "as init_checkpoint to a new --model-name; its optimizer starts anew."
            )
        if missing := sorted(set(variables) - set(self.shapes)):
            count = len(missing)
            raise UserError(f"{self.origin} has no {missing[0]} ({count} missing).")
        for name, variable in variables.items():
            if list(variable.shape) != self.shapes[name]:
                raise UserError(
                    f"{self.origin}: {name} has shape {self.shapes[name]}, this run "
                    f"needs {list(variable.shape)}."
                )
        for name, variable in variables.items():
            variable.assign(self.get(name))


def _have_slots(names: Iterable[str]) -> bool:
    return any(name.endswith(SLOTS) for name in names)


def of_arrays(origin: str, arrays: Mapping[str, np.ndarray]) -> StoredTensors:
    """Tensors that are in memory already."""
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    return StoredTensors(origin, shapes, arrays.__getitem__)


def of_checkpoint(prefix: str) -> StoredTensors:
    """The tensors of a checkpoint of this or of the original program.

    Raises `UserError` (65) when it cannot be read.
    """
    import tensorflow as tf

    try:
        reader = tf.train.load_checkpoint(readable_by_tensorflow(prefix))
    except (tf.errors.OpError, ValueError) as error:
        raise UserError(
            f"cannot read {prefix}: {reason_of(error)}", EXIT_DAMAGED
        ) from error
    return StoredTensors(prefix, reader.get_variable_to_shape_map(), reader.get_tensor)


def write_tensors(prefix: str | os.PathLike, named: Mapping[str, Any]) -> None:
    """Writes tensors, arrays or variables by name, in TensorFlow's V2 format.

    Raises `OSError`.
    """
    import tensorflow as tf

    names = sorted(named)
    with tf.device("CPU:0"):
        tensors = [tf.identity(named[name]) for name in names]
        try:
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=names,
                shape_and_slices=[""] * len(names),
                tensors=tensors,
            )
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, error.message.splitlines()[0]) from error
