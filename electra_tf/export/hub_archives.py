# SPDX-License-Identifier: Apache-2.0
"""The archives of a directory that is published, and whether they are intact.

TensorFlow is not needed for any of it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
from pathlib import Path
from typing import Any

from electra_tf.errors import EXIT_DAMAGED, UserError
from electra_tf.storage.manifest import MANIFEST, sha256, verify_folder
from electra_tf.storage.new_folder import check_free
from electra_tf.storage.remote import is_remote

CHECKSUMS = "SHA256SUMS"
CARD = "README.md"
_HANDLE = re.compile(r"[\w.-]+/[\w.-]+")


def check_handle(handle: str | None) -> str:
    """The handle; raises UserError unless it is "owner/model"."""
    if handle is None or not _HANDLE.fullmatch(handle):
        raise UserError(
            f"--handle is {handle!r}; it is the name to publish under, owner/model."
        )
    return handle


def check_empty(directory: Path) -> None:
    """Raises UserError if there is something in the directory already."""
    is_used = directory.exists() and not (
        directory.is_dir() and not any(directory.iterdir())
    )
    if is_used and not is_remote(directory):
        raise UserError(
            f"{directory} is not empty.\nChoose another --output-dir, or publish what "
            "is there with --publish."
        )
    check_free(directory)


def card_in(directory: Path) -> str:
    """The text of a directory's card; raises UserError if there is none."""
    try:
        return (directory / CARD).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(
            f"{directory / CARD} cannot be read ({error.strerror}): the model card, "
            "with the licence.\nPut it back, or export again."
        ) from None


def licence_in(card: str) -> str | None:
    """The licence that a card names; None if it names none."""
    front = card.split("---", 2)[1] if card.startswith("---") else ""
    found = re.search(r"^license:[ \t]*(\S.*)$", front, re.M)
    return found[1].strip(" \t\r\"'") if found else None


def handles_in(text: str) -> list[str]:
    """The names that a card or a page of `hub_card` says a model is published under."""
    found = re.findall(r"models/([\w.-]+/[\w.-]+)/tensorFlow2", text)
    for line in re.findall(r"published as (`.*)", text):
        found += re.findall(r"`([\w.-]+/[\w.-]+)`", line)
    return found


def unpack(archive: Path, directory: Path) -> None:
    """Unpacks an archive and checks every file against its manifest.

    Raises UserError (65) when a file is not what was exported.
    """
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(directory, filter="data")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise UserError(f"{archive} is damaged: {error}", EXIT_DAMAGED) from None
    verify_folder(directory)


def manifest_in(archive: Path) -> dict[str, Any]:
    """The manifest of a SavedModel in an archive; {} if there is none."""
    with tarfile.open(archive) as tar:
        names = {member.name: member for member in tar.getmembers()}
        member = names.get(MANIFEST)
        return json.load(tar.extractfile(member)) if member else {}


def archives_of(directory: Path) -> list[Path]:
    """The archives of a directory of --format hub, checked.

    Raises UserError: 2 if it is no such directory, 65 if an archive was damaged.
    """
    try:
        lines = (directory / CHECKSUMS).read_text().splitlines()
    except OSError:
        raise UserError(
            f"{directory} holds no {CHECKSUMS}: it is not what --format hub writes."
        ) from None
    found = []
    for line in lines:
        expected, _, name = line.partition("  ")
        path = directory / os.path.basename(name)
        actual = sha256(path) if path.is_file() else None
        if actual != expected:
            state = "missing" if actual is None else "not what was written"
            raise UserError(f"{path} is {state}; export it again.", EXIT_DAMAGED)
        found.append(path)
    return found
