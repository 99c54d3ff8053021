# SPDX-License-Identifier: Apache-2.0
"""The names of a checkpoint's files, and its manifest model.ckpt-N.json.

The manifest says what the checkpoint is and lists its files with their checksums.
Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from electra_tf.errors import JSON_ERRORS
from electra_tf.storage.files import sync_directory
from electra_tf.storage.manifest import damage_of, facts_of

FORMAT = 1
POINTER = "checkpoint"  # TensorFlow's text file that names the newest checkpoint
MANIFEST = ".json"


class Manifest(NamedTuple):
    """What a checkpoint says about itself."""

    step: int
    files: dict[str, dict[str, Any]]  # name -> {"bytes": int, "sha256": str}
    identity: dict[str, Any]  # a run with another identity is another run
    settings: dict[str, Any]  # may change from one start to the next; logged
    versions: dict[str, str]
    created: str


class DamagedCheckpointError(Exception):
    """A checkpoint does not hold what its manifest promises."""


def name_of(step: int) -> str:
    """The name that TensorFlow knows the checkpoint of a step by."""
    return f"model.ckpt-{step}"


def split_name(name: str) -> tuple[int, str] | None:
    """(step, suffix) of the name of a checkpoint or of one of its files, else None."""
    match = re.fullmatch(r"model\.ckpt-(\d+)(\..*)?", name)
    return (int(match[1]), match[2] or "") if match else None


def has_manifests(directory: str | os.PathLike) -> bool:
    """Whether a directory holds checkpoints of this project."""
    names = map(split_name, os.listdir(directory))
    return any(name and name[1] == MANIFEST for name in names)


def pointer_to(names: Sequence[str]) -> str:
    """The content of the pointer to checkpoints of its directory, the newest last."""
    lines = [f'model_checkpoint_path: "{names[-1]}"']
    lines += [f'all_model_checkpoint_paths: "{name}"' for name in names]
    return "\n".join(lines) + "\n"


def pointed_at(directory: str | os.PathLike) -> str | None:
    """The name of the checkpoint that a directory's pointer says is the newest.

    A path is cut to its last part: the directory may have been moved. None without
    a pointer, or where it is empty.
    """
    try:
        text = (Path(directory) / POINTER).read_text("utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r'^model_checkpoint_path: "(.*)"', text, re.M)
    return os.path.basename(match[1]) if match else None


def write(
    directory: Path, step: int, identity: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Makes the files of a directory durable and writes the manifest beside them.

    Raises `OSError`.
    """
    files = {path.name: path for path in sorted(directory.iterdir())}
    for path in files.values():
        with open(path, "rb") as f:
            os.fsync(f.fileno())
    facts = facts_of(files, "electra-tf", "tensorflow", "keras", "numpy")
    facts["versions"] = {"python": platform.python_version()} | facts["versions"]
    content = Manifest(step, identity=identity, settings=settings, **facts)._asdict()
    content["format"] = FORMAT
    content["sha256"] = hashlib.sha256(_canonical(content)).hexdigest()
    with open(directory / (name_of(step) + MANIFEST), "w", encoding="utf-8") as f:
        json.dump(content, f, indent=1)
        f.flush()
        os.fsync(f.fileno())
    sync_directory(directory)


def read(directory: Path, step: int) -> Manifest:
    """The manifest of a step, checked against its own checksum.

    Raises `DamagedCheckpointError`.
    """
    name = name_of(step) + MANIFEST
    try:
        content = json.loads((directory / name).read_bytes())
        promised = content.pop("sha256")
        actual = hashlib.sha256(_canonical(content)).hexdigest()
        content.pop("format")
        manifest = Manifest(**content)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{name} is missing") from None
    except (OSError, *JSON_ERRORS) as error:
        raise DamagedCheckpointError(f"{name} is unreadable") from error
    if promised != actual or manifest.step != step:
        raise DamagedCheckpointError(f"{name} does not match its checksum")
    return manifest


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Compares every byte of the files with what the manifest says of them.

    Raises `DamagedCheckpointError` naming the file.
    """
    for name, record in manifest.files.items():
        if damage := damage_of(directory / name, record):
            raise DamagedCheckpointError(f"{name} {damage}")


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
