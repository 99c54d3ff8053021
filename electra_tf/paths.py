# SPDX-License-Identifier: Apache-2.0
"""Paths and lists of globs, as users write them.

A path in a bucket (`s3://bucket/key`) is represented by its place in a local cache,
which `storage.remote` fills and empties; other modules need not know the difference.
Messages name the bucket.
"""

import glob
import os
import re
import tempfile

SCHEMES = ("s3", "gs", "memory")  # `memory` lives as long as its process, for tests
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://", re.ASCII)


def cache_root() -> str:
    """The directory for copies of files in buckets, in $ELECTRA_TF_CACHE."""
    usual = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.environ.get("ELECTRA_TF_CACHE") or os.path.join(usual, "electra_tf")
    return os.path.join(os.path.abspath(root), "files")


def json_beside(text_file: str | os.PathLike) -> str:
    """The JSON file beside a text file of results."""
    return os.fspath(text_file).removesuffix(".txt") + ".json"


def each_path(value, change):
    """Applies `change` to a path, or to each path of a list or object."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [each_path(one, change) for one in value]
    if isinstance(value, dict):
        return {each_path(key, change): weight for key, weight in value.items()}
    return value


def local_of(path: str, here: bool = False) -> str:
    """A path, or list of globs, with URLs replaced by their places in the cache.

    Args:
      here: whether the path must be on this machine.

    Raises ValueError for an unsupported path.
    """
    if "\0" in path:
        raise ValueError("a path cannot hold a NUL character")
    for scheme in _URL.findall(path):
        if scheme not in SCHEMES:
            raise ValueError(
                f"{scheme}:// cannot be opened, only files of this machine, s3:// and "
                "gs://; mount it, or copy"
            )
    if not _URL.search(path):
        return path
    if here:
        raise ValueError("it must be on this machine; copy it there")
    if ".." in path.split("/"):
        raise ValueError("a path in a bucket cannot hold ..")
    return _URL.sub(rf"{cache_root()}/\1/", path)


def url_of(path: str | os.PathLike) -> str | None:
    """The URL of a place in the cache; None for other paths."""
    root = cache_root() + "/"
    path = os.path.abspath(path)
    if not path.startswith(root):
        return None
    scheme, _, key = path.removeprefix(root).partition("/")
    return f"{scheme}://{key}"


def not_mirrored(path: str) -> str:
    """A place on this machine for files that are not kept in a bucket."""
    root = cache_root()
    is_copy = path.startswith(f"{root}/")
    return f"{os.path.dirname(root)}/local{path[len(root) :]}" if is_copy else path


def shown(text: str) -> str:
    """A message with URLs instead of places in the cache."""
    root = cache_root()
    if root not in text:
        return text
    return re.sub(rf"{re.escape(root)}/({'|'.join(SCHEMES)})/", r"\1://", text)


def joined(data: str | list[str] | dict[str, float]) -> str:
    """All files of one or several data sets, as a list of globs."""
    return data if isinstance(data, str) else ",".join(data)


def globs_in(text: str) -> list[str]:
    """The globs of a comma-separated list; a comma of a name is written [,]."""
    return [part for part in re.split(r",(?!\])", text) if part]


def escape(path: str) -> str:
    """A path as a part of a list of globs."""
    return glob.escape(path).replace(",", "[,]")


_links: list[tempfile.TemporaryDirectory] = []  # removed when the process ends


def readable_by_tensorflow(path: str | os.PathLike) -> str:
    """A path to the same folder or checkpoint that TensorFlow can open.

    TensorFlow reads paths as patterns that cannot be escaped: for a path with `[`, `*`,
    `?` or a backslash the result is a link in a temporary folder.
    """
    text = os.path.abspath(path)
    if not re.search(r"[][*?\\]", text):
        return os.fspath(path)
    _links.append(folder := tempfile.TemporaryDirectory(prefix="electra-tf-"))
    link = os.path.join(folder.name, "link")
    # The path of a checkpoint is a prefix of several files.
    for file in glob.glob(f"{glob.escape(text)}*"):
        os.symlink(file, link + file.removeprefix(text))
    return link
