# SPDX-License-Identifier: Apache-2.0
"""The versions of packages, for manifests."""

import contextlib
from importlib import metadata


def installed_versions(*packages: str) -> dict[str, str]:
    """Package -> version, of those that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
