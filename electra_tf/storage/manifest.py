# SPDX-License-Identifier: Apache-2.0
"""The manifest of a written folder: versions, time, the checksum of every file.

TensorFlow is not needed to check what it wrote.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError

MANIFEST = "manifest.json"
_SAVED_MODEL = "saved_model.pb"
_DOCUMENTS = (".md",)  # What nothing is read from; people edit it.


def installed_versions(*packages: str) -> dict[str, str]:
    """Package -> version, of those that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def code_sha256() -> str:
    """The sha256 over the source files of this package, in hexadecimal."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        digest.update(f"{name} {sha256(path)}\n".encode())
    return digest.hexdigest()


def sha256(path: str | os.PathLike) -> str:
    """The sha256 of a file, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def write_manifest(
    folder: Path, content: Mapping[str, Any], packages: tuple[str, ...]
) -> None:
    """Writes `content`, versions of packages, time, and the checksums of all files.

    To be called when the folder is complete, within `new_folder`, which syncs it.
    """
    now = datetime.datetime.now().astimezone()
    whole = {
        **content,
        "versions": installed_versions(*packages),
        "created": now.isoformat(timespec="seconds"),
        "files": {name: record_of(path) for name, path in _files(folder).items()},
    }
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `UserError` (65) if there is none in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (OSError, *JSON_ERRORS) as error:
        raise UserError(f"{path} cannot be read: {error}.", EXIT_DAMAGED) from None
    return content


def saved_model_in(folder: Path) -> Path | None:
    """The SavedModel in a folder, or the newest of its numbered versions."""
    versions = [p for p in folder.glob("*") if p.name.isdecimal()]
    newest = max(versions, key=lambda path: int(path.name), default=folder)
    return next((p for p in (folder, newest) if (p / _SAVED_MODEL).is_file()), None)


def format_of(folder: Path) -> str | None:
    """The format that a folder's manifest names, if it has one."""
    path = folder / MANIFEST
    return read_json(path).get("format") if path.is_file() else None


def verify_folder(
    folder: Path, log: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """The manifest of a folder whose files are those that were written.

    Args:
      log: for folders that others may have made or added to: one without a manifest
        passes (the result is {}), so do files that the manifest does not list, and
        documents that are not as written are only reported.

    Raises `UserError` (65) naming the first file that is missing, new or changed.
    """
    path = folder / MANIFEST
    if log and not path.is_file():
        return {}
    content = read_json(path)
    promised = content.get("files")
    if not isinstance(promised, dict):
        raise UserError(f"{path} has no list of files.", EXIT_DAMAGED)
    there = _files(folder)
    for name in sorted(promised if log else promised.keys() | there.keys()):
        if name not in there:
            state = "is missing"
        elif name not in promised:
            state = "is new"
        elif record_of(there[name]) != promised[name]:
            state = "is not what was written: its checksum differs"
        else:
            continue
        if log and name.endswith(_DOCUMENTS):
            log(f"Note: {folder / name} {state}; nothing is read from it.")
            continue
        raise UserError(
            f"{folder / name} {state} ({MANIFEST} there).\nExport or copy it again.",
            EXIT_DAMAGED,
        )
    return content


def _files(folder: Path) -> dict[str, Path]:
    """The files that a manifest lists, by their path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): p for p in paths if p.name != MANIFEST}


def record_of(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}
