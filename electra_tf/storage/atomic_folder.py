# SPDX-License-Identifier: Apache-2.0
"""A folder of files that appears whole or not at all; nothing is overwritten."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from electra_tf.errors import EXIT_CANNOT_WRITE, UserError
from electra_tf.paths import url_of
from electra_tf.storage import remote
from electra_tf.storage.files import PARTIAL, cannot_write, names_below, sync_directory


def check_free(output_dir: str | os.PathLike) -> None:
    """Raises `UserError` (73) unless a directory is absent or empty.

    In a bucket it must also be writable.
    """
    path = Path(output_dir)
    found = ["it is a file"] if path.is_file() else remote.names_in(path)
    if found:
        raise UserError(
            f"{path} is in use already ({found[0]}); nothing is overwritten.\n"
            "Give a new or empty --output-dir.",
            EXIT_CANNOT_WRITE,
        )
    if url_of(path):
        remote.check_writable(path)
        shutil.rmtree(path, ignore_errors=True)  # an outdated copy


def next_version(bases: Sequence[Path]) -> list[Path]:
    """A folder in each, numbered one above the highest number in any."""
    names = [name for base in bases for name in remote.names_in(base)]
    number = 1 + max((int(name) for name in names if name.isdecimal()), default=0)
    return [base / str(number) for base in bases]


@contextlib.contextmanager
def atomic_folder(output_dir: str | os.PathLike) -> Iterator[Path]:
    """`atomic_folders` for one."""
    with atomic_folders([output_dir]) as [folder]:
        yield folder


@contextlib.contextmanager
def atomic_folders(output_dirs: Sequence[str | os.PathLike]) -> Iterator[list[Path]]:
    """Temporary folders that become `output_dirs` when the block ends well.

    Until then each lies beside its place, as `.<name>.<letters>.partial`. All are
    synced before the first is renamed. In a bucket one follows the other, and in each
    the manifest comes last.

    Raises `UserError` (73) if a directory is in use or cannot be written.
    """
    for path in output_dirs:
        check_free(path)
    finals = [Path(path).absolute() for path in output_dirs]
    folders: list[Path] = []
    try:
        for final in finals:
            final.parent.mkdir(parents=True, exist_ok=True)
            name = tempfile.mkdtemp(PARTIAL, f".{final.name}.", final.parent)
            folders.append(Path(name))
        yield folders
        for folder in folders:
            sync_folder(folder)
        for final in finals:
            check_free(final)  # Another export may have been faster.
        for folder, final in zip(folders, finals, strict=True):
            os.replace(folder, final)
        for final in finals:
            sync_directory(final.parent)
            remote.put(final, names_below(final))
    except OSError as error:
        raise cannot_write(os.path.commonpath(finals), error) from error
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Makes a folder's content durable, with the usual permissions."""
    umask = os.umask(0)
    os.umask(umask)
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            path.chmod(0o777 & ~umask)
            sync_directory(path)
        else:
            path.chmod(0o666 & ~umask)  # Some libraries make private files.
            with open(path, "rb+") as f:
                os.fsync(f.fileno())


def require_room(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Raises `OSError` unless there is room for tensors and what comes with them.

    Call it before a library that crashes on a full disk, such as h5py, writes.
    """
    size = sum(tensor.nbytes + 20_000 for tensor in tensors.values()) + 4_000_000
    path = folder / f"room{PARTIAL}"
    try:
        with open(path, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, size)
    finally:
        path.unlink(missing_ok=True)
