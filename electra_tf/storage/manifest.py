# SPDX-License-Identifier: Apache-2.0
"""The sizes and checksums of an exported directory, and whether they still hold.

TensorFlow is not needed to check what it wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, UserError

MANIFEST = "manifest.json"


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def checksums(directory: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file in a directory, by its path there."""
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            name = path.relative_to(directory).as_posix()
            found[name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    return found


def verify_checksums(directory: str | os.PathLike) -> dict[str, Any]:
    """The manifest of an export whose files are those that were written.

    Raises UserError (65) naming the first file that is missing, new or changed.
    """
    directory = Path(directory)
    path = directory / MANIFEST
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        promised = content["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} cannot be read ({error}): {directory} is not an intact export.\n"
            "Export it again.",
            EXIT_DAMAGED,
        ) from None
    found = checksums(directory)
    for name in sorted(set(promised) | set(found)):
        if promised.get(name) != found.get(name):
            state = "missing" if name not in found else "not what was written"
            raise UserError(
                f"{directory / name} is {state}.\nExport it again.", EXIT_DAMAGED
            )
    return content
