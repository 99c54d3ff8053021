# SPDX-License-Identifier: Apache-2.0
"""Paths and lists of globs, as users write them."""

import glob
import os
import re


def check_path(path: str) -> None:
    """Raises ValueError for a path that is none on this machine's file systems."""
    if "://" in path:
        raise ValueError(
            "only files of this machine can be opened; mount the bucket, or copy"
        )
    if "\0" in path:
        raise ValueError("a path cannot hold a NUL character")


def globs_in(text: str) -> list[str]:
    """The globs of a comma-separated list; a comma of a name is written [,]."""
    return [part for part in re.split(r",(?!\])", text) if part]


def expand(globs: str) -> list[str]:
    """The files that a comma-separated list of globs names, sorted."""
    paths = {path for part in globs_in(globs) for path in glob.glob(part)}
    return sorted(path for path in paths if os.path.isfile(path))


def escape(path: str) -> str:
    """A path as a part of a list of globs."""
    return glob.escape(path).replace(",", "[,]")
