# SPDX-License-Identifier: Apache-2.0
"""The tensors of a TensorFlow checkpoint by name: this program's or the original's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, UserError


def stored_shapes(prefix: str) -> dict[str, list[int]]:
    """The names and shapes in a checkpoint of this or of the original program.

    Raises `UserError` (65) when it cannot be read.
    """
    return _reader(prefix).get_variable_to_shape_map()


def assign_from(prefix: str, variables: Mapping[str, Any]) -> None:
    """Assigns the tensors of a checkpoint, ours or the original's, by name.

    Every variable must be there in its shape; other tensors in the checkpoint are
    ignored. Raises `UserError` naming the first that does not fit.
    """
    reader = _reader(prefix)
    shapes = reader.get_variable_to_shape_map()
    if missing := sorted(set(variables) - set(shapes)):
        raise UserError(f"{prefix} has no {missing[0]} ({len(missing)} missing).")
    for name, variable in variables.items():
        if list(variable.shape) != shapes[name]:
            raise UserError(
                f"{prefix}: {name} has shape {shapes[name]}, this run needs "
                f"{list(variable.shape)}."
            )
    for name, variable in variables.items():
        variable.assign(reader.get_tensor(name))


def _reader(prefix: str):
    import tensorflow as tf

    try:
        return tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read {prefix}: {reason}", EXIT_DAMAGED) from error
