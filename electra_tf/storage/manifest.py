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


def facts_of(files: Mapping[str, Path], *packages: str) -> dict[str, Any]:
    """The part of any manifest: versions of packages, time, checksums of files."""
    now = datetime.datetime.now().astimezone()
    records = {
        name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for name, path in files.items()
    }
    return {
        "versions": installed_versions(*packages),
        "created": now.isoformat(timespec="seconds"),
        "files": records,
    }


def damage_of(path: Path, record: Mapping[str, Any]) -> str:
    """What differs between a file and its record in a manifest; "" if nothing."""
    try:
        size = path.stat().st_size
        if size != record["bytes"]:
            return f"has {size} bytes instead of {record['bytes']}"
        if sha256(path) != record["sha256"]:
            return "does not match its checksum"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def write_manifest(
    folder: Path, content: Mapping[str, Any], packages: tuple[str, ...]
) -> None:
    """Writes `content` and `facts_of` all files.

    To be called when the folder is complete, within `new_folder`, which syncs it.
    """
    whole = {**content, **facts_of(_files(folder), *packages)}
    text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def read_json(path: Path, advice: str = "") -> dict[str, Any]:
    """A JSON object from a file; `UserError` (65) if there is none in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (OSError, *JSON_ERRORS) as error:
        message = f"{path} cannot be read: {error}.\n{advice}".rstrip()
        raise UserError(message, EXIT_DAMAGED) from None
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
    names = promised if log else promised.keys() | _files(folder).keys()
    for name in sorted(names):
        is_new = name not in promised
        state = "is new" if is_new else damage_of(folder / name, promised[name])
        if not state:
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
