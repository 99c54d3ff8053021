# SPDX-License-Identifier: Apache-2.0
"""The manifests of folders and checkpoints: versions, time, the checksum of every file.

Without TensorFlow.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.errors import EXIT_DAMAGED, JSON_ERRORS, UserError
from electra_tf.storage.files import sync_directory

MANIFEST = "manifest.json"
CHECKPOINT_MANIFEST = ".json"  # the ending of model.ckpt-N.json
POINTER = "checkpoint"  # TensorFlow's text file that names the newest checkpoint
CORRUPT = ".corrupt"  # ends the names of the files of damaged checkpoints
_CHECKPOINT_FORMAT = 1
_SAVED_MODEL = "saved_model.pb"
_DOCUMENTS = (".md",)  # Not read by programs; people edit them.


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


def record_of(path: Path) -> dict[str, Any]:
    """The bytes and the checksum of a file, as manifests list them."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def facts_of(files: Mapping[str, Path], *packages: str) -> dict[str, Any]:
    """The part of any manifest: versions of packages, time, checksums of files."""
    now = datetime.datetime.now().astimezone()
    return {
        "versions": installed_versions(*packages),
        "created": now.isoformat(timespec="seconds"),
        "files": {name: record_of(path) for name, path in files.items()},
    }


def damage_of(path: Path, record: Mapping[str, Any]) -> str:
    """The difference between a file and its record in a manifest; "" if none."""
    try:
        if (size := path.stat().st_size) != record["bytes"]:
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

    To be called when the folder is complete, within `atomic_folder`, which syncs it.
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


def read_json_if_there(path: Path) -> dict[str, Any]:
    """As `read_json`; {} if the file does not exist."""
    return read_json(path) if path.is_file() else {}


def saved_model_in(folder: Path) -> Path | None:
    """The SavedModel in a folder, or the newest of its numbered versions."""
    versions = [p for p in folder.glob("*") if p.name.isdecimal()]
    newest = max(versions, key=lambda path: int(path.name), default=folder)
    return next((p for p in (folder, newest) if (p / _SAVED_MODEL).is_file()), None)


def format_of(folder: Path) -> str | None:
    """The format that a folder's manifest names, if it has one."""
    return read_json_if_there(folder / MANIFEST).get("format")


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
        if state and log and name.endswith(_DOCUMENTS):
            log(f"Note: {folder / name} {state}; nothing is read from it.")
        elif state:
            raise UserError(
                f"{folder / name} {state} ({MANIFEST}).\nExport or copy it again.",
                EXIT_DAMAGED,
            )
    return content


def _files(folder: Path) -> dict[str, Path]:
    """The files that a manifest lists, by their path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {p.relative_to(folder).as_posix(): p for p in paths if p.name != MANIFEST}


class CheckpointManifest(NamedTuple):
    """The description of a checkpoint."""

    step: int
    files: dict[str, dict[str, Any]]  # name -> {"bytes": int, "sha256": str}
    identity: dict[str, Any]  # a run with another identity is another run
    settings: dict[str, Any]  # may change from one start to the next; logged
    versions: dict[str, str]
    created: str


class DamagedCheckpointError(Exception):
    """A checkpoint does not hold what its manifest promises."""


def name_of(step: int) -> str:
    """TensorFlow's name of the checkpoint of a step."""
    return f"model.ckpt-{step}"


def split_name(name: str) -> tuple[int, str] | None:
    """(step, suffix) of the name of a checkpoint or of one of its files, else None."""
    match = re.fullmatch(r"model\.ckpt-(\d+)(\..*)?", name)
    return (int(match[1]), match[2] or "") if match else None


def complete_steps(names: Iterable[str]) -> list[int]:
    """The steps of the checkpoints whose manifest is among the names, ascending."""
    parts = filter(None, map(split_name, names))
    return sorted(step for step, suffix in parts if suffix == CHECKPOINT_MANIFEST)


def pointer_to(names: Sequence[str]) -> str:
    """The content of the pointer to checkpoints of its directory, the newest last."""
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    return "\n".join(lines) + "\n"


def pointed_at(directory: str | os.PathLike) -> str | None:
    """The name of the newest checkpoint, by the pointer of a directory.

    A path is cut to its last part: the directory may have been moved. None if no
    pointer exists or it names no checkpoint.
    """
    try:
        text = (Path(directory) / POINTER).read_text("utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^model_checkpoint_path: "(.*)"', text, re.M)
    return os.path.basename(match[1]) if match else None


def write_checkpoint_manifest(
    directory: Path, step: int, identity: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Writes the manifest beside the files of a directory, and makes all durable.

    Raises `OSError`.
    """
    files = {path.name: path for path in sorted(directory.iterdir())}
    facts = facts_of(files, "electra-tf", "tensorflow", "keras", "numpy")
    facts["versions"] = {"python": platform.python_version()} | facts["versions"]
    manifest = CheckpointManifest(step, identity=identity, settings=settings, **facts)
    content = manifest._asdict() | {"format": _CHECKPOINT_FORMAT}
    content["sha256"] = hashlib.sha256(_canonical(content)).hexdigest()
    path = directory / (name_of(step) + CHECKPOINT_MANIFEST)
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
    for file in (*files.values(), path):
        with open(file, "rb") as f:
            os.fsync(f.fileno())
    sync_directory(directory)


def verify_checkpoint(directory: Path, step: int) -> CheckpointManifest:
    """The manifest of a step, checked against its own checksum and all its files.

    Raises `DamagedCheckpointError` naming the file.
    """
    name = name_of(step) + CHECKPOINT_MANIFEST
    try:
        content = json.loads((directory / name).read_bytes())
        promised = content.pop("sha256")
        actual = hashlib.sha256(_canonical(content)).hexdigest()
        content.pop("format")
        manifest = CheckpointManifest(**content)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{name} is missing") from None
    except (OSError, *JSON_ERRORS) as error:
        raise DamagedCheckpointError(f"{name} is unreadable") from error
    if promised != actual or manifest.step != step:
        raise DamagedCheckpointError(f"{name} does not match its checksum")
    for name, record in manifest.files.items():
        if damage := damage_of(directory / name, record):
            raise DamagedCheckpointError(f"{name} {damage}")
    return manifest


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
