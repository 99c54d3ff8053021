# SPDX-License-Identifier: Apache-2.0
"""Paths and lists of globs, as users write them.

A path in a bucket (`s3://bucket/key`) is known to the program by its place in a cache
on this machine, which `storage.remote` fills and empties: no other module needs to know
the difference. What a user is shown names the bucket.
"""

import glob
import os
import re
import tempfile

SCHEMES = ("s3", "gs", "memory")  # `memory` lives as long as its process, for tests
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*)://", re.ASCII)


def cache_root() -> str:
    """Where the copies of what is in buckets lie, in $ELECTRA_TF_CACHE."""
    usual = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = os.environ.get("ELECTRA_TF_CACHE") or os.path.join(usual, "electra_tf")
    return os.path.join(os.path.abspath(root), "files")


def json_beside(text_file: str | os.PathLike) -> str:
    """Where results lie as JSON, beside those in a text file: another file than it."""
    return os.fspath(text_file).removesuffix(".txt") + ".json"


def each_path(value, change):
    """A place, or a list or object of places, each changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [each_path(one, change) for one in value]
    if isinstance(value, dict):
        return {each_path(key, change): weight for key, weight in value.items()}
    return value


def local_of(path: str, here: bool = False) -> str:
    """A path, or list of globs, with the places of those that are in buckets.

    Args:
      here: whether it has to be on this machine.

    Raises ValueError for a path that this program cannot open.
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
        raise ValueError("it has to be on this machine; copy it there")
    if ".." in path.split("/"):
        raise ValueError("a path in a bucket cannot hold ..")
    if not is_plain(cache_root()):
        raise ValueError(f"ELECTRA_TF_CACHE is {cache_root()}: without , [ * ?, please")
    return _URL.sub(rf"{cache_root()}/\1/", path)


def is_plain(path: str) -> bool:
    """Whether a path means the same as a list of globs."""
    return escape(path) == path


def url_of(path: str | os.PathLike) -> str | None:
    """The address of what has its place in the cache; None for other paths."""
    root = cache_root() + "/"
    path = os.path.abspath(path)
    if not path.startswith(root):
        return None
    scheme, _, key = path.removeprefix(root).partition("/")
    return f"{scheme}://{key}"


def shown(text: str) -> str:
    """A text for people, with addresses instead of places in the cache."""
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
    """A path to the same folder or checkpoint that TensorFlow opens.

    It takes what it restores from for a pattern, without a way to escape: where there
    is a `[`, `*`, `?` or backslash in the path, the result is a link elsewhere.
    """
    text = os.path.abspath(path)
    if not re.search(r"[][*?\\]", text):
        return os.fspath(path)
    _links.append(folder := tempfile.TemporaryDirectory(prefix="electra-tf-"))
    link = os.path.join(folder.name, "link")
    # A checkpoint is several files, of whose names the path is the beginning.
    for file in glob.glob(f"{glob.escape(text)}*"):
        os.symlink(file, link + file.removeprefix(text))
    return link
