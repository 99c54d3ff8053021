# SPDX-License-Identifier: Apache-2.0
"""A folder of files that appears whole or not at all.

Nothing that exists is overwritten or deleted, but for what a killed process left under
the temporary name of such a folder: a process that lives holds a lock on its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from electra_tf.errors import EXIT_CANNOT_WRITE, UserError
from electra_tf.storage import remote
from electra_tf.storage.files import PARTIAL, cannot_write, flock, sync_directory
from electra_tf.storage.manifest import MANIFEST

_TEMPORARY = re.compile(rf"\..+\.[a-z0-9_]{{8}}@(.+){re.escape(PARTIAL)}")


def check_free(output_dir: str | os.PathLike) -> None:
    """Raises `UserError` (73) unless the directory is absent or empty, and writable.

    Nor may it be a mount point: what is finished is renamed to it.
    """
    path = Path(output_dir)
    if remote.is_remote(path):
        if there := sorted(remote.listing(path)):
            rest = "" if MANIFEST in there else f", no {MANIFEST}: an upload broke off"
            raise UserError(
                f"{path} is in use already ({there[0]}{rest});\nnothing is "
                "overwritten. Give a new --output-dir.",
                EXIT_CANNOT_WRITE,
            )
        remote.check_writable(path)
        shutil.rmtree(path, ignore_errors=True)  # a copy of what is no longer there
        return
    if path.is_dir() and not any(path.iterdir()):
        if os.path.ismount(os.path.realpath(path)):
            raise UserError(
                f"{path} is a mount point, whose place no finished folder can take.\n"
                f"Give a folder inside it, such as {path / 'export'}.",
                EXIT_CANNOT_WRITE,
            )
        return
    if path.exists():
        found = next(path.iterdir()).name if path.is_dir() else "it is a file"
        raise UserError(
            f"{path} is in use already ({found}); nothing is overwritten.\nGive a new "
            "or empty --output-dir.",
            EXIT_CANNOT_WRITE,
        )


@contextlib.contextmanager
def new_folder(output_dir: str | os.PathLike) -> Iterator[Path]:
    """`new_folders` for one."""
    with new_folders([output_dir]) as [folder]:
        yield folder


@contextlib.contextmanager
def new_folders(output_dirs: Sequence[str | os.PathLike]) -> Iterator[list[Path]]:
    """Temporary folders that become `output_dirs` together when the block ends well.

    Until then each lies beside its place, as `.<name>.<letters>@<host>.partial`; all
    are synced before the first is renamed, and if one cannot be, none is. Such folders
    of processes that are gone are removed. In a bucket one follows the other, and in
    each the manifest comes last.

    Raises `UserError` (73) if a directory is in use or cannot be written.
    """
    for path in output_dirs:
        check_free(path)
    finals = [_place_of(path) for path in output_dirs]
    partials: list[tuple[Path, int]] = []
    try:
        for parent in dict.fromkeys(final.parent for final in finals):
            parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(parent)
        for final in finals:
            partials.append(_temporary(final))
        folders = [folder for folder, _ in partials]
        yield folders
        for folder in folders:
            sync_folder(folder)
        _rename(folders, finals)
        for final in finals:
            sync_directory(final.parent)
        for final in finals:
            remote.put_folder(final, last=MANIFEST)
    except OSError as error:
        raise cannot_write(os.path.commonpath(finals), error) from error
    finally:
        for folder, lock in partials:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _place_of(output_dir: str | os.PathLike) -> Path:
    """Where the folder itself is to be."""
    final = Path(output_dir).absolute()
    # A link is what no folder can replace; what it leads to, one can.
    return Path(os.path.realpath(final)) if final.is_symlink() else final


def _rename(folders: Sequence[Path], finals: Sequence[Path]) -> None:
    """Puts finished folders in place, all of them or none."""
    done: list[tuple[Path, Path]] = []
    try:
        for folder, final in zip(folders, finals, strict=True):
            os.replace(folder, final)
            done.append((folder, final))
    except OSError:
        for folder, final in done:
            os.replace(final, folder)
        for final in finals:
            check_free(final)  # Another export may have been faster.
        raise


def remove_leftovers(parent: Path) -> None:
    """Removes folders that killed processes of this machine were writing; says so.

    Locks may reach no further than one machine, so others' folders stay.
    """
    for path in sorted(parent.iterdir()):
        found = _TEMPORARY.fullmatch(path.name)
        if not found or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY)
            try:
                state = flock(lock) if found[1] == socket.gethostname() else None
                if state:
                    shutil.rmtree(path)
                    print(f"removed {path}, which a killed export had left")
                elif state is None:
                    print(
                        f"{path} is an unfinished export: remove it if none is "
                        f"running on {found[1]}"
                    )
            finally:
                os.close(lock)


def _temporary(final: Path) -> tuple[Path, int]:
    """A new folder beside another, and the descriptor that holds its lock."""
    while True:
        ending = f"@{socket.gethostname()}{PARTIAL}"
        path = Path(tempfile.mkdtemp(ending, f".{final.name}.", final.parent))
        lock = os.open(path, os.O_RDONLY)
        # Another export may have removed it before it was locked.
        taken = flock(lock) is False
        with contextlib.suppress(FileNotFoundError):
            if not taken and os.path.samestat(os.fstat(lock), path.stat()):
                return path, lock
        os.close(lock)


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

    To be asked before a library writes that does not survive a full disk: h5py crashes.
    """
    size = sum(tensor.nbytes + 20_000 for tensor in tensors.values()) + 4_000_000
    path = folder / f"room{PARTIAL}"
    try:
        with open(path, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, size)
    finally:
        path.unlink(missing_ok=True)
