# SPDX-License-Identifier: Apache-2.0
"""The recipes in configs/, by their names, also where no checkout is."""

from pathlib import Path
from typing import Any

from electra_tf.config.hparams import read_hparams
from electra_tf.errors import UserError

_PACKAGE = Path(__file__).resolve().parents[1]
# A wheel holds a copy.
_FOLDERS = (_PACKAGE / "configs", _PACKAGE.parent / "configs")


def recipes() -> dict[str, Path]:
    """Name -> file of each recipe."""
    paths = (path for folder in _FOLDERS for path in sorted(folder.glob("*.json")))
    return {path.stem: path for path in paths}


def read_config(name: str | None) -> dict[str, Any] | None:
    """The hparams of a --config: a recipe's name, or a JSON file; None: there is none.

    Raises `UserError` for anything else.
    """
    if name is None:
        return None
    found = recipes()
    if name.isidentifier() and name not in found and not Path(name).exists():
        raise UserError(
            f"--config {name}: no such recipe or file.\nRecipes: {', '.join(found)}."
        )
    return read_hparams(str(found.get(name, name)))
